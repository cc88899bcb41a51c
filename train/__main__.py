"""Runs the training programs without the installed command: python -m train."""

import sys

from . import app

if __name__ == "__main__":
    try:
        app()
    except (ValueError, FileNotFoundError) as error:
        print(f"skipjax: {error}", file=sys.stderr)
        sys.exit(2)

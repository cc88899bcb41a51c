"""Runs a program of these tests that kills its own process."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import skipjax


def run_killed(program: ModuleType, *arguments: object) -> None:
    """python PROGRAM ARGUMENTS, from the file of the module; it must end by SIGKILL."""
    path = Path(str(program.__file__))
    paths = [str(path.parent), str(Path(skipjax.__file__).parents[1])]
    done = subprocess.run(
        [sys.executable, str(path), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr

"""The `skipjax` command: puts the programs together and turns user errors into one sentence."""

from __future__ import annotations

import sys
import warnings

import typer

import skipjax
from skipjax.infer import bench, calibrate, convert, evaluate, generate
from skipjax.train import app as train_app

app = typer.Typer(
    name="skipjax",
    help="Early-exit decoding of language models in JAX.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("generate")(generate.generate)
app.command("convert")(convert.convert)
app.command("evaluate")(evaluate.evaluate)
app.command("bench")(bench.bench)
app.command("calibrate")(calibrate.calibrate)
app.add_typer(train_app, name="train")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"skipjax {skipjax.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print it and stop."),
) -> None:
    pass


def main() -> None:
    """Runs the command line; a ValueError or OSError becomes one line on standard error and exit status 2."""
    warnings.showwarning = lambda message, *_args, **_kwargs: print(f"skipjax: warning: {message}", file=sys.stderr)
    try:
        app()
    except (ValueError, OSError) as error:
        print(f"skipjax: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()

"""The `skipjax` command: puts the programs together and turns user errors into one sentence."""

from __future__ import annotations

import sys
import warnings
from typing import Annotated

import typer

import skipjax
from skipjax import compilation_cache
from skipjax.flag_groups import GridCommand
from skipjax.infer import bench, calibrate, compare, convert, evaluate, generate
from skipjax.infer.compile import compile_programs
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
app.command("evaluate", cls=GridCommand)(evaluate.evaluate)
app.command("compare")(compare.compare)
app.command("bench", cls=GridCommand)(bench.bench)
app.command("calibrate")(calibrate.calibrate)
app.command("compile", cls=GridCommand)(compile_programs)
app.add_typer(train_app, name="train")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"skipjax {skipjax.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it and stop.")
    ] = False,
    cache: Annotated[
        str | None,
        typer.Option(
            "--compilation-cache",
            envvar=compilation_cache.VARIABLE,
            metavar="FOLDER",
            help=f"Where compiled programs are kept for later runs, at most 1 GiB; {compilation_cache.OFF}: nowhere.",
            show_default="$JAX_COMPILATION_CACHE_DIR, or ~/.cache/skipjax/compiled",
        ),
    ] = None,
) -> None:
    compilation_cache.use(cache)


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

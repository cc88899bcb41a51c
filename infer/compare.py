"""Joins evaluations of several checkpoints, on the same inputs, into one table and one picture.

skipjax compare full-run skipdecode-run free-run
skipjax compare runs/a runs/b --name "trained for 2x,trained for 3x" --full "trained for 2x" --out compared
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def compare(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR", help="Directories that skipjax evaluate --out wrote.")
    ],
    *,
    name: Annotated[
        list[str] | None,
        typer.Option(help="Names of the runs, one for each directory: A,B.", show_default="those of the directories"),
    ] = None,
    full: Annotated[
        str | None,
        typer.Option(help='Run whose full depth is the yardstick of the column "of full".', show_default="the first"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Directory for results.json, table.md and pareto.png.", show_default="only print"),
    ] = None,
) -> None:
    """Set evaluations of several checkpoints beside each other.

    They must have had the same inputs. The column "of full" is the share of the yardstick's ROUGE-L; the speed-ups are
    against full depth of the same run.
    """
    from skipjax import comparison
    from skipjax.settings import words

    if out is not None and out.resolve() in [directory.resolve() for directory in directories]:
        raise ValueError(f"--out must not be one of the runs to compare, got {str(out)!r}")
    runs = comparison.read_runs(directories, words(name) if name else None)
    results = comparison.join(runs, full)
    if out is not None:
        comparison.check_out(out)
    typer.echo(comparison.table(results))
    if out is not None:
        comparison.write(results, out)
        typer.echo(f"wrote results.json, table.md and pareto.png to {out}")

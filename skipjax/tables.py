"""Tables that are Markdown in a file and line up in a terminal."""

from __future__ import annotations

from collections.abc import Sequence


def cell(value: float | None, form: str, unit: str = "", interval: Sequence[float] | None = None) -> str:
    """A number in a `format` with its unit, and half the width of its interval if it has one; "-" for None."""
    if value is None:
        return "-"
    width = "" if interval is None else f" ± {format((interval[1] - interval[0]) / 2, form)}"
    return format(value, form) + unit + width


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table: first column to the left, the others, numbers, to the right. No newline at the end."""
    widths = [max(map(len, cells)) for cells in zip(header, *rows, strict=True)]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]

    def line(cells: Sequence[str]) -> str:
        first, *others = (
            cell.rjust(width) if index else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "| " + " | ".join([first, *others]) + " |"

    return "\n".join([line(header), line(rule), *map(line, rows)])

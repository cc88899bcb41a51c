"""Benchmarks as text and as a picture."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from skipjax.account import exit_columns
from skipjax.bench import Measurement, Workload
from skipjax.pictures import new_figure, save_figure, tidy
from skipjax.settings import Setting
from skipjax.tables import cell, markdown


def report(measurements: Sequence[Measurement]) -> str:
    """For each workload a heading, a Markdown table of speed and one of what our methods ran and kept. Numbers are
    medians, "(range)" is lowest to highest."""
    parts = []
    for workload, these in _by_workload(measurements):
        heading = f"{_title(workload)}; memory reads {these[0].bandwidth.median / 1e9:.2f} GB/s"
        parts += [heading, _speed_table(these), _depth_table(these)]
    return "\n\n".join(parts)


def _by_workload(measurements: Sequence[Measurement]) -> Iterator[tuple[Workload, list[Measurement]]]:
    for workload, group in itertools.groupby(measurements, key=lambda one: one.workload):
        yield workload, list(group)


def _title(workload: Workload) -> str:
    return f"batch {workload.batch_size}, prompt {workload.prompt_length}, {workload.max_new_tokens} new tokens"


def _speed_table(measurements: Sequence[Measurement]) -> str:
    header = ["method", "prompt ms", "step ms", "(range)", "tokens/s", "of bound", "target", "realised", "measured"]
    compared = measurements[0].step_against is not None
    rows = []
    for m in measurements:
        row = [
            m.setting.label,
            f"{m.prompt_ms.median:.1f}",
            f"{m.step_ms.median:.2f}",
            f"{m.step_ms.lowest:.2f}-{m.step_ms.highest:.2f}",
            f"{m.tokens_per_second.median:.0f}",
            cell(None if m.bound_share is None else m.bound_share.median, ".0%"),
            cell(None if m.depths is None else m.depths.target_speedup, ".2f", "x"),
            cell(None if m.depths is None else m.depths.realised_speedup, ".2f", "x"),
            f"{m.measured_speedup.median:.2f}x",
        ]
        if compared:
            against = [one.median for one in (m.prompt_against, m.step_against) if one is not None]
            row += [*(f"{median:.2f}x" for median in against), f"{m.same_tokens:.0%}"]
        rows.append(row)
    return markdown([*header, *(("vs prompt", "vs step", "same") if compared else ())], rows)


def _depth_table(measurements: Sequence[Measurement]) -> str:
    own = [(m, m.setting, m.depths) for m in measurements if isinstance(m.setting, Setting) and m.depths is not None]
    about_exits, exit_cells = exit_columns([depths.exits for _, _, depths in own])
    header = ["method", "depths", "mean", *about_exits, "weights MB/step", "cache MB/step", "KV MB", "of full"]
    rows = []
    for (m, setting, depths), cells in zip(own, exit_cells, strict=True):
        rows.append(
            [
                setting.label,
                setting.depths_label(m.num_layers),
                f"{depths.mean_depth:.1f}",
                *cells,
                *(f"{(n or 0) / 1e6:.2f}" for n in (m.weight_bytes_per_step, m.cache_bytes_per_step)),
                f"{depths.kv_cache_bytes / 1e6:.2f}",
                f"{depths.kv_cache_share:.0%}",
                f"{depths.compile_seconds:.1f}",
            ]
        )
    return markdown([*header, "compile s"], rows)


def plot(measurements: Sequence[Measurement], path: str | Path) -> None:
    """Draws a row of two charts per workload: milliseconds of a decode step with what reading memory takes of them, and
    the speed-ups aimed at, realised and measured. The path's suffix says the format. Without measurements the picture
    is empty, which shows whether it can be written.

    Raises ValueError if matplotlib is not installed or does not know the format, or there is no such folder.
    """
    groups = list(_by_workload(measurements))
    heights = [1.2 + 0.45 * len(these) for _, these in groups]
    figure = new_figure(11, max(sum(heights), 1.0))
    if groups:
        charts = figure.subplots(len(groups), 2, squeeze=False, sharey="row", height_ratios=heights)
        for (workload, these), (left, right) in zip(groups, charts, strict=True):
            _draw_steps(left, these)
            _draw_speedups(right, these)
            left.set_title(_title(workload), loc="left", fontsize="medium")
    save_figure(figure, path)


def _draw_steps(axes: Any, measurements: Sequence[Measurement]) -> None:
    rows = range(len(measurements))
    medians = [m.step_ms.median for m in measurements]
    around = [
        [m.step_ms.median - m.step_ms.lowest for m in measurements],
        [m.step_ms.highest - m.step_ms.median for m in measurements],
    ]
    colours = ["tab:gray" if m.depths is None else "tab:blue" for m in measurements]
    axes.barh(rows, medians, 0.6, xerr=around, color=colours, alpha=0.8, ecolor="black", capsize=3)
    bounds = [(row, m.bound_share.median * m.step_ms.median) for row, m in enumerate(measurements) if m.bound_share]
    axes.barh([row for row, _ in bounds], [ms for _, ms in bounds], 0.25, color="black", label="reading memory")
    axes.set_yticks(rows, [m.setting.label for m in measurements])
    axes.invert_yaxis()
    axes.set_xlabel("ms per decode step")
    axes.legend(loc="best", fontsize="small")
    _from_zero(axes)


def _draw_speedups(axes: Any, measurements: Sequence[Measurement]) -> None:
    for row, m in enumerate(measurements):
        values = [("measured", m.measured_speedup.median, "tab:blue")]
        if m.depths is not None:
            values += [
                ("realised", m.depths.realised_speedup, "tab:orange"),
                ("target", m.depths.target_speedup, "tab:green"),
            ]
        for place, (name, value, colour) in enumerate(values):
            axes.barh(row + 0.24 * (1 - place), value, 0.22, color=colour, label=name if row == 0 else None)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xlabel("times as fast as full depth")
    axes.legend(loc="best", fontsize="small")
    _from_zero(axes)


def _from_zero(axes: Any) -> None:
    tidy(axes, grid="x")
    axes.set_xlim(left=0)

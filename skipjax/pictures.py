"""Pictures, which need the extra "plot": how they are begun and saved, and those of evaluations.

The pictures of evaluations are drawn from the objects of results.json. Colours are Okabe and Ito's, but for a
darker purple, which readers with any kind of colour vision tell apart; a method has the same colour in all of them.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from skipjax import metrics

_COLOURS = {"full": "black", "skipdecode": "#0072B2", "free": "#D55E00", "calm": "#009E73", "static-exit": "#AA4499"}
_MARKERS = "osD^vPX<>p"
_LINES = ("-", "--", "-.", ":", (0, (7, 1, 1, 1, 1, 1)))
_FEWEST_LEFT = 0.05  # share of the texts that a mean by position is taken over at least
# Places of a point's label, best first: from the point, in typographic points, and the text's end that is there.
_PLACES = (
    *((6, 4, "left", "bottom"), (6, -4, "left", "top"), (-6, 4, "right", "bottom"), (-6, -4, "right", "top")),
    *((9, 0, "left", "center"), (-9, 0, "right", "center"), (0, 9, "center", "bottom"), (0, -9, "center", "top")),
    *((7, 16, "left", "bottom"), (7, -16, "left", "top"), (-7, 16, "right", "bottom"), (-7, -16, "right", "top")),
)


def new_figure(width: float, height: float) -> Any:
    """An empty matplotlib figure, sizes in inches. Raises ValueError if matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError(
            "plot needs matplotlib, which is not installed: pip install 'skipjax[plot]' brings it"
        ) from None
    return Figure(figsize=(width, height), layout="constrained")


def tidy(axes: Any, grid: str = "both") -> None:
    """The look of every chart: a faint grid ("x", "y" or "both") behind what is drawn."""
    axes.grid(axis=grid, alpha=0.25)
    axes.set_axisbelow(True)


def save_figure(figure: Any, path: str | Path) -> None:
    """Writes a figure of matplotlib at 150 dots per inch; the path's suffix says the format.

    Raises ValueError if matplotlib does not know the format or the folder does not exist.
    """
    path = Path(path)
    known = figure.canvas.get_supported_filetypes()
    if path.suffix[1:].lower() not in known:
        raise ValueError(f"{path}: format {path.suffix[1:]!r} is not supported, only {', '.join(known)}")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"{path}: the folder of the picture does not exist")
    figure.savefig(path, dpi=150)


def pareto(results: Sequence[dict[str, Any]], path: Path, metric: str = "rougeL") -> None:
    """Draws quality against speed-up: one line per method, full depth dashed.

    Args:
      results: objects of results.json, full depth first; from several runs if they say which under "run". A method that
        several runs have is one line if all its settings differ, else one line per run.
      path: of the picture; the suffix says the format.
      metric: key of the quality, one of `skipjax.metrics.TITLES`, with bars where "<metric>_interval" is there too.
        Settings whose quality is null are left out.
    Raises:
      ValueError: matplotlib is not installed or does not know the format, no such folder, no such metric.
    """
    save_figure(pareto_figure(results, metric), path)


def depth_by_position(results: Sequence[dict[str, Any]], path: Path) -> None:
    """Draws the mean depth at each token position, one line per setting.

    A line ends where less than 5 % of the texts are left: means over so few tokens jump about.
    Args:
      results: objects of results.json, with "positions".
      path: of the picture; the suffix says the format.
    Raises:
      ValueError: matplotlib is not installed or does not know the format, no such folder, no "positions".
    """
    save_figure(depth_figure(results), path)


def exits_by_position(results: Sequence[dict[str, Any]], path: Path) -> None:
    """Draws, for settings whose tokens may leave early, the share that does and the mean confidence at each position.

    Lines end as in `depth_by_position`. Dotted lines beside the confidences are the thresholds.
    Args:
      results: objects of results.json, with "positions".
      path: of the picture; the suffix says the format.
    Raises:
      ValueError: matplotlib is not installed or does not know the format, no such folder, no "positions", no setting
        with exits.
    """
    save_figure(exits_figure(results), path)


def pareto_figure(results: Sequence[dict[str, Any]], metric: str = "rougeL") -> Any:
    """The figure of `pareto`."""
    for key in ("label", metric):
        _check_key(results, key)
    results = [row for row in results if row[metric] is not None]
    measured = all(row["measured_speedup"] is not None for row in results)
    speedup = "measured_speedup" if measured else "realised_speedup"
    figure = new_figure(7, 4.6)
    axes = figure.subplots()
    labels: list[tuple[float, float, str, Any]] = []
    for index, (name, line, rows) in enumerate(_series(results)):
        rows = sorted(rows, key=lambda row: row[speedup])
        x, y = [row[speedup] for row in rows], [row[metric] for row in rows]
        is_full = rows[0]["method"] == "full"
        colour = _COLOURS[rows[0]["method"]]
        marker, size = ("*", 11) if is_full else (_MARKERS[index % len(_MARKERS)], 6)
        axes.errorbar(x, y, _bars(rows, metric), fmt="none", ecolor=(colour, 0.4), elinewidth=1.2, capsize=2.5)
        axes.plot(x, y, color=colour, marker=marker, markersize=size, linestyle=line, linewidth=1.5, label=name)
        details = [row.get("run", "") if is_full else _detail(row) for row in rows]
        labels += [(*point, _lighter(colour, -0.3)) for point in zip(x, y, details, strict=True)]
    full = next((row[metric] for row in results if row["method"] == "full"), None)
    if full is not None:
        axes.axhline(full, color="black", linestyle="--", linewidth=1, zorder=1)
    meaning = "times as fast per decode step as full depth" if measured else "layers / mean depth; none was measured"
    axes.set_xlabel(f"{'measured' if measured else 'realised'} speed-up ({meaning})")
    unit = "lower is better" if metric == metrics.PERPLEXITY else "%"
    axes.set_ylabel(f"{metrics.TITLES.get(metric, metric)} ({unit})")
    axes.xaxis.set_major_formatter("{x:g}x")
    axes.margins(0.08)
    tidy(axes)
    if results:
        axes.legend(loc="best", fontsize="small")
    _label_points(figure, axes, labels)
    return figure


def depth_figure(results: Sequence[dict[str, Any]]) -> Any:
    """The figure of `depth_by_position`."""
    _check_key(results, "positions")
    figure = new_figure(7, 4)
    axes = figure.subplots()
    for row, style in zip(results, _line_styles(results), strict=True):
        axes.plot(*_by_position(row, "mean_depth"), **style)
    axes.set(xlabel="token position", ylabel="mean depth (layers)")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.locator_params(axis="both", integer=True)
    tidy(axes)
    if results:
        figure.legend(loc="outside right upper", fontsize="small")
    return figure


def exits_figure(results: Sequence[dict[str, Any]]) -> Any:
    """The figure of `exits_by_position`."""
    _check_key(results, "positions")
    results = [row for row in results if row["positions"]["exit_share"] is not None]
    if not results:
        raise ValueError("results must hold a setting whose tokens may leave early, such as one of free")
    figure = new_figure(7, 5.4)
    upper, lower = figure.subplots(2, sharex=True)
    for row, style in zip(results, _line_styles(results), strict=True):
        x, shares = _by_position(row, "exit_share")
        upper.plot(x, [100 * share for share in shares], **style)
        if row["positions"]["confidence"] is not None:
            lower.plot(*_by_position(row, "confidence"), **style)
            if row["threshold"] is not None:
                lower.axhline(row["threshold"], color=style["color"], linestyle=":", linewidth=1)
    measures = ", ".join(dict.fromkeys(row["confidence"] for row in results if row["confidence"] is not None))
    upper.set(ylabel="tokens that leave early (%)", ylim=(-3, 103))
    lower.set(xlabel="token position", ylabel=f"mean confidence ({measures})" if measures else "mean confidence")
    lower.set_xlim(left=0)
    lower.locator_params(axis="x", integer=True)
    for axes in (upper, lower):
        tidy(axes)
    if any(row["threshold"] is not None for row in results):
        upper.plot([], [], ":", color="black", linewidth=1, label="thresholds")  # for the legend
    figure.legend(*upper.get_legend_handles_labels(), loc="outside right upper", fontsize="small")
    return figure


def _check_key(results: Sequence[dict[str, Any]], key: str) -> None:
    if any(key not in row for row in results):
        raise ValueError(f"results must hold {key!r}, and these do not: evaluate again to have it")


def _series(results: Sequence[dict[str, Any]]) -> Iterator[tuple[str, Any, list[dict[str, Any]]]]:
    """Name, kind of line and rows of each line, in order of first appearance."""
    methods: dict[str, list[dict[str, Any]]] = {}
    for row in results:
        methods.setdefault(row["method"], []).append(row)
    for method, rows in methods.items():
        runs = list(dict.fromkeys(row.get("run") for row in rows))
        if method == "full":
            yield "full depth", "none", rows
        elif len(runs) == 1 or len({row["label"] for row in rows}) == len(rows):
            yield method, _LINES[0], rows
        else:
            for index, run in enumerate(runs):
                yield f"{method} ({run})", _LINES[index % len(_LINES)], [row for row in rows if row["run"] == run]


def _bars(rows: Sequence[dict[str, Any]], metric: str) -> list[list[float]] | None:
    """Lengths of the bars below and above each point, 0 where there is no interval; None if no point has one."""
    intervals = [row.get(f"{metric}_interval") or (row[metric], row[metric]) for row in rows]
    below = [max(row[metric] - low, 0.0) for row, (low, _) in zip(rows, intervals, strict=True)]
    above = [max(high - row[metric], 0.0) for row, (_, high) in zip(rows, intervals, strict=True)]
    return [below, above] if any(below + above) else None


def _detail(row: dict[str, Any]) -> str:
    """What tells a method's settings apart: "2x", "0.5", "6 layers"."""
    detail = row["label"].removeprefix(row["method"]).strip()
    return f"{detail} layers" if row["method"] == "static-exit" else detail


def _label_points(figure: Any, axes: Any, labels: Sequence[tuple[float, float, str, Any]]) -> None:
    """Writes texts beside points (x, y, text, colour), each at the place where it covers least."""
    from matplotlib.patheffects import withStroke
    from matplotlib.transforms import Bbox

    figure.draw_without_rendering()  # settles where things are
    points = [axes.transData.transform((x, y)) for x, y, *_ in labels]
    solid = [Bbox([point - 6, point + 6]) for point in points]
    if axes.get_legend() is not None:
        solid.append(axes.get_legend().get_window_extent())
    # Lines of every kind, bars too: better not covered, but they still can be seen beside a text.
    paths = [line.get_transform().transform_path(line.get_path()) for line in axes.lines]
    paths += [axes.transData.transform_path(path) for bars in axes.collections for path in bars.get_paths()]
    for x, y, text, colour in labels:
        if not text:
            continue
        notes: list[tuple[int, int, Any, Any]] = []
        for dx, dy, horizontal, vertical in _PLACES:
            note = axes.annotate(text, (x, y), (dx, dy), textcoords="offset points", fontsize="small", color=colour)
            note.set(ha=horizontal, va=vertical, path_effects=[withStroke(linewidth=2, foreground="white")])
            box = note.get_window_extent()
            covered = 10 * box.count_overlaps(solid) + sum(path.intersects_bbox(box, filled=False) for path in paths)
            outside = not axes.bbox.containsx(box.x0) or not axes.bbox.containsx(box.x1)
            outside |= not axes.bbox.containsy(box.y0) or not axes.bbox.containsy(box.y1)
            notes.append((covered + 10 * outside, len(notes), box, note))
        _, _, box, chosen = min(notes)
        for *_, note in notes:
            if note is not chosen:
                note.remove()
        solid.append(box)


def _lighter(colour: str, by: float) -> tuple[float, ...]:
    """Moved toward white by this share or, below 0, toward black."""
    from matplotlib.colors import to_rgb

    return tuple(part + abs(by) * ((by > 0) - part) for part in to_rgb(colour))


def _line_styles(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One style per setting: a method's colour, from dark to light, and another kind of line, over its settings."""
    of_method = collections.Counter(row["method"] for row in results)
    seen: collections.Counter[str] = collections.Counter()
    styles = []
    for row in results:
        index, count = seen[row["method"]], of_method[row["method"]]
        seen[row["method"]] += 1
        lightness = 2 * index / (count - 1) - 1 if count > 1 else 0  # from -1 to 1
        colour = _lighter(_COLOURS[row["method"]], 0.4 * lightness)
        line, width = ("--", 1.0) if row["method"] == "full" else (_LINES[index % len(_LINES)], 1.8)
        styles.append({"color": colour, "linestyle": line, "linewidth": width, "label": row["label"]})
    return styles


def _by_position(row: dict[str, Any], name: str) -> tuple[range, list[float]]:
    """Positions and values of a line, up to where too few texts are left; NaN where there is no value."""
    tokens = row["positions"]["tokens"]
    kept = sum(count >= _FEWEST_LEFT * tokens[0] for count in tokens)
    values = row["positions"][name][:kept]
    return range(kept), [math.nan if value is None else value for value in values]

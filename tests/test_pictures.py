"""Pictures of evaluations: what is drawn where, and what cannot be."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
from evaluated import FULL, LAYERS, SEVERAL, positions, result

from skipjax import pictures

pytest.importorskip("matplotlib")


def lines(axes: Any) -> dict[str, Any]:
    """Lines by their names, without those that have none."""
    return {line.get_label(): line for line in axes.lines if not line.get_label().startswith("_")}


def points(line: Any) -> list[tuple[float, float]]:
    return list(zip(line.get_xdata(), line.get_ydata(), strict=True))


def legend_of(legend: Any) -> list[str]:
    return [text.get_text() for text in legend.get_texts()]


def bars(axes: Any) -> list[list[list[float]]]:
    """The ends of each vertical bar."""
    return [segment.tolist() for group in axes.collections for segment in group.get_segments()]


# Quality against speed-up


def test_pareto() -> None:
    (axes,) = pictures.pareto_figure(SEVERAL).axes
    drawn = lines(axes)
    assert legend_of(axes.get_legend()) == list(drawn) == ["full depth", "skipdecode", "free", "static-exit"]
    assert points(drawn["full depth"]) == [(1, 80)]
    assert points(drawn["skipdecode"]) == [(1.5, 79), (4, 70)]  # by speed-up, not in the order of the results
    assert points(drawn["free"]) == [(2, 75)]
    (dashed,) = [line for line in axes.lines if line.get_linestyle() == "--"]
    assert set(dashed.get_ydata()) == {80}
    assert [text.get_text() for text in axes.texts] == ["2x", "5x", "0.5", "6 layers"]
    assert [text.xy for text in axes.texts] == [(1.5, 79), (4, 70), (2, 75), (1.9, 40)]
    assert axes.get_xlabel() == "measured speed-up (times as fast per decode step as full depth)"
    assert axes.get_ylabel() == "ROUGE-L (%)"
    intervals = [[[1, 78], [1, 81]], [[1.5, 77], [1.5, 80]], [[4, 68], [4, 71]], [[2, 73], [2, 76]]]
    assert bars(axes) == intervals  # static-exit has none


def test_methods_look_different() -> None:
    (axes,) = pictures.pareto_figure([*SEVERAL, result("calm 0.9", 3.0, 66.0)]).axes
    for look in ("get_color", "get_marker"):
        assert len({getattr(line, look)() for line in lines(axes).values()}) == 5


def test_pareto_of_another_metric() -> None:
    (axes,) = pictures.pareto_figure(SEVERAL, "bleu").axes
    assert points(lines(axes)["skipdecode"]) == [(1.5, 69), (4, 60)]
    assert (axes.get_ylabel(), bars(axes)) == ("BLEU (%)", [])
    rows = [{**FULL, "perplexity": 3.5}, {**SEVERAL[1], "perplexity": None}, {**SEVERAL[2], "perplexity": 4.0}]
    (axes,) = pictures.pareto_figure(rows, "perplexity").axes
    assert points(lines(axes)["skipdecode"]) == [(1.5, 4)]
    assert axes.get_ylabel() == "perplexity (lower is better)"
    with pytest.raises(ValueError, match="results must hold 'f1', and these do not: evaluate again"):
        pictures.pareto_figure(SEVERAL, "f1")


def test_pareto_without_measured_speedups() -> None:
    (axes,) = pictures.pareto_figure([FULL, {**SEVERAL[1], "measured_speedup": None}]).axes
    assert axes.get_xlabel() == "realised speed-up (layers / mean depth; none was measured)"
    assert points(lines(axes)["full depth"]) == [(0.5, 80)]
    assert points(lines(axes)["skipdecode"]) == [(2, 70)]


def of_run(name: str, *rows: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"run": name, **row} for row in rows]


def test_pareto_of_several_runs() -> None:
    faster = result("skipdecode 5x", 4.5, 72.0)
    apart = [*of_run("a", FULL, SEVERAL[2]), *of_run("b", result("full", 1.0, 78.0), faster)]
    (axes,) = pictures.pareto_figure(apart).axes
    assert points(lines(axes)["skipdecode"]) == [(1.5, 79), (4.5, 72)]
    assert points(lines(axes)["full depth"]) == [(1, 80), (1, 78)]
    assert [text.get_text() for text in axes.texts] == ["a", "b", "2x", "5x"]
    (dashed,) = [line for line in axes.lines if line.get_linestyle() == "--"]
    assert set(dashed.get_ydata()) == {80}
    # Both runs have 5x: one line would go back and forth between them.
    (axes,) = pictures.pareto_figure([*apart, *of_run("a", SEVERAL[1])]).axes
    drawn = lines(axes)
    assert list(drawn) == ["full depth", "skipdecode (a)", "skipdecode (b)"]
    assert points(drawn["skipdecode (a)"]) == [(1.5, 79), (4, 70)]
    assert points(drawn["skipdecode (b)"]) == [(4.5, 72)]
    assert drawn["skipdecode (a)"].get_marker() != drawn["skipdecode (b)"].get_marker()
    assert drawn["skipdecode (a)"].get_linestyle() != drawn["skipdecode (b)"].get_linestyle()


def test_labels_of_close_points_stay_apart() -> None:
    close = [result(f"free 0.{n}", 2 + 0.02 * n, 75 - 0.2 * n) for n in range(1, 7)]
    figure = pictures.pareto_figure([FULL, *close, result("static-exit 6", 4.0, 40.0)])
    (axes,) = figure.axes
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in axes.texts]
    assert len(boxes) == 7
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
    assert all(axes.bbox.x0 < box.x0 and box.x1 < axes.bbox.x1 for box in boxes)


# By position

TOKENS = [40, 40, 20, 2, 1]  # of 40 texts: 2 are 5 %


def with_positions() -> list[dict[str, Any]]:
    early = positions(TOKENS, [12, 3, 6, 9, 3], [0.0, 1.0, 0.5, 0.25, 1.0], [None, 0.9, 0.7, 0.5, 0.8])
    constant = positions([40, 40], [6, 6], [1.0, 1.0])
    return [
        {**FULL, "positions": positions(TOKENS, [12] * 5)},
        result("free 0.3", 2.0, 75.0, threshold=0.3, positions=early),
        result("free 0.9", 1.5, 78.0, threshold=0.9, positions=early),
        result("static-exit 6", 2.0, 50.0, positions=constant),
    ]


def test_depth_by_position() -> None:
    figure = pictures.depth_figure(with_positions())
    (axes,) = figure.axes
    drawn = lines(axes)
    assert legend_of(figure.legends[0]) == list(drawn) == ["full", "free 0.3", "free 0.9", "static-exit 6"]
    assert points(drawn["free 0.3"]) == [(0, 12), (1, 3), (2, 6), (3, 9)]  # a single text is left at position 4
    assert points(drawn["static-exit 6"]) == [(0, 6), (1, 6)]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("token position", "mean depth (layers)")
    bottom, top = axes.get_ylim()
    assert bottom == 0
    assert top > LAYERS
    for look in ("get_color", "get_linestyle"):
        assert getattr(drawn["free 0.3"], look)() != getattr(drawn["free 0.9"], look)()


def test_exits_by_position() -> None:
    figure = pictures.exits_figure(with_positions())
    upper, lower = figure.axes
    assert legend_of(figure.legends[0]) == ["free 0.3", "free 0.9", "static-exit 6", "thresholds"]
    assert points(lines(upper)["free 0.3"]) == [(0, 0), (1, 100), (2, 50), (3, 25)]
    assert points(lines(upper)["static-exit 6"]) == [(0, 100), (1, 100)]
    assert list(lines(lower)) == ["free 0.3", "free 0.9"]
    (_, first), *others = points(lines(lower)["free 0.9"])
    assert math.isnan(first)
    assert others == [(1, 0.9), (2, 0.7), (3, 0.5)]
    thresholds = {line.get_color(): line.get_ydata()[0] for line in lower.lines if line.get_linestyle() == ":"}
    assert thresholds == {lines(lower)["free 0.3"].get_color(): 0.3, lines(lower)["free 0.9"].get_color(): 0.9}
    assert upper.get_ylabel() == "tokens that leave early (%)"
    assert (lower.get_xlabel(), lower.get_ylabel()) == ("token position", "mean confidence (margin)")
    with pytest.raises(ValueError, match="results must hold a setting whose tokens may leave early"):
        pictures.exits_figure(with_positions()[:1])


# Files


@pytest.mark.parametrize(
    ("draw", "rows"),
    [
        (pictures.pareto, SEVERAL),
        (pictures.pareto, []),
        (pictures.depth_by_position, with_positions()),
        (pictures.exits_by_position, with_positions()),
    ],
    ids=["pareto", "no results", "depths", "exits"],
)
def test_pictures_are_written(tmp_path: Path, draw: Any, rows: list[dict[str, Any]]) -> None:
    draw(rows, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match=r"x\.tree: format 'tree' is not supported, only .*png, .*svg"):
        draw(rows, tmp_path / "x.tree")
    with pytest.raises(ValueError, match=r"nowhere/x\.svg: the folder of the picture does not exist"):
        draw(rows, tmp_path / "nowhere" / "x.svg")
    assert [path.name for path in tmp_path.iterdir()] == ["picture.png"]


@pytest.mark.parametrize(
    ("draw", "key"),
    [(pictures.depth_figure, "positions"), (pictures.exits_figure, "positions"), (pictures.pareto_figure, "label")],
)
def test_results_of_older_versions(draw: Any, key: str) -> None:
    old = [{name: value for name, value in row.items() if name != key} for row in with_positions()]
    with pytest.raises(ValueError, match=f"results must hold {key!r}, and these do not: evaluate again to have it"):
        draw(old)


@pytest.mark.usefixtures("no_matplotlib")
def test_without_matplotlib(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"pip install 'skipjax\[plot\]'"):
        pictures.pareto(SEVERAL, tmp_path / "x.png")

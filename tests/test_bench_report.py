"""How benchmarks are shown."""

from pathlib import Path
from typing import Any

import pytest

from skipjax import bench_report
from skipjax.account import Exits
from skipjax.bench import Depths, Measurement, Spread, Workload
from skipjax.methods import Free
from skipjax.rivals import ORDINARY
from skipjax.settings import Setting


def measurement(**changes: Any) -> Measurement:
    """One with wide numbers."""
    depths = Depths(32, 8, 24.5, 2.0, 1.75, Exits(0.9, 0.123, 1234, 7.8, 0.987), 123_456_789, 0.75, 123.4)
    fields: dict[str, Any] = {
        "setting": Setting(Free(8, 0.95, rollback=12.5)),
        "workload": Workload(8, 256, 128),
        "num_layers": 32,
        "prompt_ms": Spread(4321.0, 4000.0, 5000.0),
        "step_ms": Spread(1234.56, 1000.12, 2345.67),
        "tokens_per_second": Spread(12.0, 11.0, 13.0),
        "measured_speedup": Spread(0.5, 0.4, 0.6),
        "weight_bytes_per_step": 12_345_678_901,
        "cache_bytes_per_step": 1_234_567_890,
        "bandwidth": Spread(1.5e10, 1.4e10, 1.6e10),
        "bound_share": Spread(0.8, 0.7, 0.9),
        "same_tokens": 0.99,
        **dict.fromkeys(("prompt_against", "step_against", "throughput_against"), Spread(12.3, 10.0, 14.0)),
        "depths": depths,
    }
    return Measurement(**{**fields, **changes})


def ordinary() -> Measurement:
    return measurement(setting=ORDINARY, depths=None)


def test_report() -> None:
    alone = dict.fromkeys(("prompt_against", "step_against", "throughput_against"))
    text = bench_report.report([measurement(), ordinary(), measurement(workload=Workload(1, 16, 8), **alone)])
    heading, speed, depths, other_heading, other_speed, _ = text.split("\n\n")
    assert heading == "batch 8, prompt 256, 128 new tokens; memory reads 15.00 GB/s"
    assert other_heading.startswith("batch 1, prompt 16, 8 new tokens;")
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in speed.splitlines()]
    times = ["4321.0", "1234.56", "1000.12-2345.67", "12", "80%"]
    assert cells[2] == ["free 0.95 rollback 12.5", *times, "2.00x", "1.75x", "0.50x", "12.30x", "12.30x", "99%"]
    assert cells[3] == ["transformers", *times, "-", "-", "0.50x", "12.30x", "12.30x", "99%"]
    (row,) = [[cell.strip() for cell in line.split("|")[1:-1]] for line in depths.splitlines()[2:]]
    assert row[:3] == ["free 0.95 rollback 12.5", "8/32", "24.5"]
    assert row[-5:] == ["12345.68", "1234.57", "123.46", "75%", "123.4"]
    assert "vs step" not in other_speed
    assert max(map(len, text.splitlines())) <= 155


def test_picture_of_the_times(monkeypatch: pytest.MonkeyPatch) -> None:
    figure_module = pytest.importorskip("matplotlib.figure")
    figures: list[Any] = []
    monkeypatch.setattr(figure_module.Figure, "savefig", lambda self, *_, **__: figures.append(self))
    bench_report.plot([measurement(), ordinary(), measurement(workload=Workload(1, 16, 8))], "unused.png")
    left, right, *others = figures[0].axes
    assert len(others) == 2  # the other workload's
    assert [label.get_text() for label in left.get_yticklabels()] == ["free 0.95 rollback 12.5", "transformers"]
    steps, bounds = [1234.56] * 2, [0.8 * 1234.56] * 2
    assert [bar.get_width() for bar in left.patches] == pytest.approx([*steps, *bounds])
    assert [bar.get_width() for bar in right.patches] == pytest.approx([0.5, 1.75, 2.0, 0.5])


def test_pictures_are_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for index, these in enumerate(([], [measurement(), ordinary()])):
        bench_report.plot(these, tmp_path / f"{index}.png")
        assert (tmp_path / f"{index}.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="format 'tree' is not supported"):
        bench_report.plot([], tmp_path / "x.tree")


@pytest.mark.usefixtures("no_matplotlib")
def test_without_matplotlib() -> None:
    with pytest.raises(ValueError, match=r"pip install 'skipjax\[plot\]'"):
        bench_report.plot([], "unused.png")

"""What an evaluation is turned into: a table, and files with pictures."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

from skipjax import checks, metrics, pages, pictures
from skipjax.account import exit_columns
from skipjax.evaluation import SHADED, Evaluation
from skipjax.tables import cell, markdown


def table(evaluation: Evaluation) -> str:
    """The results as a Markdown table, with the half width of the first metric's interval, and with columns about exits
    if any setting has them."""
    header = ["method", "depths", *(metrics.TITLES[name] for name in evaluation.metrics), "of full", "same texts"]
    header += ["target", "realised", "measured", "mean depth"]
    about_exits, exit_cells = exit_columns([result.exits for result in evaluation.results])
    rows = []
    for result, cells in zip(evaluation.results, exit_cells, strict=True):
        first, *others = (result.scores[name] for name in evaluation.metrics)
        rows.append(
            [
                result.setting.label,
                result.setting.depths_label(result.num_layers),
                cell(first.value, ".1f", interval=first.interval),
                *(cell(score.value, ".1f") for score in others),
                cell(result.share_of_full, ".1%"),
                f"{result.same_texts:.1%}",
                f"{result.target_speedup:.2f}x",
                f"{result.realised_speedup:.2f}x",
                cell(result.measured_speedup, ".2f", "x"),
                f"{result.mean_depth:.1f}",
                *cells,
                f"{result.tokens_per_second:.0f}",
                f"{result.seconds:.1f}",
            ]
        )
    return markdown([*header, *about_exits, "tokens/s", "seconds"], rows)


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def check_out(directory: Path) -> None:
    """Makes the directory that `write` is to write into. Raises ValueError if it cannot be, or holds a comparison."""
    checks.directory("--out", directory)
    if (directory / "results.json").exists() and not any(
        (directory / name).exists() for name in ("samples.jsonl", "progress.jsonl")
    ):
        raise ValueError(f"--out {directory} holds results that are no evaluation's: give another directory")


def write(evaluation: Evaluation, directory: Path) -> list[str]:
    """Writes results.json (a list, one object per setting), table.md, samples.jsonl (one object per input), texts.html
    (the first inputs, shaded by depth) and, where matplotlib is installed, pareto.png, depths.png and, if any setting
    exits, exits.png. Returns the names of those written."""
    directory.mkdir(parents=True, exist_ok=True)
    results, samples = [result.to_json() for result in evaluation.results], evaluation.samples()
    (directory / "results.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    (directory / "table.md").write_text(table(evaluation) + "\n", encoding="utf-8")
    lines = [json.dumps(sample, ensure_ascii=False) + "\n" for sample in samples]
    (directory / "samples.jsonl").write_text("".join(lines), encoding="utf-8")
    pages.write_texts(samples[:SHADED], evaluation.results[0].num_layers, directory / "texts.html")
    written = ["results.json", "table.md", "samples.jsonl", "texts.html"]
    if not can_draw():
        return written
    drawings = {"pareto.png": pictures.pareto, "depths.png": pictures.depth_by_position}
    if any(result.positions.exit_share is not None for result in evaluation.results):
        drawings["exits.png"] = pictures.exits_by_position
    for name, draw in drawings.items():
        draw(results, directory / name)
    return [*written, *drawings]

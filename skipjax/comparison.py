"""Evaluations of several checkpoints on the same inputs, joined. Needs no jax."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from skipjax import checks, metrics, pictures
from skipjax.tables import cell, markdown

_NEEDED = (
    *("label", "method", "rougeL", "target_speedup", "realised_speedup", "measured_speedup", "mean_depth"),
    "share_of_full",
)


@dataclasses.dataclass(frozen=True)
class Run:
    """What one evaluation wrote.

    Attributes:
      name: to tell it from the others.
      results: objects of results.json, full depth first.
      inputs: prompt and references of each input.
    """

    name: str
    results: list[dict[str, Any]]
    inputs: list[tuple[str, tuple[str, ...]]]


def read_runs(directories: Sequence[Path], names: Sequence[str] | None = None) -> list[Run]:
    """Reads results.json and samples.jsonl of each directory.

    Args:
      names: one for each directory; if left out, those of the directories.
    Raises:
      FileNotFoundError: no such file.
      ValueError: names that do not fit, a damaged file, one without what is needed, or runs on different inputs.
    """
    if names is None:
        names = [directory.resolve().name for directory in directories]
    elif len(names) != len(directories):
        raise ValueError(f"--name must give one name for each of the {len(directories)} runs, got {len(names)}")
    if len(set(names)) < len(names):
        raise ValueError(f"runs must have different names, got {', '.join(names)}: give them with --name A,B")
    runs = [_read(name, directory) for name, directory in zip(names, directories, strict=True)]
    first = runs[0]
    for run in runs[1:]:
        if len(run.inputs) != len(first.inputs):
            raise ValueError(
                f"runs must have had the same inputs, but {first.name!r} has {len(first.inputs)} of them and"
                f" {run.name!r} {len(run.inputs)}"
            )
        for number, (one, other) in enumerate(zip(first.inputs, run.inputs, strict=True), 1):
            if one != other:
                part = "prompt" if one[0] != other[0] else "references"
                raise ValueError(
                    f"runs must have had the same inputs, but {first.name!r} and {run.name!r} differ in the {part} of"
                    f" input {number}"
                )
    return runs


def _read(name: str, directory: Path) -> Run:
    results = _parse(directory / "results.json", json.loads)
    path = directory / "results.json"
    if not isinstance(results, list) or not results or not all(isinstance(row, dict) for row in results):
        raise ValueError(f"{path}: must hold a list of results, as skipjax evaluate writes it")
    missing = next((key for key in _NEEDED for row in results if key not in row), None)
    if missing is not None:
        raise ValueError(f"{path}: has results without {missing!r}, as older versions wrote them: evaluate again")
    if results[0]["method"] != "full":
        raise ValueError(f"{path}: must begin with full depth, got {results[0]['label']!r}")
    samples = _parse(directory / "samples.jsonl", lambda text: [json.loads(line) for line in text.splitlines()])
    try:
        inputs = [(sample["prompt"], tuple(sample["references"])) for sample in samples]
    except (KeyError, TypeError):
        raise ValueError(f"{directory / 'samples.jsonl'}: must hold a prompt and references in each line") from None
    return Run(name, results, inputs)


def _parse(path: Path, read: Any) -> Any:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file, skipjax evaluate --out writes it")
    try:
        return read(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: not valid JSON ({error})") from None


def join(runs: Sequence[Run], full: str | None = None) -> list[dict[str, Any]]:
    """The results of all runs as objects of results.json that say under "run" where they come from.

    "share_of_full" is the share of the yardstick's ROUGE-L; its interval is null for other runs than the yardstick's,
    since texts of two runs were not drawn together. Speed-ups stay those against full depth of the same run.
    Args:
      full: name of the run whose full depth is the yardstick and which comes first; the first if left out.
    Raises:
      ValueError: no such run.
    """
    names = [run.name for run in runs]
    yardstick = runs[names.index(checks.choice("--full", names[0] if full is None else full, names))]
    quality = yardstick.results[0]["rougeL"]
    joined = []
    for run in (yardstick, *(run for run in runs if run is not yardstick)):
        for row in run.results:
            changed = {"share_of_full": row["rougeL"] / quality if quality else None}
            if run is not yardstick:
                changed["share_of_full_interval"] = None
            joined.append({"run": run.name, **row, **changed})
    return joined


def table(results: Sequence[dict[str, Any]]) -> str:
    """Joined results as a Markdown table, with the half width of the first metric's interval."""
    names = [name for name in metrics.TITLES if any(name in row for row in results)]
    rows = []
    for row in results:
        first, *others = names
        rows.append(
            [
                row["run"],
                row["label"],
                cell(row[first], ".1f", interval=row.get(f"{first}_interval")),
                *(cell(row.get(name), ".1f") for name in others),
                cell(row["share_of_full"], ".1%"),
                *(cell(row[f"{kind}_speedup"], ".2f", "x") for kind in ("target", "realised", "measured")),
                f"{row['mean_depth']:.1f}",
            ]
        )
    header = ["run", "method", *(metrics.TITLES[name] for name in names), "of full", "target", "realised", "measured"]
    return markdown([*header, "mean depth"], rows)


def check_out(directory: Path) -> None:
    """Makes the directory that `write` is to write into. Raises ValueError if it cannot be, or holds an evaluation."""
    checks.directory("--out", directory)
    for name in ("samples.jsonl", "progress.jsonl"):
        if (directory / name).exists():
            raise ValueError(f"--out {directory} holds an evaluation ({name}): give another directory")


def write(results: Sequence[dict[str, Any]], directory: Path) -> None:
    """Writes joined results to results.json, table.md and, last, pareto.png. Raises ValueError if matplotlib is not
    installed; the other files are there then."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "results.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    (directory / "table.md").write_text(table(results) + "\n", encoding="utf-8")
    pictures.pareto(results, directory / "pareto.png")

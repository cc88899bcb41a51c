"""Evaluations of several checkpoints, joined: the table, the files, and runs that cannot be compared."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from evaluated import FULL, SEVERAL, result, sample
from typer.testing import CliRunner, Result

from skipjax import comparison, evaluation_report, pictures

INPUTS = [sample("p"), sample("q")]
OTHERS = [result("full", 1.0, 60.0), result("free 0.5", 3.0, 40.0, measured_speedup=None, chrf=50.0)]


def evaluation(directory: Path, results: Any = SEVERAL, samples: list[dict[str, Any]] = INPUTS, **raw: str) -> Path:
    """A directory as evaluations write it; `raw` has "results_text" or "samples_text" instead."""
    directory.mkdir()
    files = {"results.json": json.dumps(results), "samples.jsonl": "".join(json.dumps(one) + "\n" for one in samples)}
    for name, text in files.items():
        (directory / name).write_text(raw.get(f"{name.split('.')[0]}_text", text))
    return directory


def cells(table: str) -> list[list[str]]:
    header, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    return [header, *rows]


def test_joined_results(tmp_path: Path) -> None:
    runs = comparison.read_runs([evaluation(tmp_path / "a"), evaluation(tmp_path / "b", OTHERS)])
    joined = comparison.join(runs)
    assert [(row["run"], row["label"]) for row in joined] == [
        *(("a", row["label"]) for row in SEVERAL),
        *(("b", row["label"]) for row in OTHERS),
    ]
    assert [row["share_of_full"] for row in joined] == [row["rougeL"] / 80 for row in [*SEVERAL, *OTHERS]]
    assert joined[1] == {"run": "a", **SEVERAL[1]}
    # Shares within run b were drawn together with b's own full depth.
    assert [row["share_of_full_interval"] for row in joined[-2:]] == [None, None]
    assert joined[-1]["measured_speedup"] is None
    yardstick = comparison.join(runs, "b")
    assert [row["run"] for row in yardstick] == ["b"] * 2 + ["a"] * 5
    assert [row["share_of_full"] for row in yardstick[:3]] == [1, 40 / 60, 80 / 60]


def test_full_depth_without_quality_is_no_yardstick(tmp_path: Path) -> None:
    runs = comparison.read_runs([evaluation(tmp_path / "a", [result("full", 1.0, 0.0)])])
    assert comparison.join(runs)[0]["share_of_full"] is None
    assert cells(comparison.table(comparison.join(runs)))[1][4] == "-"


def test_table(tmp_path: Path) -> None:
    runs = comparison.read_runs([evaluation(tmp_path / "a"), evaluation(tmp_path / "b", OTHERS)], ["one", "two"])
    header, *rows = cells(comparison.table(comparison.join(runs)))
    assert header[:5] == ["run", "method", "ROUGE-L", "BLEU", "chrF"]
    assert header[5:] == ["of full", "target", "realised", "measured", "mean depth"]
    assert rows[1] == ["one", "skipdecode 5x", "70.0 ± 1.5", "60.0", "-", "87.5%", "8.00x", "2.00x", "4.00x", "3.0"]
    assert rows[4][2] == "40.0"
    assert rows[6] == ["two", "free 0.5", "40.0 ± 1.5", "30.0", "50.0", "50.0%", "6.00x", "1.50x", "-", "4.0"]
    assert len(rows) == 7


def test_runs_on_different_inputs_are_refused(tmp_path: Path) -> None:
    first = evaluation(tmp_path / "a")
    fewer = evaluation(tmp_path / "fewer", samples=INPUTS[:1])
    other = evaluation(tmp_path / "other", samples=[INPUTS[0], sample("r")])
    answers = evaluation(tmp_path / "answers", samples=[sample("p", references=["three"]), INPUTS[1]])
    same = "runs must have had the same inputs, but 'a'"
    with pytest.raises(ValueError, match=f"^{same} has 2 of them and 'fewer' 1$"):
        comparison.read_runs([first, fewer])
    with pytest.raises(ValueError, match=f"^{same} and 'other' differ in the prompt of input 2$"):
        comparison.read_runs([first, other])
    with pytest.raises(ValueError, match=f"^{same} and 'answers' differ in the references of input 1$"):
        comparison.read_runs([first, answers])


OLD = {name: value for name, value in FULL.items() if name != "label"}


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"results_text": "[{"}, "results.json: not valid JSON"),
        ({"results_text": "{}"}, "results.json: must hold a list of results, as skipjax evaluate writes it"),
        ({"results_text": "[]"}, "results.json: must hold a list of results"),
        (
            {"results_text": json.dumps([OLD])},
            "results.json: has results without 'label', as older versions wrote them",
        ),
        ({"results_text": json.dumps(SEVERAL[1:])}, "results.json: must begin with full depth, got 'skipdecode 5x'"),
        ({"samples_text": '{"prompt": "p"}\n'}, "samples.jsonl: must hold a prompt and references in each line"),
        ({"samples_text": "[]x\n"}, "samples.jsonl: not valid JSON"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, files: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        comparison.read_runs([evaluation(tmp_path / "a", **files)])


def test_names(tmp_path: Path) -> None:
    first, second = evaluation(tmp_path / "a"), evaluation(tmp_path / "b")
    assert [run.name for run in comparison.read_runs([first, first], ["x", "y"])] == ["x", "y"]
    with pytest.raises(ValueError, match="runs must have different names, got a, a: give them with --name A,B"):
        comparison.read_runs([first, first])
    with pytest.raises(ValueError, match="--name must give one name for each of the 2 runs, got 1"):
        comparison.read_runs([first, second], ["x"])
    with pytest.raises(ValueError, match="--full must be one of 'a', 'b', got 'c'"):
        comparison.join(comparison.read_runs([first, second]), "c")
    with pytest.raises(FileNotFoundError, match=r"nowhere/results\.json: no such file, skipjax evaluate --out writes"):
        comparison.read_runs([first, tmp_path / "nowhere"])


# The program


def run_program(*arguments: str | Path) -> Result:
    from skipjax.main import app

    return CliRunner().invoke(app, ["compare", *map(str, arguments)])


def test_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(pictures, "pareto", lambda results, path: drawn.append((results, path)))
    runs = evaluation(tmp_path / "a"), evaluation(tmp_path / "b", OTHERS)
    out = tmp_path / "new" / "out"
    shown = run_program(*runs, "--name", "x,y", "--full", "y", "--out", out)
    assert shown.exit_code == 0, shown.output
    results = comparison.join(comparison.read_runs(runs, ["x", "y"]), "y")
    assert json.loads((out / "results.json").read_text()) == results
    assert (out / "table.md").read_text() == comparison.table(results) + "\n"
    assert drawn == [(results, out / "pareto.png")]
    assert shown.output.startswith(comparison.table(results) + "\nwrote results.json, table.md and pareto.png to ")

    before = (runs[0] / "results.json").read_text()
    assert str(run_program(*runs, "--out", runs[0]).exception).startswith(
        "--out must not be one of the runs to compare"
    )
    assert (runs[0] / "results.json").read_text() == before
    assert str(run_program(*runs, "--out", runs[0] / "results.json").exception).startswith("--out must be a directory")


def test_results_of_others_are_kept(tmp_path: Path) -> None:
    runs = evaluation(tmp_path / "a"), evaluation(tmp_path / "b", OTHERS)
    third = evaluation(tmp_path / "c")
    before = (third / "results.json").read_text()
    assert "holds an evaluation (samples.jsonl): give another" in str(run_program(*runs, "--out", third).exception)
    assert (third / "results.json").read_text() == before
    said = str(run_program(*runs, "--out", third / "results.json" / "below").exception)
    assert said.endswith("below: cannot be made (Not a directory)")
    ours = tmp_path / "compared"
    ours.mkdir()
    (ours / "results.json").write_text(json.dumps(comparison.join(comparison.read_runs(runs))))
    comparison.check_out(ours)  # an earlier comparison may be replaced
    with pytest.raises(ValueError, match="holds results that are no evaluation's"):
        evaluation_report.check_out(ours)
    evaluation_report.check_out(third)


def test_program_needs_no_jax(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    arguments = [str(evaluation(tmp_path / name, rows)) for name, rows in (("a", SEVERAL), ("b", OTHERS))]
    script = (
        "import atexit, sys; from skipjax import main; atexit.register(lambda: print(*sys.modules)); "
        f"sys.argv = ['skipjax', 'compare', *{arguments!r}, '--out', {str(tmp_path / 'out')!r}]; main.main()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    modules = done.stdout.splitlines()[-1].split()
    assert "skipjax.comparison" in modules
    assert not {"jax", "flax", "orbax", "transformers", "torch", "datasets", "sacrebleu"} & set(modules)
    assert (tmp_path / "out" / "pareto.png").read_bytes().startswith(b"\x89PNG")

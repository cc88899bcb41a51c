import dataclasses
import gzip
import json
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_training
from tiny_models import tiny_config
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers
from typer.testing import CliRunner, Result

from skipjax import checkpoint, decoder, evaluation, evaluation_report, flags, metrics, settings, tables
from skipjax.adaptive import AdaptiveThreshold
from skipjax.evaluation import Input
from skipjax.evaluation_log import Entry
from skipjax.generation import Generation, generate
from skipjax.huggingface import export_hf
from skipjax.language_model import LanguageModel
from skipjax.methods import METHODS, Calm, Free, Full, Method, SkipDecode, StaticExit
from skipjax.recorded import Recorded
from skipjax.sampling import Sampling
from skipjax.settings import Setting
from skipjax.tokenizer import Tokenizer

WORDS = 40
SPECIAL = {"vocab_size": WORDS + 2, "bos_id": None, "eos_ids": (0,), "pad_id": 1}
CONFIG = tiny_config(**SPECIAL)
PROMPTS = ["w1 w2 w3", "w4", "w5 w6", "w7 w8 w9 w10 w11", "w12 w13 w14"]
NEW = 6


def word_tokenizer() -> Tokenizer:
    vocabulary = {"<eos>": 0, "<pad>": 1, **{f"w{index}": index + 2 for index in range(WORDS)}}
    backend = Backend(models.WordLevel(vocabulary, unk_token="w0"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return Tokenizer(backend, {"eos_token": "<eos>", "pad_token": "<pad>"})


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    return LanguageModel(CONFIG, decoder.init_params(CONFIG, 0), word_tokenizer())


@pytest.fixture(scope="module")
def full_texts(lm: LanguageModel) -> list[str]:
    texts = [text for out in in_pairs(lm, Full()) for text in out.texts or []]
    assert all(texts), "the seed must give a model that says something"
    return texts


def in_pairs(lm: LanguageModel, method: Method) -> list[Generation]:
    """The same batch shapes as an evaluation with batch size 2, so that programs are compiled only once."""
    return [generate(lm, PROMPTS[i : i + 2], method, max_new_tokens=NEW) for i in range(0, len(PROMPTS), 2)]


def evaluate_quietly(*args: Any, **kwargs: Any) -> evaluation.Evaluation:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "this checkpoint records no")
        return evaluation.evaluate(*args, **kwargs)


# Inputs


def test_rows_with_the_same_prompt_are_one_input() -> None:
    grouped = evaluation.group(["p", "q", "p", "r"], ["one", "two", "three", " "])
    assert grouped == [Input("p", ("one", "three")), Input("q", ("two",))]
    assert evaluation.group(["p", "q", "p"], ["one", "two", "three"], limit=1) == [Input("p", ("one", "three"))]
    with pytest.raises(ValueError, match="all targets are empty"):
        evaluation.group(["p"], [""])


@pytest.mark.parametrize("kind", ["csv", "jsonl", "json", "csv.gz"])
def test_reads_files(tmp_path: Path, kind: str) -> None:
    records = [
        {"mr": "name[A]", "ref": "A it is."},
        {"mr": "name[B]", "ref": "B."},
        {"mr": "name[A]", "ref": "It's A."},
    ]
    if kind.startswith("csv"):
        content = "mr,ref\n" + "".join(f"{record['mr']},{record['ref']}\n" for record in records)
    else:
        content = json.dumps(records) if kind == "json" else "".join(json.dumps(record) + "\n" for record in records)
    path = tmp_path / f"data.{kind}"
    path.write_bytes(gzip.compress(content.encode()) if kind.endswith(".gz") else content.encode())
    inputs = evaluation.read_inputs(path, "{mr} ->", "ref")
    assert inputs == [Input("name[A] ->", ("A it is.", "It's A.")), Input("name[B] ->", ("B.",))]
    assert evaluation.read_inputs(path, "{mr} ->", "ref", limit=1) == inputs[:1]


def test_bad_data(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("mr,ref\na,b\n")
    (tmp_path / "empty.csv").write_text("mr,ref\n")
    with pytest.raises(FileNotFoundError, match=r"missing\.csv"):
        evaluation.read_inputs(tmp_path / "missing.csv", "{mr} ->", "ref")
    with pytest.raises(ValueError, match="target_column names the column 'refs', but the data has 'mr', 'ref'"):
        evaluation.read_inputs(path, "{mr} ->", "refs")
    with pytest.raises(ValueError, match="prompt_template names the column 'name'"):
        evaluation.read_inputs(path, "{name} ->", "ref")
    with pytest.raises(ValueError, match=r"prompt_template must hold a \{column\} field, got 'no field'"):
        evaluation.read_inputs(path, "no field", "ref")
    with pytest.raises(ValueError, match=r"empty\.csv"):
        evaluation.read_inputs(tmp_path / "empty.csv", "{mr} ->", "ref")
    with pytest.raises(ValueError, match="limit must be an integer of at least 1, got 0"):
        evaluation.read_inputs(path, "{mr} ->", "ref", limit=0)


# Settings


def test_against_full() -> None:
    chosen = [Setting(SkipDecode(5, 3)), Setting(Free(2))]
    assert settings.against_full(chosen) == [settings.FULL, *chosen]
    assert settings.against_full([Setting(Full()), *chosen]) == [settings.FULL, *chosen]


def test_number_flags() -> None:
    assert settings.numbers("--speedup", ["1,2.5", " 3 "], float) == [1, 2.5, 3]
    assert settings.numbers("--batch-size", [], int) == []
    with pytest.raises(ValueError, match="--batch-size must be whole numbers separated by commas, got '1,x'"):
        settings.numbers("--batch-size", ["1,x"], int)


def test_markdown_table() -> None:
    assert tables.markdown(["a", "bb"], [["long", "1"], ["x", "234"]]).split("\n") == [
        "| a    |  bb |",
        "| ---- | --: |",
        "| long |   1 |",
        "| x    | 234 |",
    ]


# The loop


def test_full_depth_is_the_yardstick(lm: LanguageModel, full_texts: list[str]) -> None:
    # The references are what the model says at full depth, so full depth must score 100, in the order of the data
    # although batches are in the order of lengths and the last one is smaller.
    inputs = [Input(prompt, ("q", text)) for prompt, text in zip(PROMPTS, full_texts, strict=True)]
    compared = [Setting(SkipDecode(4, 4)), Setting(SkipDecode(3, 2), 1.6)]
    evaluated = evaluate_quietly(lm, inputs, compared, batch_size=2, max_new_tokens=NEW)
    full, all_layers, less = evaluated.results
    assert [result.setting for result in evaluated.results] == [settings.FULL, *compared]
    assert evaluated.texts[0] == evaluated.texts[1] == full_texts
    assert evaluated.texts[2] != full_texts
    assert any(len(text.split()) == 1 for text in full_texts)  # it has no bigram, so ROUGE-2 is 80
    for result in (full, all_layers):
        assert [score.value for score in result.scores.values()] == pytest.approx([100, 100, 80, 100, 100])
        assert (result.realised_speedup, result.mean_depth, result.share_of_full) == (1, 4, 1)
        assert (result.max_depth, result.min_depth, result.inputs, result.same_texts) == (4, 4, 5, 1)
    assert full.measured_speedup == 1
    assert less.scores["rougeL"].value < 100
    assert less.share_of_full == pytest.approx(less.scores["rougeL"].value / 100)
    # Full depth scores 100 for every input, so the shares are those of the method's own scores.
    assert less.share_of_full_interval == pytest.approx([end / 100 for end in less.scores["rougeL"].interval])
    assert full.share_of_full_interval == (1, 1)
    same = sum(text == full for text, full in zip(evaluated.texts[2], full_texts, strict=True))
    assert less.same_texts == pytest.approx(same / 5)
    assert (less.max_depth, less.min_depth, less.target_speedup) == (3, 2, 1.6)
    outs = in_pairs(lm, SkipDecode(3, 2))
    mean_depth = sum(out.depths.sum() for out in outs) / sum(out.lengths.sum() for out in outs)
    assert less.mean_depth == pytest.approx(mean_depth)
    assert less.realised_speedup == pytest.approx(4 / mean_depth)
    assert less.measured_speedup is not None
    assert less.measured_speedup > 0


FREE = Free(1, -1.0, buffer_size=2)  # every token leaves, except those of the prompt pass
EXACT = dataclasses.replace(FREE, verify="exact")


def test_methods_with_exits() -> None:
    config = dataclasses.replace(CONFIG, num_layers=2)
    lm = LanguageModel(config, decoder.init_params(config, 0), word_tokenizer())
    inputs = [Input(prompt, ("w1 w2",)) for prompt in PROMPTS[:2]]
    compared = [Setting(method) for method in (FREE, EXACT, StaticExit(1), Calm(-1.0, 1))]
    evaluated = evaluate_quietly(lm, inputs, compared, batch_size=2, max_new_tokens=NEW)
    full, free, exact, static, calm = evaluated.results
    assert evaluated.texts[2] == evaluated.texts[0]
    assert evaluated.texts[1] == evaluated.texts[3] != evaluated.texts[0]
    assert exact.same_texts == 1
    assert free.same_texts == static.same_texts < 1
    depths = [(result.max_depth, result.min_depth) for result in evaluated.results]
    assert depths == [(2, 2), (2, 1), (2, 1), (1, 1), (2, 1)]
    assert [result.exits.threshold for result in evaluated.results] == [None, -1, -1, None, -1]
    # Where all leave, only the tokens of the prompt pass, one a text, are from the last layer.
    tokens = round(2 / (1 - free.exits.exit_share))
    assert free.exits.exit_share == static.exits.exit_share == calm.exits.exit_share == (tokens - 2) / tokens
    assert free.mean_depth == (2 * 2 + 1 * (tokens - 2)) / tokens
    assert full.exits == evaluation.Exits(None, None, None, None, None)
    assert (static.exits.deep_passes, static.exits.acceptance_rate, free.exits.acceptance_rate) == (None, None, None)
    assert free.exits.deep_passes > 0
    assert 1 < free.exits.tokens_per_deep_pass <= 2
    assert 0 <= exact.exits.acceptance_rate < 1
    assert exact.target_speedup == 2
    assert all(result.measured_speedup > 0 for result in evaluated.results)
    header, _, *rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in evaluation_report.table(evaluated).splitlines()
    ]
    assert header[12:17] == ["mean depth", "exits", "threshold", "tokens/pass", "accepted"]
    assert [row[0] for row in rows] == ["full", "free -1", "free -1 exact", "static-exit 1", "calm -1"]
    assert [row[1] for row in rows] == ["2", "1/2", "1/2", "1", "1-2"]
    assert rows[2][8] == "100.0%"
    results = [result.to_json() for result in evaluated.results]
    assert json.loads(json.dumps(results)) == results
    assert results[2]["arguments"] == dataclasses.asdict(EXACT)
    assert results[2]["confidence"] == "margin"
    assert results[2]["exit_share"] == exact.exits.exit_share


def test_an_adaptive_threshold_learns_from_batch_to_batch(
    lm: LanguageModel, full_texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    adaptive, calls = dataclasses.replace(FREE, adaptive=True), []

    def learning(lm: LanguageModel, prompts: Any, method: Method, *, adaptive_threshold: Any, **rest: Any) -> Any:
        out = generate(lm, prompts, Full(), **rest)  # nothing has to be compiled for this
        calls.append((method, adaptive_threshold))
        learnt = (adaptive_threshold or AdaptiveThreshold()).after([0.5], [1]) if method == adaptive else None
        return dataclasses.replace(out, adaptive_threshold=learnt)

    monkeypatch.setattr(evaluation, "generate", learning)
    inputs = [Input(prompt, (text,)) for prompt, text in zip(PROMPTS, full_texts, strict=True)]
    evaluate_quietly(lm, inputs, [Setting(adaptive)], batch_size=2, max_new_tokens=NEW)
    assert [state for method, state in calls if method == Full()] == [None] * 3
    first, *later = [state for method, state in calls if method == adaptive]
    assert first is None
    assert [len(state.confidences) for state in later] == [1, 2]


def test_encoder_decoder_models() -> None:
    config = dataclasses.replace(tiny_training.T5, **SPECIAL)
    lm = LanguageModel(config, decoder.init_params(config, 0), word_tokenizer())
    inputs = [Input(prompt, ("w1",)) for prompt in PROMPTS[:2]]
    compared = [Setting(EXACT), Setting(StaticExit(1))]
    evaluated = evaluate_quietly(lm, inputs, compared, batch_size=2, max_new_tokens=NEW)
    full, exact, static = evaluated.results
    assert evaluated.texts[1] == evaluated.texts[0]
    assert (full.num_layers, exact.same_texts, exact.target_speedup) == (3, 1, 3)
    assert (static.mean_depth, static.exits.exit_share) == (1, 1)  # the start token exits too
    assert all(result.measured_speedup > 0 for result in evaluated.results)


def test_positions(lm: LanguageModel) -> None:
    out = in_pairs(lm, Full())[0]
    nan = np.nan
    # Texts of 3 and 1 tokens, and of 4; pads have depth 0.
    first = dataclasses.replace(
        out,
        lengths=np.array([3, 1], np.int32),
        depths=np.array([[4, 2, 2, 0, 0, 0], [4, 0, 0, 0, 0, 0]], np.int32),
        confidences=np.array([[nan, 0.5, 0.75, nan, nan, nan], [nan] * 6], np.float32),
    )
    second = dataclasses.replace(
        out,
        lengths=np.array([4], np.int32),
        depths=np.array([[4, 4, 2, 1, 0, 0]], np.int32),
        confidences=np.array([[nan, 0.25, nan, 0.5, nan, nan]], np.float32),
    )
    positions = evaluation.Positions.of([first, second], exits=True)
    assert positions.tokens == [3, 2, 2, 1]
    assert positions.mean_depth == [4, 3, 2, 1]
    assert positions.exit_share == [0, 0.5, 1, 1]
    assert positions.confidence == [None, 0.375, 0.75, 0.5]
    assert evaluation.Positions.of([first], exits=False).exit_share is None
    sure = dataclasses.replace(first, confidences=np.full((2, 6), nan, np.float32))
    assert evaluation.Positions.of([sure], exits=True).confidence is None


def test_written_files(lm: LanguageModel, full_texts: list[str], tmp_path: Path) -> None:
    inputs = [Input(prompt, (text,)) for prompt, text in zip(PROMPTS, full_texts, strict=True)]
    evaluated = evaluate_quietly(lm, inputs, [Setting(SkipDecode(3, 2), 1.6)], batch_size=2, max_new_tokens=NEW)
    out = tmp_path / "new" / "out"
    names = evaluation_report.write(evaluated, out)
    assert sorted(names) == sorted(path.name for path in out.iterdir())
    assert "texts.html" in names
    assert ("pareto.png" in names, "depths.png" in names, "exits.png" in names) == (
        *[evaluation_report.can_draw()] * 2,
        False,
    )
    results = json.loads((out / "results.json").read_text())
    assert [(entry["method"], entry["speedup"]) for entry in results] == [("full", 1.0), ("skipdecode", 1.6)]
    assert [entry["label"] for entry in results] == ["full", "skipdecode 1.6x"]
    keys = "label method speedup confidence arguments num_layers max_depth min_depth target_speedup realised_speedup"
    keys += " measured_speedup mean_depth positions share_of_full share_of_full_interval same_texts inputs"
    keys += " tokens_per_second seconds compile_seconds threshold exit_share deep_passes tokens_per_deep_pass"
    keys += " acceptance_rate rougeL rouge1 rouge2 bleu chrf"
    intervals = {f"{name}_interval" for name in ("rougeL", "rouge1", "rouge2", "bleu", "chrf")}
    assert all(set(entry) == {*keys.split(), *intervals} for entry in results)
    less = evaluated.results[1]
    assert results[1]["rougeL"] == less.scores["rougeL"].value
    assert results[1]["rougeL_interval"] == list(less.scores["rougeL"].interval or ())
    assert results[1]["positions"] == dataclasses.asdict(less.positions)
    arguments = {"max_depth": 3, "min_depth": 2, "warmup_layers": 1, "shape": "linear"}
    arguments |= {"horizon": None, "max_segments": None}
    assert [entry["arguments"] for entry in results] == [{}, arguments]
    assert results[1]["exit_share"] is None
    table = (out / "table.md").read_text()
    assert "exits" not in table
    assert table == evaluation_report.table(evaluated) + "\n"
    assert len(table.splitlines()) == 4
    assert "| 100.0 ± 0.0 |" in table
    samples = [json.loads(line) for line in (out / "samples.jsonl").read_text().splitlines()]
    assert samples == evaluated.samples()
    assert [sample["prompt"] for sample in samples] == PROMPTS
    assert [sample["references"] for sample in samples] == [[text] for text in full_texts]
    assert [sample["texts"]["full"] for sample in samples] == full_texts
    assert [sample["texts"]["skipdecode 1.6x"] for sample in samples] == evaluated.texts[1]
    for sample in samples:
        for label, tokens in sample["tokens"].items():
            assert "".join(tokens["pieces"]) == sample["texts"][label]
            assert len(tokens["depths"]) == len(tokens["pieces"])
            assert tokens["depths"][0] == 4
            assert set(tokens["depths"][1:]) <= ({4} if label == "full" else {3, 2})


def test_only_the_first_inputs_keep_their_tokens(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "SHADED", 2)
    inputs = [Input(prompt, ("w1",)) for prompt in PROMPTS]
    samples = evaluate_quietly(lm, inputs, [], batch_size=2, max_new_tokens=NEW).samples()
    assert ["tokens" in sample for sample in samples] == [True, True, False, False, False]
    assert "".join(samples[0]["tokens"]["full"]["pieces"]) == samples[0]["texts"]["full"]


def test_metrics_that_are_asked_for(lm: LanguageModel, full_texts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "generate", Counted())  # FREE need not be compiled for this
    inputs = [Input(prompt, (text,)) for prompt, text in zip(PROMPTS, full_texts, strict=True)]
    compared = [Setting(SkipDecode(3, 2)), Setting(FREE)]
    names = ["perplexity", "f1"]
    evaluated = evaluate_quietly(lm, inputs, compared, metric_names=names, batch_size=2, max_new_tokens=NEW)
    full, skip, free = evaluated.results
    assert full.scores.keys() == {"perplexity", "f1", "rougeL", "bleu"}
    assert full.scores["f1"].value == 100
    assert full.scores["perplexity"].value != skip.scores["perplexity"].value
    assert free.scores["perplexity"] == metrics.Score(None)
    assert free.to_json()["perplexity"] is None
    header, _, *rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in evaluation_report.table(evaluated).splitlines()
    ]
    assert header[:5] == ["method", "depths", "perplexity", "F1", "of full"]
    assert re.fullmatch(r"[0-9.]+ ± [0-9.]+", rows[0][2])
    assert rows[2][2] == "-"
    with pytest.raises(ValueError, match=r"metric must be one of .*'rougeL'.*, got 'rouge'"):
        evaluation.evaluate(lm, inputs, [], metric_names=["rouge"], max_new_tokens=NEW)
    with pytest.raises(ValueError, match="bertscore needs a local encoder"):
        evaluation.evaluate(lm, inputs, [], metric_names=["bertscore"], max_new_tokens=NEW)
    with pytest.raises(ValueError, match="--bertscore-model goes with --metric bertscore"):
        evaluation.evaluate(lm, inputs, [], bertscore_model=Path("roberta-large"), max_new_tokens=NEW)


# Going on after an interruption


class StoppedError(Exception):
    """In place of a signal."""


class Counted:
    """`generate` that counts its calls, stops at one of them, and whose adaptive methods learn a pair each time."""

    def __init__(self, stop_at: int | None = None):
        self.stop_at, self.methods, self.estimators = stop_at, [], []

    def __call__(self, lm: LanguageModel, prompts: Any, method: Method, *, adaptive_threshold: Any, **rest: Any) -> Any:
        if len(self.methods) == self.stop_at:
            raise StoppedError
        self.methods.append(method)
        self.estimators.append(adaptive_threshold)
        out = generate(lm, prompts, method if isinstance(method, SkipDecode) else Full(), **rest)
        if not isinstance(method, Free) or not method.adaptive:
            return out
        before = adaptive_threshold or AdaptiveThreshold()
        confidence = 0.1 * (1 + len(before.confidences))
        learnt = before.after([confidence, confidence + 0.05], [len(before.confidences) % 4 == 2] * 2)
        return dataclasses.replace(out, adaptive_threshold=learnt)


COMPARED = [Setting(SkipDecode(3, 2)), Setting(dataclasses.replace(FREE, adaptive=True))]


def logged(
    lm: LanguageModel,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    stop_at: int | None = None,
    compared: list[Setting] = COMPARED,
    **changes: Any,
) -> tuple[evaluation.Evaluation | None, Counted]:
    """An evaluation in 3 batches, and the calls of `generate`; None where it was stopped."""
    counted = Counted(stop_at)
    monkeypatch.setattr(evaluation, "generate", counted)
    inputs = [Input(prompt, ("w1 w2 w3",)) for prompt in PROMPTS]
    arguments = {"batch_size": 2, "max_new_tokens": NEW, "metric_names": ["perplexity"], **changes}
    try:
        return evaluate_quietly(lm, inputs, compared, log=path, **arguments), counted
    except StoppedError:
        return None, counted


def without_times(evaluated: evaluation.Evaluation | None) -> list[dict[str, Any]]:
    assert evaluated is not None
    timed = ("measured_speedup", "tokens_per_second", "seconds", "compile_seconds")
    results = [result.to_json() for result in evaluated.results]
    return [{name: value for name, value in one.items() if name not in timed} for one in results]


def test_an_interrupted_evaluation_goes_on(lm: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, counted = logged(lm, tmp_path / "whole.jsonl", monkeypatch)
    assert len(counted.methods) == 9
    path = tmp_path / "new" / "progress.jsonl"
    assert logged(lm, path, monkeypatch, stop_at=5)[0] is None
    assert len(path.read_bytes().splitlines()) == 6
    with path.open("ab") as file:
        file.write(b'{"batch": 1, "setting": 2, "texts": ["w1')  # killed while it wrote
    resumed, again = logged(lm, path, monkeypatch)
    assert again.methods == counted.methods[5:]
    assert again.estimators == counted.estimators[5:]
    assert again.estimators[0] is not None
    assert len(again.estimators[0].confidences) == 2
    assert without_times(resumed) == without_times(whole)
    assert resumed is not None
    assert whole is not None
    assert (resumed.texts, resumed.shaded) == (whole.texts, whole.shaded)
    lines = path.read_bytes()
    finished, none = logged(lm, path, monkeypatch)
    assert none.methods == []
    assert finished is not None
    # Nothing is run again, so even the times are those of before.
    assert [result.to_json() for result in finished.results] == [result.to_json() for result in resumed.results]
    assert path.read_bytes() == lines


def test_times_of_two_runs_are_not_compared(lm: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "progress.jsonl"
    assert logged(lm, path, monkeypatch, stop_at=2, batch_size=len(PROMPTS))[0] is None
    resumed, again = logged(lm, path, monkeypatch, batch_size=len(PROMPTS))
    assert len(again.methods) == 1
    assert resumed is not None
    full, other, resumed_one = resumed.results
    assert full.measured_speedup == 1
    assert other.measured_speedup is not None
    assert resumed_one.measured_speedup is None
    assert resumed_one.speedup == resumed_one.realised_speedup
    assert [json.loads(line)["session"] for line in path.read_text().splitlines()[1:]] == [0, 0, 1]


def test_an_evaluation_killed_before_its_first_line_begins_anew(
    lm: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "progress.jsonl"
    path.write_bytes(b'{"asked": {"form')
    evaluated, counted = logged(lm, path, monkeypatch, compared=[])
    assert evaluated is not None
    assert len(counted.methods) == 3
    assert all(json.loads(line) for line in path.read_bytes().splitlines())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"batch_size": 3}, "with batch_size 2, and this one has 3: give another --out"),
        ({"max_new_tokens": 5}, "with max_new_tokens 6, and this one has 5"),
        ({"sampling": Sampling(seed=1)}, "with sampling .*'seed': 0.*, and this one has .*'seed': 1"),
        ({"compared": [Setting(StaticExit(2))]}, "with settings full, and this one has full, static-exit 2"),
        ({"metric_names": ["bleu"]}, "with perplexity True, and this one has False"),
    ],
)
def test_a_log_of_another_evaluation_is_left_alone(
    lm: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], said: str
) -> None:
    path = tmp_path / "progress.jsonl"
    logged(lm, path, monkeypatch, stop_at=1, compared=[])
    before = path.read_bytes()
    with pytest.raises(ValueError, match=said):
        logged(lm, path, monkeypatch, **{"compared": [], **changes})
    other = LanguageModel(CONFIG, decoder.init_params(CONFIG, 1), lm.tokenizer)
    with pytest.raises(ValueError, match=r"with weights [0-9a-f]{64}, and this one has"):
        logged(other, path, monkeypatch, compared=[])
    assert path.read_bytes() == before


def test_a_damaged_log_is_named(lm: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "progress.jsonl"
    logged(lm, path, monkeypatch, stop_at=2, compared=[])
    first, second, third = path.read_text().splitlines()
    path.write_text("\n".join([first, third, ""]))
    with pytest.raises(ValueError, match=r"progress.jsonl: line 2 is damaged \(expected batch 0 with setting 0\)"):
        logged(lm, path, monkeypatch, compared=[])
    entry = json.loads(second)
    for changes in (
        {"texts": [5, *entry["texts"][1:]]},
        {"texts": entry["texts"][1:]},
        {"texts": None},
        {name: entry[name][1:] for name in ("tokens", "depths", "confidences")},
        {"session": None},
    ):
        path.write_text("\n".join([first, json.dumps({**entry, **changes}), third, ""]))
        with pytest.raises(ValueError, match=r"progress.jsonl: line 2 is damaged \("):
            logged(lm, path, monkeypatch, compared=[])
    path.write_text("\n".join([first, second[:40], third, ""]))
    with pytest.raises(ValueError, match=r"progress\.jsonl: damaged, remove it to begin anew"):
        logged(lm, path, monkeypatch, compared=[])


def test_a_kept_adaptive_threshold_is_the_same_to_the_last_bit(lm: LanguageModel) -> None:
    before = AdaptiveThreshold(blend="hard").after([0.1, 0.2, 0.8, 0.9], [0, 0, 1, 1])
    after = before.after([0.3, 0.7123456], [1, 0])
    out = generate(lm, PROMPTS[:2], Full(), max_new_tokens=NEW)
    data = json.loads(json.dumps(Entry(out, after, [(1.5, 2)], 0).to_json(before)))
    assert len(data["learnt"]["confidences"]) == 2
    entry = Entry.from_json(data, NEW, 1, before)
    assert entry.learnt == after
    assert entry.losses == [(1.5, 2)]
    for name in ("tokens", "lengths", "depths", "confidences"):
        np.testing.assert_array_equal(getattr(entry.out, name), getattr(out, name))
        assert getattr(entry.out, name).dtype == getattr(out, name).dtype
    assert (entry.out.texts, entry.out.finish_reasons) == (out.texts, out.finish_reasons)
    stats = {**dataclasses.asdict(out.stats), "exits": out.stats.exits.tolist()}
    assert {**dataclasses.asdict(entry.out.stats), "exits": entry.out.stats.exits.tolist()} == stats


# Other requests


def test_one_new_token_needs_no_decode_step(lm: LanguageModel) -> None:
    evaluated = evaluate_quietly(lm, [Input("w1", ("zzz",))], [], max_new_tokens=1)
    assert evaluated.results[0].measured_speedup is None
    assert evaluated.results[0].share_of_full is None
    assert "| -" in evaluation_report.table(evaluated)


def test_bad_requests(lm: LanguageModel) -> None:
    inputs = [Input("w1", ("w2",))]
    with pytest.raises(ValueError, match="needs a tokenizer"):
        evaluation.evaluate(LanguageModel(CONFIG, lm.params), inputs, [])
    with pytest.raises(ValueError, match="at least one input"):
        evaluation.evaluate(lm, [], [])
    with pytest.raises(ValueError, match="batch_size must be"):
        evaluation.evaluate(lm, inputs, [], batch_size=0)
    with pytest.raises(ValueError, match="prompt 0 has 1 tokens; with max_new_tokens=64"):
        evaluation.evaluate(lm, inputs, [])
    with pytest.raises(ValueError, match="max_depth"):
        evaluation.evaluate(lm, inputs, [Setting(SkipDecode(5, 4))], max_new_tokens=NEW)


def test_untrained_schedules_are_warned_of(lm: LanguageModel) -> None:
    fresh = LanguageModel(CONFIG, lm.params, lm.tokenizer, programs=lm.programs)
    with pytest.warns(UserWarning, match="records no schedule"):
        evaluation.evaluate(fresh, [Input("w1", ("w2",))], [Setting(SkipDecode(3, 2))], max_new_tokens=NEW)


# The program


@pytest.fixture(scope="module")
def model(lm: LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("model") / "tiny"
    export_hf(lm, directory)
    return str(directory)


def run_program(*arguments: str) -> Result:
    from skipjax.main import app

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "this checkpoint")
        return CliRunner().invoke(app, ["evaluate", *arguments])


def test_program(model: str, full_texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data.jsonl"
    rows = [{"mr": prompt, "ref": text} for prompt, text in zip(PROMPTS, full_texts, strict=True)]
    data.write_text("".join(json.dumps(row) + "\n" for row in [*rows, *rows]))
    arguments = ["--model", model, "--data", str(data), "--prompt-template", "{mr}", "--target-column", "ref"]
    numbers = ["--max-new-tokens", str(NEW), "--batch-size", "2", "--limit", "2", "--out", str(tmp_path / "out")]
    result = run_program(*arguments, "--speedup", "1", "1.3", "--metric", "f1", *numbers)
    assert result.exit_code == 0, result.output
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [(entry["method"], entry["speedup"]) for entry in results] == [("full", 1.0), ("skipdecode", 1.3)]
    assert [entry["inputs"] for entry in results] == [2, 2]
    assert results[0]["rougeL"] == pytest.approx(100)
    assert "2 inputs, 4 references" in result.output
    assert re.search(r"\| skipdecode 1.3x +\|", result.output)
    assert re.search(r"method +\| depths +\| +F1 +\| of full", result.output)
    assert f"wrote results.json, table.md, samples.jsonl, texts.html, pareto.png, depths.png to {tmp_path / 'out'}" in (
        result.output
    )
    monkeypatch.setattr(evaluation_report, "can_draw", lambda: False)
    again = run_program(*arguments, "--speedup", "1", "1.3", "--metric", "f1", *numbers)  # all is there already
    assert again.output.startswith("pictures will not be drawn: matplotlib is not installed")
    assert f"wrote results.json, table.md, samples.jsonl, texts.html to {tmp_path / 'out'}" in again.output
    assert json.loads((tmp_path / "out" / "results.json").read_text()) == results

    result = run_program(*arguments, "--speedup", "1.2", *numbers)
    assert "with settings full, skipdecode 1.3x, and this one has full, skipdecode 1.2x" in str(result.exception)

    result = run_program(*arguments, "--speedup", "2,fast")
    assert str(result.exception) == "--speedup must be numbers separated by commas, got '2,fast'"
    result = run_program(*arguments, "--out", str(data))
    assert str(result.exception).startswith("--out must be a directory, got the file")
    result = run_program(*arguments, "--method", "skipdecod")
    assert "did you mean 'skipdecode'?" in str(result.exception)


def test_flags_name_every_method() -> None:
    from skipjax.main import app

    text = CliRunner().invoke(app, ["evaluate", "--help"]).output
    assert all(name in text for name in METHODS)


# Recommending a setting


def test_the_fastest_that_keeps_the_share() -> None:
    def result(share: float | None, realised: float, measured: float | None) -> evaluation.Result:
        fields = dict.fromkeys(field.name for field in dataclasses.fields(evaluation.Result))
        return evaluation.Result(
            **{**fields, "share_of_full": share, "realised_speedup": realised, "measured_speedup": measured}
        )

    full, two, three = result(1.0, 1.0, 1.0), result(0.995, 1.7, 1.5), result(0.97, 2.2, 1.9)
    slow = result(1.01, 3.0, 0.8)

    def fastest(share: float, *results: evaluation.Result) -> evaluation.Result:
        return evaluation.Evaluation([], (), list(results), [], []).fastest(share)

    assert fastest(0.99, full, two, three, slow) is two
    assert fastest(0.9, full, two, three, slow) is three
    assert fastest(1.0, full, two, three, slow) is full
    unmeasured = result(1.0, 2.5, None)
    assert fastest(1.0, full, unmeasured) is unmeasured
    with pytest.raises(ValueError, match="full depth has a ROUGE-L of 0"):
        fastest(0.9, result(None, 1.0, 1.0))


SCHEDULE = SkipDecode(3, 2, horizon=NEW)


@pytest.mark.parametrize(
    "method",
    [Full(), SkipDecode(4, 3, horizon=9), Free(2, 0.3, verify="exact"), StaticExit(2), Calm(0.5, 2, decay=1.0)],
)
def test_recommended_methods_are_kept_beside_those_trained_for(
    lm: LanguageModel, tmp_path: Path, method: Method
) -> None:
    trained = Recorded(SCHEDULE, exit_layers=(2,))
    checkpoint.save(dataclasses.replace(lm, recorded=trained), tmp_path / "model")
    checkpoint.recommend(tmp_path / "model", method)
    loaded = checkpoint.restore(tmp_path / "model")
    assert loaded.recorded == dataclasses.replace(trained, recommended=method)
    assert flags.recorded_methods(loaded) == (method, SCHEDULE)
    # A second one replaces the first.
    checkpoint.recommend(tmp_path / "model", StaticExit(1))
    assert checkpoint.restore(tmp_path / "model").recorded == dataclasses.replace(trained, recommended=StaticExit(1))


def test_a_recommended_schedule_does_not_count_as_trained_for(lm: LanguageModel, tmp_path: Path) -> None:
    checkpoint.save(dataclasses.replace(lm, recorded=None), tmp_path / "model")
    checkpoint.recommend(tmp_path / "model", SCHEDULE)
    loaded = checkpoint.restore(tmp_path / "model")
    loaded.programs |= lm.programs  # nothing has to be compiled for this
    assert loaded.recorded == Recorded(Full(), recommended=SCHEDULE)
    with pytest.warns(UserWarning, match=r"was trained for Full\(\), not for SkipDecode"):
        generate(loaded, PROMPTS[:2], SCHEDULE, max_new_tokens=NEW)


def test_records_of_bad_recommendations_are_refused() -> None:
    good = Recorded(Full(), recommended=Calm(0.5)).to_json()
    assert Recorded.from_json(good).recommended == Calm(0.5)
    for bad in ({"method": "magic"}, {"method": "calm"}, {"threshold": 0.5}, "calm", 3):
        with pytest.raises(ValueError, match="is not one this version knows"):
            Recorded.from_json({**good, "recommended": bad})


def test_program_recommends(lm: LanguageModel, model: str, full_texts: list[str], tmp_path: Path) -> None:
    data, directory = tmp_path / "data.jsonl", tmp_path / "model"
    rows = [{"mr": prompt, "ref": text} for prompt, text in zip(PROMPTS, full_texts, strict=True)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    checkpoint.save(dataclasses.replace(lm, recorded=Recorded(SCHEDULE)), directory)
    arguments = ["--data", str(data), "--prompt-template", "{mr}", "--target-column", "ref", "--limit", "2"]
    arguments += ["--max-new-tokens", str(NEW), "--speedup", "1.3", "--recommend", "1"]
    result = run_program("--model", str(directory), *arguments)
    assert result.exit_code == 0, result.output
    assert "recommended: full, 100.0% of full depth's ROUGE-L at 1.00x" in result.output
    assert checkpoint.restore(directory).recorded == Recorded(SCHEDULE, recommended=Full())
    result = run_program("--model", model, *arguments)
    assert f"--model {model} is none: skipjax convert {model} DIR makes one" in str(result.exception)
    assert "the embedded model is none" in str(run_program(*arguments).exception)
    result = run_program("--model", str(directory), "--heads", str(directory), *arguments)
    assert "--recommend goes without --heads" in str(result.exception)
    result = run_program("--model", str(directory), *arguments, "--recommend", "2")
    assert str(result.exception) == "--recommend must be a number at least 0 and at most 1, got 2.0"

import dataclasses
import gzip
import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import tiny_training
from tiny_models import tiny_config
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers
from typer.testing import CliRunner, Result

from skipjax import decoder, evaluation, settings, tables
from skipjax.adaptive import AdaptiveThreshold
from skipjax.evaluation import Input
from skipjax.generation import Generation, generate
from skipjax.huggingface import export_hf
from skipjax.language_model import LanguageModel
from skipjax.methods import METHODS, Calm, Free, Full, Method, SkipDecode, StaticExit
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


# Metrics


def test_rouge_l_known_values() -> None:
    # Longest common subsequence of 3 in 4 and 6 words: precision 3/4, recall 3/6, F1 0.6.
    assert evaluation.rouge_l(["a b c x"], [["a y b z c w"]]) == pytest.approx(60)
    # No stemming; capitals and punctuation do not count; the best reference does.
    assert evaluation.rouge_l(["cats sit"], [["cat sits"]]) == 0
    assert evaluation.rouge_l(["A cat sits."], [["nothing alike", "a cat sits"]]) == pytest.approx(100)
    assert evaluation.rouge_l(["a b", "q"], [["a b"], ["r"]]) == pytest.approx(50)
    assert evaluation.rouge_l([""], [["a b"]]) == 0


def test_bleu_known_values() -> None:
    texts = ["the cat sat on the mat", "a b c d"]
    # n-gram precisions 9/10, 7/8, 5/6, 3/4 and no brevity penalty; a reference more changes nothing for the first text.
    expected = 100 * (9 / 10 * 7 / 8 * 5 / 6 * 3 / 4) ** 0.25
    assert evaluation.bleu(texts, [["the cat sat on the mat", "no"], ["x b c d"]]) == pytest.approx(expected)
    assert evaluation.bleu(texts, [["no", "the cat sat on the mat"], ["x b c d"]]) == pytest.approx(expected)
    assert evaluation.bleu(texts, [["the cat sat on the mat"], ["x b c d", "a b c d"]]) == pytest.approx(100)


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
    for result in (full, all_layers):
        assert [result.rouge_l, result.bleu] == pytest.approx([100, 100])
        assert (result.realised_speedup, result.mean_depth, result.share_of_full) == (1, 4, 1)
        assert (result.max_depth, result.min_depth, result.inputs, result.same_texts) == (4, 4, 5, 1)
    assert full.measured_speedup == 1
    assert less.rouge_l < 100
    assert less.share_of_full == pytest.approx(less.rouge_l / 100)
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
    header, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in evaluated.table().splitlines()]
    assert header[9:14] == ["mean depth", "exits", "threshold", "tokens/pass", "accepted"]
    assert [row[0] for row in rows] == ["full", "free -1", "free -1 exact", "static-exit 1", "calm -1"]
    assert [row[1] for row in rows] == ["2", "1/2", "1/2", "1", "1-2"]
    assert rows[2][5] == "100.0%"
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


def test_written_files(lm: LanguageModel, full_texts: list[str], tmp_path: Path) -> None:
    inputs = [Input(prompt, (text,)) for prompt, text in zip(PROMPTS, full_texts, strict=True)]
    evaluated = evaluate_quietly(lm, inputs, [Setting(SkipDecode(3, 2), 1.6)], batch_size=2, max_new_tokens=NEW)
    evaluated.write(tmp_path / "new" / "out")
    results = json.loads((tmp_path / "new" / "out" / "results.json").read_text())
    assert [(entry["method"], entry["speedup"]) for entry in results] == [("full", 1.0), ("skipdecode", 1.6)]
    keys = "method speedup confidence arguments num_layers max_depth min_depth rougeL bleu target_speedup"
    keys += " realised_speedup measured_speedup mean_depth share_of_full same_texts inputs tokens_per_second seconds"
    keys += " compile_seconds threshold exit_share deep_passes tokens_per_deep_pass acceptance_rate"
    assert all(set(entry) == set(keys.split()) for entry in results)
    arguments = {"max_depth": 3, "min_depth": 2, "warmup_layers": 1, "shape": "linear"}
    arguments |= {"horizon": None, "max_segments": None}
    assert [entry["arguments"] for entry in results] == [{}, arguments]
    assert results[1]["exit_share"] is None
    assert "exits" not in evaluated.table()
    samples = [json.loads(line) for line in (tmp_path / "new" / "out" / "samples.jsonl").read_text().splitlines()]
    assert [sample["prompt"] for sample in samples] == PROMPTS
    assert [sample["references"] for sample in samples] == [[text] for text in full_texts]
    assert [sample["texts"]["full"] for sample in samples] == full_texts
    assert [sample["texts"]["skipdecode 1.6x"] for sample in samples] == evaluated.texts[1]
    table = (tmp_path / "new" / "out" / "table.md").read_text()
    assert table == evaluated.table() + "\n"
    assert len(table.splitlines()) == 4


def test_one_new_token_needs_no_decode_step(lm: LanguageModel) -> None:
    evaluated = evaluate_quietly(lm, [Input("w1", ("zzz",))], [], max_new_tokens=1)
    assert evaluated.results[0].measured_speedup is None
    assert evaluated.results[0].share_of_full is None
    assert "| -" in evaluated.table()


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
        warnings.filterwarnings("ignore", "this checkpoint records no schedule")
        return CliRunner().invoke(app, ["evaluate", *arguments])


def test_program(model: str, full_texts: list[str], tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    rows = [{"mr": prompt, "ref": text} for prompt, text in zip(PROMPTS, full_texts, strict=True)]
    data.write_text("".join(json.dumps(row) + "\n" for row in [*rows, *rows]))
    arguments = ["--model", model, "--data", str(data), "--prompt-template", "{mr}", "--target-column", "ref"]
    numbers = ["--max-new-tokens", str(NEW), "--batch-size", "2", "--limit", "2", "--out", str(tmp_path / "out")]
    result = run_program(*arguments, "--speedup", "1,1.3", *numbers)
    assert result.exit_code == 0, result.output
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [(entry["method"], entry["speedup"]) for entry in results] == [("full", 1.0), ("skipdecode", 1.3)]
    assert [entry["inputs"] for entry in results] == [2, 2]
    assert results[0]["rougeL"] == pytest.approx(100)
    assert "2 inputs, 4 references" in result.output
    assert re.search(r"\| skipdecode 1.3x +\|", result.output)

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

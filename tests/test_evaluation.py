import gzip
import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
from tiny_models import tiny_config
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers
from typer.testing import CliRunner, Result

from skipjax import decoder, evaluation, flags, settings, tables
from skipjax.evaluation import Input
from skipjax.generation import Generation, generate
from skipjax.huggingface import export_hf
from skipjax.language_model import LanguageModel
from skipjax.methods import Full, SkipDecode
from skipjax.settings import Setting
from skipjax.tokenizer import Tokenizer

WORDS = 40
CONFIG = tiny_config(vocab_size=WORDS + 2, bos_id=None, eos_ids=(0,), pad_id=1)
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


def in_pairs(lm: LanguageModel, method: Full | SkipDecode) -> list[Generation]:
    """The same batch shapes as an evaluation with batch size 2, so that programs are compiled only once."""
    return [generate(lm, PROMPTS[i : i + 2], method, max_new_tokens=NEW) for i in range(0, len(PROMPTS), 2)]


def evaluate_quietly(*args: Any, **kwargs: Any) -> evaluation.Evaluation:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "this checkpoint records no schedule")
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


def test_settings_from_flags() -> None:
    assert settings.settings_from_flags("full", [], num_layers=8) == []
    assert settings.settings_from_flags(None, [], num_layers=8) == []
    two = SkipDecode.for_speedup(2, num_layers=8)
    assert settings.settings_from_flags(None, [1, 2, 2], num_layers=8) == [Setting(two, 2)]
    chosen = settings.settings_from_flags(None, [], num_layers=8, max_depth=5, min_depth=3)
    assert [setting.label for setting in chosen] == ["skipdecode 5/3"]
    trained = SkipDecode(6, 4, horizon=9)
    assert settings.settings_from_flags(None, [], num_layers=8, recorded=trained) == [Setting(trained)]
    assert settings.against_full(chosen) == [settings.FULL, *chosen]
    assert settings.against_full([Setting(Full())]) == [settings.FULL]
    with pytest.raises(ValueError, match="takes no --speedup"):
        settings.settings_from_flags("full", [2], num_layers=8)
    with pytest.raises(ValueError, match="at most the model's 4 layers"):
        settings.settings_from_flags(None, [], num_layers=4, max_depth=5, min_depth=3)


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
    full, same, less = evaluated.results
    assert [result.setting for result in evaluated.results] == [settings.FULL, *compared]
    assert evaluated.texts[0] == evaluated.texts[1] == full_texts
    assert evaluated.texts[2] != full_texts
    for result in (full, same):
        assert [result.rouge_l, result.bleu] == pytest.approx([100, 100])
        assert (result.realised_speedup, result.mean_depth, result.share_of_full) == (1, 4, 1)
        assert (result.max_depth, result.min_depth, result.inputs) == (4, 4, 5)
    assert full.measured_speedup == 1
    assert less.rouge_l < 100
    assert less.share_of_full == pytest.approx(less.rouge_l / 100)
    assert (less.max_depth, less.min_depth, less.target_speedup) == (3, 2, 1.6)
    outs = in_pairs(lm, SkipDecode(3, 2))
    mean_depth = sum(out.depths.sum() for out in outs) / sum(out.lengths.sum() for out in outs)
    assert less.mean_depth == pytest.approx(mean_depth)
    assert less.realised_speedup == pytest.approx(4 / mean_depth)
    assert less.measured_speedup is not None
    assert less.measured_speedup > 0


def test_written_files(lm: LanguageModel, full_texts: list[str], tmp_path: Path) -> None:
    inputs = [Input(prompt, (text,)) for prompt, text in zip(PROMPTS, full_texts, strict=True)]
    evaluated = evaluate_quietly(lm, inputs, [Setting(SkipDecode(3, 2), 1.6)], batch_size=2, max_new_tokens=NEW)
    evaluated.write(tmp_path / "new" / "out")
    results = json.loads((tmp_path / "new" / "out" / "results.json").read_text())
    assert [(entry["method"], entry["speedup"]) for entry in results] == [("full", 1.0), ("skipdecode", 1.6)]
    keys = "method speedup max_depth min_depth rougeL bleu target_speedup realised_speedup measured_speedup mean_depth"
    keys += " share_of_full inputs tokens_per_second seconds compile_seconds"
    assert all(set(entry) == set(keys.split()) for entry in results)
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
    assert all(name in text for name in flags.METHODS)

"""`skipjax train` as a user meets it."""

import json
import sys

import pytest
from tiny_training import write_csv

from skipjax import exit_heads, main
from skipjax.checkpoint import restore
from skipjax.config import ExitHeads
from skipjax.fingerprint import fingerprint
from skipjax.methods import Free, Full, SkipDecode
from skipjax.recorded import Recorded


@pytest.fixture
def skipjax(monkeypatch, capsys, tmp_path):
    """Runs `skipjax train ARGUMENTS` in a folder of its own: (exit status, standard output, standard error)."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["skipjax", "train", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main.main()
        return ended.value.code or 0, *capsys.readouterr()

    return run


DATA = ("--data", "rows.csv", "--prompt-template", "{in} ->", "--target-column", "out")
NUMBERS = ("--batch-size", 4, "--learning-rate", 1e-2, "--log-every", 1, "--max-shapes", 1)
FRESH = ("--init", "config.json", "--tokenizer", "words")


def write_config(path, **changes):
    config = {
        "model_type": "llama",
        "vocab_size": 270,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 64,
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
    }
    path.write_text(json.dumps({**config, **changes}))


@pytest.fixture
def prepared(skipjax, tmp_path):
    write_csv(tmp_path / "rows.csv")
    write_config(tmp_path / "config.json")
    status, out, _ = skipjax("tokenizer", *DATA, "--vocab-size", 270, "--out", "words")
    assert (status, out) == (0, "words: 270 tokens\n")
    return tmp_path


def steps(directory):
    return [json.loads(line)["step"] for line in (directory / "metrics.jsonl").read_text().splitlines()]


def test_from_scratch_to_fine_tuned(skipjax, prepared):
    """Tokenizer, full training from a config, resuming, and SkipDecode training from the result."""
    status, out, err = skipjax("full", *DATA, *NUMBERS, *FRESH, "--steps", 2, "--out", "first")
    assert (status, err) == (0, "")
    assert "12 examples\n" in out
    assert "step 2/2: loss " in out
    assert restore(prepared / "first").recorded == Recorded(Full())
    status, out, err = skipjax("full", *DATA, *NUMBERS, *FRESH, "--steps", 3, "--out", "first", "--resume")
    assert (status, err) == (0, "")
    assert steps(prepared / "first") == [1, 2, 3]
    status, out, err = skipjax("full", *DATA, *NUMBERS, *FRESH, "--steps", 3, "--out", "first", "--resume")
    assert "has already reached step 3 of 3: nothing to do" in out
    assert status == 0
    tuned = ("skipdecode", *DATA, *NUMBERS, "--model", "first", "--max-depth", 3, "--min-depth", 2)
    status, out, err = skipjax(*tuned, "--steps", 2, "--out", "second", "--eval-data", "rows.csv", "--eval-every", 1)
    assert (status, err) == (0, "")
    lm = restore(prepared / "second")
    assert lm.recorded == Recorded(SkipDecode(3, 2, 1, horizon=8))  # the longest target's bucket
    assert lm.tokenizer.decode(lm.tokenizer.encode("4 4  4")) == "4 4  4"
    status, out, err = skipjax(*tuned, "--steps", 2, "--out", "second", "--resume", "--horizon", 9)
    assert status == 2
    assert err.startswith("skipjax: method must stay {'method': 'skipdecode', 'max_depth': 3, ")


T5 = {
    "model_type": "t5",
    "vocab_size": 270,
    "d_model": 16,
    "d_kv": 8,
    "d_ff": 24,
    "num_layers": 1,
    "num_decoder_layers": 3,
    "num_heads": 2,
    "decoder_start_token_id": 2,
    "eos_token_id": 1,
    "pad_token_id": 2,
}


def validated(directory):
    (line,) = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return line["validation_losses"]


def test_free_and_exits_of_its_own(skipjax, prepared):
    """An encoder-decoder model from a config, trained for FREE, and then given exits of its own."""
    (prepared / "t5.json").write_text(json.dumps(T5))
    common = (*DATA, "--batch-size", 4, "--max-shapes", 1, "--eval-data", "rows.csv", "--steps", 1)
    status, out, err = skipjax(
        *("free", *common, "--init", "t5.json", "--tokenizer", "words", "--shallow-layers", 1, "--out", "freed")
    )
    assert (status, err) == (0, "")
    assert "trains FreeLoss(shallow_layers=1, distillation='dyna', weight=0.5)\n" in out
    assert list(validated(prepared / "freed")) == ["full", "exit 1"]
    settings = json.loads((prepared / "freed" / "training.json").read_text())
    recipe = {"optimizer": "adafactor", "learning_rate": 1e-4, "schedule": "linear", "warmup_steps": 0, "clip": 1.0}
    assert settings.items() >= recipe.items()
    lm = restore(prepared / "freed")
    assert lm.recorded == Recorded(Free(shallow_layers=1), exit_layers=(1,))
    status, out, err = skipjax(
        *("heads", *common, "--model", "freed", "--learning-rate", 1e-2, "--layers", "2,1", "--out", "exits"),
        *("--norm", "--adapter-rank", 2, "--classifier"),
    )
    assert (status, err) == (0, "")
    losses = validated(prepared / "exits")
    assert list(losses) == ["full", "exit 1", "exit 2", "classifier 1", "classifier 2"]
    assert losses["full"] == validated(prepared / "freed")["full"]
    joined = exit_heads.join(lm, prepared / "exits")
    assert joined.config.exit_heads == ExitHeads((1, 2), True, 2, True)
    settings = json.loads((prepared / "exits" / "training.json").read_text())
    assert settings["base_fingerprint"] == fingerprint(lm)


def test_multi_exit(skipjax, prepared):
    status, _, err = skipjax("multi-exit", *DATA, *NUMBERS, *FRESH, "--steps", 1, "--out", "many")
    assert (status, err) == (0, "")
    assert restore(prepared / "many").recorded == Recorded(Full(), exit_layers=(1, 2))


FULL = ("full", *DATA, *NUMBERS, "--steps", 2, "--out", "new")
SKIP = ("skipdecode", *FULL[1:], *FRESH)
FREE = ("free", *FULL[1:], *FRESH)
FAULTS = {
    "no model": (FULL, "exactly one of --model and --init must be given"),
    "two models": ((*FULL, *FRESH, "--model", "x"), "exactly one of --model and --init must be given"),
    "no tokenizer": ((*FULL, *FRESH[:2]), "--tokenizer must be given with --init, and only with it"),
    "no config": ((*FULL, "--init", "no.json", *FRESH[2:]), "no.json: no such file"),
    "no such tokenizer": (
        (*FULL, *FRESH[:2], "--tokenizer", "no"),
        "tokenizer must be a directory with tokenizer files, got 'no'",
    ),
    "other special tokens": (
        (*FULL, "--init", "other.json", *FRESH[2:]),
        "init: eos_token_id must be the tokenizer's, 1, got 5",
    ),
    "no data": ((*FULL, *FRESH, "--data", "no.csv"), "data: there is no file 'no.csv'"),
    "no column": (
        (*FULL, *FRESH, "--target-column", "ref"),
        "target_column names the column 'ref', but the data has 'in', 'out'",
    ),
    "taken": ((*FULL, *FRESH, "--out", "words"), "out must be a new or empty directory, or be resumed with --resume"),
    "not a run": (
        (*FULL, *FRESH, "--out", "words", "--resume"),
        "out 'words' cannot be resumed: it holds files but no",
    ),
    "optimizer": ((*FULL, *FRESH, "--optimizer", "sgd"), "optimizer must be one of 'adamw', 'adafactor', got 'sgd'"),
    "no shapes": ((*FULL, *FRESH, "--max-shapes", 0), "max_shapes must be an integer of at least 1, got 0"),
    "no depths": (SKIP, "exactly one of --speedup, --max-depth with --min-depth, and --speedup-range must be given"),
    "one depth": ((*SKIP, "--max-depth", 2), "--max-depth and --min-depth must be given together"),
    "too deep": ((*SKIP, "--max-depth", 4, "--min-depth", 2), "max_depth must be at most the model's 3 layers, got 4"),
    "too fast": ((*SKIP, "--speedup", 3), "speedup 3 leaves 1 of 3 layers at the end, but 2 always run"),
    "shape": (
        (*SKIP, "--speedup", 1, "--shape", "linar"),
        "shape must be one of 'linear', 'cosine', 'step', 'constant'",
    ),
    "too shallow": ((*FREE, "--shallow-layers", 3), "shallow_layers must be an integer from 1 to 2, got 3"),
    "distillation": (
        (*FREE, "--shallow-layers", 1, "--distillation", "dyn"),
        "distillation must be one of 'dyna', 'unif', 'last', 'none', got 'dyn' (did you mean 'dyna'?)",
    ),
    "no numbers": (
        ("heads", *FULL[1:], "--model", "x", "--layers", "1;2"),
        "--layers must be whole numbers separated by commas, got '1;2'",
    ),
    "horizon": ((*SKIP, "--speedup", 1, "--horizon", 0), "horizon must be an integer of at least 1, got 0"),
}


def test_one_sentence_for_each_fault(skipjax, prepared):
    write_config(prepared / "other.json", eos_token_id=5)
    for name, (arguments, message) in FAULTS.items():
        status, _, err = skipjax(*arguments)
        assert (status, err.count("\n")) == (2, 1), name
        assert err.startswith(f"skipjax: {message}"), name
    assert not (prepared / "new").exists()

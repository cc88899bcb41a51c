"""`skipjax convert`: Hugging Face to orbax and back without loss, and a check against transformers that can fail."""

import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner, Result

import skipjax as sj
from skipjax import decoder, families, loading, verification
from skipjax.language_model import LanguageModel
from skipjax.methods import SkipDecode
from skipjax.recorded import Recorded

CONFIG = families.from_huggingface(
    {
        "model_type": "opt",
        "vocab_size": 13,
        "hidden_size": 8,
        "ffn_dim": 12,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 8,
        "eos_token_id": [2, 4],
    }
)


def run_program(*arguments: object) -> Result:
    from skipjax.main import app

    return CliRunner().invoke(app, ["convert", *map(str, arguments)])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    shapes = decoder.abstract_params(CONFIG)
    params = jax.tree.map(lambda leaf: jnp.asarray(generator.normal(size=leaf.shape), jnp.float32), shapes)
    sj.export_hf(LanguageModel(CONFIG, params, recorded=Recorded(SkipDecode(2, 2, horizon=4))), tmp_path / "model")
    return tmp_path / "model"


def test_there_and_back(model: Path, tmp_path: Path) -> None:
    result = run_program(model, tmp_path / "orbax")
    assert result.exit_code == 0, result.output
    lm = sj.load(model)
    assert result.stdout == f"wrote {lm.num_parameters:,} parameters in float32 to {tmp_path / 'orbax'} (orbax)\n"
    assert loading.is_checkpoint(tmp_path / "orbax")
    result = run_program(tmp_path / "orbax", tmp_path / "back")
    assert result.exit_code == 0, result.output
    assert not loading.is_checkpoint(tmp_path / "back")
    assert (tmp_path / "back" / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()
    for name in ("orbax", "back"):
        other = sj.load(tmp_path / name)
        assert other.config == lm.config
        assert other.recorded == lm.recorded
        assert jax.tree.all(jax.tree.map(lambda one, two: bool(jnp.all(one == two)), other.params, lm.params))


def test_dtype(model: Path, tmp_path: Path) -> None:
    assert run_program(model, tmp_path / "half", "--to", "huggingface", "--dtype", "float16").exit_code == 0
    original, half = sj.load(model), sj.load(tmp_path / "half", dtype="float16")
    tokens = original.params["ends"]["tokens"].astype(jnp.float16)
    np.testing.assert_array_equal(np.asarray(half.params["ends"]["tokens"]), np.asarray(tokens))


@pytest.mark.parametrize("start", ["huggingface", "orbax"])
def test_check(model: Path, tmp_path: Path, start: str) -> None:
    pytest.importorskip("torch")
    if start == "orbax":
        sj.save(sj.load(model), tmp_path / "orbax")
        model = tmp_path / "orbax"
    result = run_program(model, tmp_path / "out", "--check")
    assert result.exit_code == 0, result.output
    line = result.stdout.splitlines()[-1]
    found = re.fullmatch("largest difference between logits of skipjax and transformers: (.*)", line)
    assert found is not None
    assert float(found[1]) < 1e-4


def test_check_sees_a_difference(model: Path) -> None:
    pytest.importorskip("torch")
    lm = sj.load(model)
    bias = lm.params["layers"][1]["attention"]["value"]["bias"]
    lm.params["layers"][1]["attention"]["value"]["bias"] = bias.at[3].add(1.0)
    assert verification.largest_logit_difference(lm, model) > 1e-2
    lm.params["layers"][1]["attention"]["value"]["bias"] = bias * jnp.nan
    assert np.isnan(verification.largest_logit_difference(lm, model))


def test_check_without_torch(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    error = run_program(model, tmp_path / "out", "--check").exception
    assert isinstance(error, ValueError)
    assert str(error).startswith("the check compares with transformers and torch, but torch is not installed")


@pytest.mark.parametrize(
    ("arguments", "kind", "sentence"),
    [
        (
            ("{tmp}/model", "{tmp}/out", "--to", "flax"),
            ValueError,
            "--to must be one of 'auto', 'orbax', 'huggingface'",
        ),
        (("{tmp}/model", "{tmp}/out", "--dtype", "int4"), ValueError, "dtype must be 'auto', 'float32'"),
        (("{tmp}/none", "{tmp}/out"), FileNotFoundError, "path must be a model directory or a Hugging Face Hub id"),
        (("{tmp}/model", "{tmp}/model"), ValueError, "directory must be new, empty or written by an earlier save"),
        (("{tmp}/model", "{tmp}/model", "--to", "huggingface"), ValueError, "directory must be new or empty"),
    ],
)
def test_refused(model: Path, tmp_path: Path, arguments: tuple[str, ...], kind: type[Exception], sentence: str) -> None:
    error = run_program(*(argument.format(tmp=tmp_path) for argument in arguments)).exception
    assert isinstance(error, kind)
    assert sentence in str(error)
    assert "\n" not in str(error)


def test_check_needs_a_hugging_face_side(model: Path, tmp_path: Path) -> None:
    sj.save(sj.load(model), tmp_path / "orbax")
    error = run_program(tmp_path / "orbax", tmp_path / "other", "--to", "orbax", "--check").exception
    assert str(error) == "--check needs a Hugging Face model on one side, got a conversion from orbax to orbax"
    assert not (tmp_path / "other").exists()

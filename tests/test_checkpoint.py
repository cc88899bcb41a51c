"""Saved models come back bit for bit, and damaged ones with one clear sentence."""

import json
import shutil
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
from tiny_training import LLAMA, OPT, assert_trees_equal

from skipjax import checkpoint
from skipjax.decoder import init_params, stack_layers, unstack_layers
from skipjax.language_model import LanguageModel
from skipjax.methods import Full, SkipDecode
from skipjax.recorded import Recorded
from skipjax.tokenizer import Tokenizer


def words():
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<pad>": 0, "</s>": 1, "a": 2}, unk_token="<pad>"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return Tokenizer(backend, {"eos_token": "</s>", "pad_token": "<pad>"})


def model(config=LLAMA, dtype="float32", **more):
    return LanguageModel(config, init_params(config, 1, jnp.dtype(dtype)), **more)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    directory = tmp_path_factory.mktemp("saved") / "model"
    checkpoint.save(model(tokenizer=words(), recorded=Recorded(SkipDecode(3, 2, horizon=9), (1.0, 2.0))), directory)
    return directory


def test_everything_comes_back(saved):
    lm = checkpoint.restore(saved)
    assert_trees_equal(lm.params, model().params)
    assert lm.config == LLAMA
    assert lm.recorded == Recorded(SkipDecode(3, 2, horizon=9), (1.0, 2.0))
    assert lm.tokenizer is not None
    assert lm.tokenizer.encode("a a") == [2, 2]
    assert lm.tokenizer.eos_id == 1
    description = json.loads((saved / "skipjax.json").read_text())
    assert description["format_version"] == 1
    assert description["dtype"] == "float32"
    assert set(description["written_by"]) == {"skipjax", "jax", "flax", "orbax-checkpoint"}


@pytest.mark.parametrize("recorded", [None, Recorded(Full())])
def test_without_tokenizer(tmp_path, recorded):
    checkpoint.save(model(OPT, recorded=recorded), tmp_path / "model")
    lm = checkpoint.restore(tmp_path / "model")
    assert lm.tokenizer is None
    assert lm.recorded == recorded
    assert_trees_equal(lm.params, model(OPT).params)


def test_orbax_has_nothing_to_say(tmp_path, caplog):
    checkpoint.save(model(), tmp_path / "model")
    checkpoint.restore(tmp_path / "model")
    assert [record.message for record in caplog.records if record.levelname != "INFO"] == []


def test_dtype_is_chosen_when_loading(saved):
    lm = checkpoint.restore(saved, "bfloat16")
    assert lm.dtype == jnp.bfloat16
    assert_trees_equal(lm.params, jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), model().params))


def test_bfloat16_stays_what_it_is(tmp_path):
    checkpoint.save(model(dtype="bfloat16"), tmp_path / "model")
    assert_trees_equal(checkpoint.restore(tmp_path / "model", "bfloat16").params, model(dtype="bfloat16").params)
    wide = checkpoint.restore(tmp_path / "model", "float32").params
    assert_trees_equal(wide, jax.tree.map(lambda leaf: leaf.astype(jnp.float32), model(dtype="bfloat16").params))


def test_either_execution_saves_and_loads(saved, tmp_path):
    lm = checkpoint.restore(saved, execution="scanned")
    assert lm.execution == "scanned"
    assert_trees_equal(unstack_layers(lm.params), model().params)
    checkpoint.save(LanguageModel(LLAMA, stack_layers(model().params)), tmp_path / "model")
    assert_trees_equal(checkpoint.restore(tmp_path / "model").params, model().params)


def test_saving_again_replaces(tmp_path):
    directory = tmp_path / "model"
    checkpoint.save(model(OPT, tokenizer=words()), directory)
    checkpoint.save(model(), directory)
    assert checkpoint.restore(directory).config == LLAMA
    assert checkpoint.restore(directory).tokenizer is None
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


def test_foreign_directories_are_kept(saved, tmp_path):
    (tmp_path / "thesis.txt").write_text("ten years of work")
    with pytest.raises(ValueError, match="directory must be new, empty or written by an earlier save"):
        checkpoint.save(model(), tmp_path)
    with pytest.raises(ValueError, match="directory must be new, empty or written by an earlier save"):
        checkpoint.save(model(), tmp_path / "thesis.txt")
    run = tmp_path / "run"
    shutil.copytree(saved, run)
    (run / "training.json").write_text("{}")  # a training run is more than its weights
    with pytest.raises(ValueError, match="directory must be new, empty or written by an earlier save"):
        checkpoint.save(model(), run)
    assert (tmp_path / "thesis.txt").read_text() == "ten years of work"


def test_a_copy_is_saved_though_the_arrays_are_donated(tmp_path):
    """Saving goes on in threads while training writes into the buffers it was given."""
    overwrite = jax.jit(lambda tree: jax.tree.map(jnp.zeros_like, tree), donate_argnums=0, keep_unused=True)
    params = {"weight": jnp.arange(2.0**20)}
    with checkpoint.open_manager(tmp_path, use="train") as manager:
        checkpoint.save_step(manager, 1, params)
        overwrite(params)
        manager.wait_until_finished()
        target = {"weight": jax.ShapeDtypeStruct((2**20,), jnp.float32)}
        back = checkpoint.restore_step(manager, 1, {"params": target})["params"]
    np.testing.assert_array_equal(back["weight"], np.arange(2.0**20))


def refusal(directory, kind=ValueError, **arguments):
    with pytest.raises(kind) as error:
        checkpoint.restore(directory, **arguments)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.fixture
def copy(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "copy")


def edited(directory, **changes):
    path = directory / "skipjax.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return path


def test_missing_parts(copy, tmp_path):
    assert refusal(tmp_path / "no", FileNotFoundError) == f"{tmp_path / 'no' / 'skipjax.json'}: no such file"
    shutil.rmtree(copy / "checkpoints" / "0" / "params")
    assert refusal(copy).startswith(f"{copy / 'checkpoints' / '0'}: ")
    shutil.rmtree(copy / "checkpoints" / "0")
    assert refusal(copy, FileNotFoundError) == f"{copy / 'checkpoints'}: holds no complete checkpoint"
    shutil.rmtree(copy / "checkpoints")
    assert refusal(copy, FileNotFoundError) == f"{copy / 'checkpoints'}: holds no complete checkpoint"


def test_damaged_description(copy):
    path = edited(copy, format_version=2)
    assert refusal(copy) == f"{path}: format_version must be 1 for this version of skipjax, got 2"
    path = edited(copy, format_version=1, config={"family": "llama"})
    assert refusal(copy).startswith(f"{path}: damaged (model config: missing fields ")
    path.write_text('{"format_version": 1, ')
    assert refusal(copy).startswith(f"{path}: not valid JSON (")
    path.write_text("[]")
    assert refusal(copy) == f"{path}: must hold a JSON object, got list"


def test_config_of_another_shape(copy):
    edited(copy, config={**LLAMA.to_json(), "ffn_size": 40})
    message = refusal(copy)
    assert message.startswith(f"{copy / 'checkpoints' / '0'}: does not fit the config, params/layers/0/ffn/down/weight")
    assert message.endswith("must be (16, 40), got (16, 24)")


def test_more_layers_than_stored(copy):
    edited(copy, config={**LLAMA.to_json(), "num_layers": 4})
    assert "params/layers/3/" in refusal(copy)


def test_damaged_arrays(copy, monkeypatch):
    # orbax reads arrays at once and stops at the first that fails; the others then find its event loop closed.
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    for path in (copy / "checkpoints" / "0" / "params").rglob("d/*"):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert refusal(copy).startswith(f"{copy / 'checkpoints' / '0'}: damaged checkpoint (")
    time.sleep(0.5)

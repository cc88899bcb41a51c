"""Hugging Face directories: every way weights are stored loads to the same values, round trips are exact, and bad input
gives one clear sentence."""

import json
import pathlib
import subprocess
import sys
import zipfile

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from skipjax import decoder, families, huggingface, loading
from skipjax.huggingface import export_hf, load_huggingface
from skipjax.language_model import LanguageModel
from skipjax.methods import SkipDecode
from skipjax.recorded import Recorded

LLAMA = families.from_huggingface(
    {
        "model_type": "llama",
        "vocab_size": 11,
        "hidden_size": 8,
        "intermediate_size": 12,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 16,
        "bos_token_id": 1,
        "eos_token_id": [2, 3],
        "attention_bias": True,
    }
)
OPT = families.from_huggingface(
    {
        "model_type": "opt",
        "vocab_size": 11,
        "hidden_size": 8,
        "ffn_dim": 12,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 16,
        "eos_token_id": 2,
    }
)


def random_model(config, dtype=jnp.float32, execution="unrolled"):
    generator = np.random.default_rng(0)

    def drawn(leaf):
        return jnp.asarray(generator.normal(size=leaf.shape), dtype)

    params = jax.tree.map(drawn, decoder.abstract_params(config))
    if execution == "scanned":
        params = decoder.stack_layers(params)
    return LanguageModel(config, params)


def assert_same(params, expected):
    def assert_equal(one, other):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))

    jax.tree.map(assert_equal, params, expected)


@pytest.fixture
def exported(tmp_path):
    """Writes a model; gives its directory, the model, and its tensors by Hugging Face name."""

    def export(config):
        lm = random_model(config)
        export_hf(lm, tmp_path / "model")
        return tmp_path / "model", lm, load_file(tmp_path / "model" / "model.safetensors")

    return export


def rewrite(directory, tensors):
    save_file(tensors, directory / "model.safetensors")


def edit_config(directory, **fields):
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@pytest.mark.parametrize("config", [LLAMA, OPT], ids=["llama", "opt"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("execution", ["unrolled", "scanned"])
def test_round_trip_is_exact(config, dtype, execution, tmp_path):
    lm = random_model(config, dtype, execution)
    lm.recorded = Recorded(SkipDecode(8, 4, horizon=8), (1.5, 2.0))
    export_hf(lm, tmp_path / "new" / "model")
    loaded, params, tokenizer, recorded = load_huggingface(tmp_path / "new" / "model", dtype, execution)
    assert loaded == config
    assert recorded == lm.recorded
    assert tokenizer is None
    assert_same(params, lm.params)


def test_layers_keep_their_order(exported):
    directory, lm, tensors = exported(OPT)
    np.testing.assert_array_equal(
        np.asarray(lm.params["layers"][1]["ffn"]["up"]["weight"]), tensors["model.decoder.layers.1.fc1.weight"]
    )
    _, scanned, _, _ = load_huggingface(directory, "float32", "scanned")
    for layer in range(2):
        sliced = jax.tree.map(lambda leaf, layer=layer: leaf[layer], scanned["layers"])
        assert_same(sliced, lm.params["layers"][layer])


def test_export_opens_in_transformers(exported):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    directory, _, tensors = exported(LLAMA)
    model, info = transformers.AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True)
    assert not any(info[side] for side in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert model.dtype == torch.float32
    assert model.generation_config.eos_token_id == [2, 3]
    for name, value in model.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), tensors[name])


def test_export_in_shards(exported, monkeypatch, tmp_path):
    _, lm, tensors = exported(LLAMA)
    monkeypatch.setattr(huggingface, "SHARD_BYTES", 2000)
    export_hf(lm, tmp_path / "sharded")
    files = sorted(path.name for path in (tmp_path / "sharded").glob("*.safetensors"))
    assert len(files) > 2
    assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    index = json.loads((tmp_path / "sharded" / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == tensors.keys()
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in tensors.values())
    assert_same(load_huggingface(tmp_path / "sharded", "float32", "unrolled")[1], lm.params)
    (tmp_path / "sharded" / files[1]).unlink()
    with pytest.raises(FileNotFoundError, match=rf"index.json: names the shard {files[1]}, which is not there"):
        load_huggingface(tmp_path / "sharded", "float32", "unrolled")


def test_export_refuses_a_full_directory(exported):
    directory, lm, _ = exported(OPT)
    with pytest.raises(ValueError, match=r"directory must be new or empty to export a model into, got '.*model'"):
        export_hf(lm, directory)


def test_mixed_types_are_cast(exported):
    directory, _, tensors = exported(LLAMA)
    types = [np.float32, np.float16, np.float64, ml_dtypes.bfloat16]
    mixed = {name: tensor.astype(types[i % 4]) for i, (name, tensor) in enumerate(tensors.items())}
    rewrite(directory, mixed)
    for dtype in ("float32", "bfloat16", "float16"):
        _, params, _, _ = load_huggingface(directory, dtype, "unrolled")
        for path, names, _ in families.weight_names(LLAMA):
            part, *keys = path.split(".")
            for layer, name in enumerate(names):
                leaf = params["ends"] if part == "ends" else params["layers"][layer]
                for key in keys:
                    leaf = leaf[key]
                assert leaf.dtype == dtype
                np.testing.assert_array_equal(np.asarray(leaf), mixed[name].astype(leaf.dtype))


def test_values_beyond_float16(exported):
    directory, _, tensors = exported(OPT)
    rewrite(directory, {**tensors, "model.decoder.layers.0.fc1.bias": np.full(12, 1e6, np.float32)})
    assert load_huggingface(directory, "bfloat16", "unrolled")[1]["layers"][0]["ffn"]["up"]["bias"][0] > 9e5
    for execution in ("unrolled", "scanned"):
        with pytest.raises(ValueError, match="beyond the range of dtype float16, load it as float32 or bfloat16"):
            load_huggingface(directory, "float16", execution)


@pytest.mark.parametrize(("config", "cut"), [(LLAMA, "model."), (OPT, "model."), (OPT, "model.decoder.")])
def test_other_prefixes(exported, config, cut):
    directory, lm, tensors = exported(config)
    rewrite(directory, {name.removeprefix(cut): tensor for name, tensor in tensors.items()})
    assert_same(load_huggingface(directory, "float32", "unrolled")[1], lm.params)


def test_left_overs_without_weights(exported):
    directory, lm, tensors = exported(LLAMA)
    rewrite(directory, {**tensors, "model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(2, np.float32)})
    assert_same(load_huggingface(directory, "float32", "unrolled")[1], lm.params)


def test_tied_head(exported):
    directory, lm, tensors = exported(OPT)
    embedding = tensors["model.decoder.embed_tokens.weight"]
    rewrite(directory, {**tensors, "lm_head.weight": embedding.copy()})
    assert_same(load_huggingface(directory, "float32", "unrolled")[1], lm.params)
    rewrite(directory, {**tensors, "lm_head.weight": embedding + 1})
    with pytest.raises(ValueError, match=r"LM head differs from the token embedding, .*tie_word_embeddings"):
        load_huggingface(directory, "float32", "unrolled")


def test_generation_config_lists_the_ends(exported):
    directory, _, _ = exported(OPT)
    (directory / "generation_config.json").write_text('{"eos_token_id": [4, 5]}')
    assert load_huggingface(directory, "float32", "unrolled")[0].eos_ids == (4, 5)


class TestTorchFiles:
    """pytorch_model.bin, read without torch."""

    @pytest.fixture
    def torch_directory(self, exported):
        torch = pytest.importorskip("torch")
        directory, lm, tensors = exported(OPT)
        (directory / "model.safetensors").unlink()
        return directory, lm, {name: torch.from_numpy(tensor) for name, tensor in tensors.items()}, torch

    def test_single(self, torch_directory):
        directory, lm, tensors, torch = torch_directory
        tensors["lm_head.weight"] = tensors["model.decoder.embed_tokens.weight"]  # one storage, as transformers wrote
        torch.save(tensors, directory / "pytorch_model.bin")
        for execution in ("unrolled", "scanned"):
            _, params, _, _ = load_huggingface(directory, "float32", execution)
            expected = lm.params if execution == "unrolled" else random_model(OPT, execution="scanned").params
            assert_same(params, expected)

    def test_views_and_types(self, torch_directory):
        directory, lm, tensors, torch = torch_directory
        up = "model.decoder.layers.0.fc1.weight"
        backing = torch.zeros(3, 8, 12)
        backing[1] = tensors[up].T
        tensors[up] = backing[1].T  # strides and an offset into a larger storage
        tensors["model.decoder.final_layer_norm.bias"] = torch.nn.Parameter(
            tensors["model.decoder.final_layer_norm.bias"].to(torch.float64)
        )
        position = "model.decoder.embed_positions.weight"
        tensors[position] = tensors[position].to(torch.bfloat16)
        torch.save(tensors, directory / "pytorch_model.bin")
        _, params, _, _ = load_huggingface(directory, "float32", "unrolled")
        rounded = lm.params["ends"]["positions"].astype(jnp.bfloat16).astype(jnp.float32)
        lm.params["ends"]["positions"] = rounded
        assert_same(params, lm.params)

    def test_shards(self, torch_directory):
        directory, lm, tensors, torch = torch_directory
        names = sorted(tensors)
        mapping: dict[str, str] = {}
        for shard, part in enumerate((names[:5], names[5:])):
            file = f"pytorch_model-{shard + 1:05d}-of-00002.bin"
            torch.save({name: tensors[name] for name in part}, directory / file)
            mapping |= dict.fromkeys(part, file)
        (directory / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": mapping}))
        assert_same(load_huggingface(directory, "float32", "unrolled")[1], lm.params)

    def test_parameters_do_not_live_in_the_file(self, torch_directory):
        directory, lm, tensors, torch = torch_directory
        path = directory / "pytorch_model.bin"
        torch.save(tensors, path)
        _, params, _, _ = load_huggingface(directory, "float32", "unrolled")
        with path.open("r+b") as file:
            file.write(b"\0" * path.stat().st_size)
        assert_same(params, lm.params)

    def test_refused(self, torch_directory, tmp_path):
        directory, _, tensors, torch = torch_directory
        path = directory / "pytorch_model.bin"

        def sentence():
            with pytest.raises(ValueError, match=r"pytorch_model.bin: ") as caught:
                load_huggingface(directory, "float32", "unrolled")
            assert "\n" not in str(caught.value)
            return str(caught.value)

        torch.save(tensors, path, _use_new_zipfile_serialization=False)
        assert "torch before 1.6" in sentence()
        torch.save({**tensors, "path": pathlib.PurePosixPath("x")}, path)
        assert "holds a pathlib" in sentence()
        torch.save({**tensors, "numbers": [1, 2]}, path)
        assert "'numbers' is a list" in sentence()
        torch.save([1, 2], path)
        assert "must hold a dict of tensors, got a list" in sentence()
        torch.save(tensors, path)
        whole = path.read_bytes()
        with zipfile.ZipFile(path) as archive, zipfile.ZipFile(tmp_path / "deflated", "w", zipfile.ZIP_DEFLATED) as out:
            for name in archive.namelist():
                out.writestr(name, archive.read(name))
        (tmp_path / "deflated").replace(path)
        assert "compressed" in sentence()
        path.write_bytes(whole[: len(whole) // 2])
        assert "not a file written by torch.save, or cut short" in sentence()
        path.write_bytes(b"hello")
        assert "not a file written by torch.save" in sentence()
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("model/data.pkl", b"\x80\x02cos\nsystem\nU\x04trueR.")
        assert "holds a os.system, only plain tensors are read" in sentence()
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("model/data.pkl", b"\x80\x02garbage")
        assert "its data.pkl is damaged" in sentence()


def _drop(name):
    return lambda tensors: {key: value for key, value in tensors.items() if key != name}


def _with(name, tensor):
    return lambda tensors: {**tensors, name: tensor}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (_drop("lm_head.weight"), r"do not fit config.json; missing: lm_head.weight \[11, 8\]$"),
        (_with("model.extra", np.zeros((2, 3), np.float32)), r"not expected: model.extra \[2, 3\]$"),
        (
            _with("model.norm.weight", np.zeros(9, np.float32)),
            r"wrong shape: model.norm.weight \[9\] instead of \[8\]$",
        ),
        (_with("norm.weight", np.zeros(8, np.float32)), r"stored twice: model.norm.weight$"),
        (_with("model.norm.weight", np.zeros(8, np.int8)), r"model.norm.weight is of type I8; quantised weights are"),
        (
            _with("model.norm.weight", np.zeros(8, ml_dtypes.float8_e4m3fn)),
            r"model.norm.weight is of type F8_E4M3; quantised weights are",
        ),
        (lambda _: {"x": np.zeros(1, np.float32)}, r"missing: .* and 19 more; not expected: x \[1\]$"),
    ],
)
def test_weights_that_do_not_fit(exported, change, sentence):
    directory, _, tensors = exported(LLAMA)
    rewrite(directory, change(tensors))
    with pytest.raises(ValueError, match=sentence) as caught:
        load_huggingface(directory, "float32", "unrolled")
    assert "\n" not in str(caught.value)


def _write(name, content):
    return lambda directory: (directory / name).write_bytes(content)


def _cut(directory):
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def _index(content):
    def change(directory):
        (directory / "model.safetensors").unlink()
        (directory / "model.safetensors.index.json").write_text(content)

    return change


@pytest.mark.parametrize(
    ("change", "error", "sentence"),
    [
        (lambda directory: (directory / "config.json").unlink(), FileNotFoundError, "no config.json there"),
        (lambda directory: (directory / "model.safetensors").unlink(), FileNotFoundError, "no weights found"),
        (_write("config.json", b"{'model_type'"), ValueError, "config.json: not valid JSON"),
        (_write("config.json", b"[1]"), ValueError, "config.json: must hold a JSON object, got list"),
        (_write("config.json", b"\xff\xfe"), ValueError, "config.json: not valid JSON"),
        (_write("generation_config.json", b"x"), ValueError, "generation_config.json: not valid JSON"),
        (_write("skipjax.json", b'{"recorded": {"method": "magic"}}'), ValueError, "recorded method: .*magic"),
        (_write("model.safetensors", b""), ValueError, "model.safetensors: not a whole safetensors file"),
        (_write("model.safetensors", b"\xff" * 64), ValueError, "model.safetensors: not a whole safetensors file"),
        (_cut, ValueError, "model.safetensors: not a whole safetensors file"),
        (_index("{}"), ValueError, "index.json: weight_map must be an object of tensor names and file names"),
        (_index('{"weight_map": {"a": "../b.safetensors"}}'), ValueError, "shards must lie beside the index"),
    ],
)
def test_damaged_directories(exported, change, error, sentence):
    directory, _, _ = exported(LLAMA)
    change(directory)
    with pytest.raises(error, match=sentence) as caught:
        load_huggingface(directory, "float32", "unrolled")
    assert "\n" not in str(caught.value)


_PEAK = """
import pathlib, sys
import jax
from skipjax.huggingface import load_huggingface
jax.block_until_ready(jax.numpy.zeros(1))
def peak():  # of this program; resource.getrusage would start from its parent's
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
before = peak()
params = load_huggingface(sys.argv[1], sys.argv[2], sys.argv[3])[1]
jax.block_until_ready(params)
print(peak() - before)
"""


@pytest.mark.skipif(not pathlib.Path("/proc/self/status").exists(), reason="reads the peak of memory from /proc")
@pytest.mark.parametrize(
    ("file", "dtype", "execution"),
    [
        ("model.safetensors", "float32", "unrolled"),
        ("model.safetensors", "bfloat16", "unrolled"),
        ("model.safetensors", "float32", "scanned"),
        ("pytorch_model.bin", "float32", "unrolled"),
    ],
)
def test_loading_keeps_no_second_copy(file, dtype, execution, tmp_path):
    """64 MB of weights in 24 layers: at most one weight (of all layers, where scanned) is in memory twice."""
    config = families.from_huggingface(
        {
            **families.to_huggingface(LLAMA),
            "hidden_size": 256,
            "num_attention_heads": 4,
            "head_dim": 64,
            "intermediate_size": 640,
            "num_hidden_layers": 24,
        }
    )
    weights = list(families.weight_names(config))
    tensors = {name: np.ones(shape, np.float32) for _, names, shape in weights for name in names}
    if file == "pytorch_model.bin":
        torch = pytest.importorskip("torch")
        torch.save({name: torch.from_numpy(tensor) for name, tensor in tensors.items()}, tmp_path / file)
    else:
        save_file(tensors, tmp_path / file)
    (tmp_path / "config.json").write_text(json.dumps(families.to_huggingface(config)))
    size = sum(tensor.nbytes for tensor in tensors.values()) * jnp.dtype(dtype).itemsize // 4
    assert size > 30e6
    script = [sys.executable, "-c", _PEAK, str(tmp_path), dtype, execution]
    peak = int(subprocess.run(script, check=True, capture_output=True, text=True).stdout)
    assert 0.5 * size < peak < 1.5 * size


class TestLoad:
    def test_directory(self, exported):
        directory, lm, _ = exported(LLAMA)
        loaded = loading.load(directory)
        assert loaded.dtype == jnp.float32
        assert loaded.execution == "unrolled"
        assert_same(loaded.params, lm.params)
        stacked = loading.load(str(directory), dtype=jnp.bfloat16, execution="scanned")
        assert stacked.execution == "scanned"
        assert stacked.dtype == jnp.bfloat16

    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            ({"dtype": "int8"}, "dtype must be 'auto', 'float32', 'bfloat16', 'float16', got 'int8'"),
            ({"dtype": "float"}, "dtype must be"),
            ({"dtype": None}, "dtype must be"),
            ({"dtype": "fp16"}, "dtype must be"),
            ({"mesh": "tpu"}, "mesh must be None, sharded models are not supported yet, got 'tpu'"),
            ({"execution": "eager"}, "execution must be one of 'auto', 'unrolled', 'scanned', got 'eager'"),
            ({"path": 3}, "path must be a str or a path, got 3"),
        ],
    )
    def test_bad_arguments(self, arguments, sentence, tmp_path):
        with pytest.raises(ValueError, match=sentence):
            loading.load(**{"path": tmp_path, **arguments})

    def test_not_a_model(self, tmp_path):
        with pytest.raises(FileNotFoundError, match=r"neither a Hugging Face model .* nor one saved by skipjax"):
            loading.load(tmp_path)

    def test_no_embedded_model(self, monkeypatch, tmp_path):
        monkeypatch.setattr(loading, "EMBEDDED", {"embedded": tmp_path})
        with pytest.raises(FileNotFoundError, match=r"path must be given, .* no model in"):
            loading.load()


@pytest.mark.parametrize("name", ["llama", "opt"])
@pytest.mark.parametrize("execution", ["unrolled", "scanned"])
def test_golden_logits(name, execution, shared_dir):
    directory = shared_dir / "golden" / name
    config, params, _, _ = load_huggingface(directory, "float32", execution)
    golden = json.loads((directory / "golden.json").read_text())
    tokens = jnp.asarray([golden["prompts"][2]], jnp.int32)
    columns = (tokens.shape[1],) * config.num_layers
    h = decoder.teacher_forced(config, params, tokens, jnp.zeros(1, jnp.int32), columns)
    logits = np.asarray(decoder.ends_of(config, params).logits(h)[0, -1])
    np.testing.assert_allclose(logits, golden["last_logits_prompt_2"], atol=1e-4, rtol=0)

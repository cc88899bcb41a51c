"""T5 and mT5: the same logits as transformers, weights both ways, sources to the encoder, and what is refused."""

from __future__ import annotations

import dataclasses
import functools
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

from skipjax import decoder, families, modules, shapes
from skipjax.attention import attention, causal
from skipjax.config import ExitHeads, RelativePositions
from skipjax.huggingface import export_hf, load_huggingface
from skipjax.language_model import LanguageModel
from skipjax.loading import load
from skipjax.methods import SkipDecode, StaticExit
from skipjax.teacher_forcing import forward
from skipjax.tokenizer import Tokenizer
from skipjax.verification import largest_logit_difference

T5 = {
    "model_type": "t5",
    "is_encoder_decoder": True,
    "vocab_size": 61,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 40,
    "num_layers": 2,
    "num_heads": 3,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
    "decoder_start_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
V1_1 = {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
MT5 = {**V1_1, "model_type": "mt5"}

DEEP_ENCODER = {**V1_1, "num_layers": 3, "num_decoder_layers": 1, "relative_attention_num_buckets": 16}

# The fields, and whether the weights hold an LM head of their own.
VARIANTS = {
    "t5": (T5, False),
    "t5 tied, told so": ({**T5, "tie_word_embeddings": True, "feed_forward_proj": "gelu"}, False),
    "t5 tied, not scaled": ({**T5, "scale_decoder_outputs": False, "d_kv": 16, "num_heads": 4}, False),
    "t5 deep decoder": (
        {**T5, "num_layers": 1, "num_decoder_layers": 3}
        | {"relative_attention_num_buckets": 32, "relative_attention_max_distance": 128},
        False,
    ),
    "t5 v1.1": (V1_1, True),
    "t5 v1.1 deep encoder": (DEEP_ENCODER, True),
    "t5 gated silu": (
        {key: value for key, value in V1_1.items() if not key.startswith("relative")}
        | {"feed_forward_proj": "gated-silu"},
        True,
    ),
    "t5 gate of the exact gelu": ({**V1_1, "dense_act_fn": "gelu", "is_gated_act": True}, True),
    "t5 untied by its weights": ({**V1_1, "tie_word_embeddings": True, "scale_decoder_outputs": False}, True),
    "t5 untied by its weights, scaled": ({**T5, "scale_decoder_outputs": True}, True),
    "mt5": (MT5, True),
    "mt5 untied by its weights": (
        {**MT5, "tie_word_embeddings": True, "feed_forward_proj": "relu", "layer_norm_epsilon": 1e-3},
        True,
    ),
}

SOURCES = [[5], list(range(3, 33)), [7, 50, 9, 33, 1]]  # ragged, and longer than the last bucket begins
TARGETS = [[0, 4, 9, 60], [0, 11, 3, 3], [0, 8, 8, 59]]


@functools.cache
def drawn(text, seed=0):
    """A model of the config in JSON, its weights wide enough for scores and tokens to differ clearly."""
    config = families.from_huggingface(json.loads(text))
    generator = np.random.default_rng(seed)

    def one(leaf):
        return jnp.asarray(generator.normal(size=leaf.shape) * 0.2 + (len(leaf.shape) == 1), jnp.float32)

    return LanguageModel(config, jax.tree.map(one, decoder.abstract_params(config)))


def tiny(data=T5, execution="unrolled"):
    lm = drawn(json.dumps(data))
    return lm if execution == "unrolled" else LanguageModel(lm.config, decoder.stack_layers(copied(lm.params)))


def copied(params):
    """The same arrays in lists of their own, since stacking empties those it is given."""
    return jax.tree.map(lambda leaf: leaf, params)


def assert_same(params, expected):
    jax.tree.map(lambda one, two: np.testing.assert_array_equal(np.asarray(one), np.asarray(two)), params, expected)


def padded(torch, rows):
    """Left-padded ids and attention mask, for transformers."""
    longest = max(map(len, rows))
    ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    return {"input_ids": ids, "attention_mask": mask}


@pytest.fixture
def stored(tmp_path):
    """Writes config.json and random weights under the names that transformers uses; gives the directory."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")

    def store(data, untied):
        model = transformers.AutoModelForSeq2SeqLM.from_config(transformers.AutoConfig.for_model(**data))
        torch.manual_seed(0)
        tensors = {
            name: torch.randn(tensor.shape) * 0.2 + (tensor.ndim == 1)
            for name, tensor in model.state_dict().items()
            if "embed_tokens" not in name and (untied or name != "lm_head.weight")
        }
        (tmp_path / "config.json").write_text(json.dumps(data))
        save_file({name: tensor.numpy() for name, tensor in tensors.items()}, tmp_path / "model.safetensors")
        return tmp_path

    return store


@pytest.mark.parametrize(("data", "untied"), VARIANTS.values(), ids=VARIANTS.keys())
def test_logits_equal_those_of_transformers(data, untied, stored):
    directory = stored(data, untied)
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    reference = transformers.AutoModelForSeq2SeqLM.from_pretrained(directory).eval()
    lm = load(directory, dtype="float32", execution="unrolled")
    assert lm.config.tied is not untied
    assert jax.tree.map(jnp.shape, lm.params) == jax.tree.map(jnp.shape, decoder.abstract_params(lm.config))
    with torch.inference_mode():
        expected = reference(**padded(torch, SOURCES), decoder_input_ids=torch.tensor(TARGETS)).logits.numpy()
    assert np.max(np.abs(expected)) > 0.1
    np.testing.assert_allclose(forward(lm, TARGETS, sources=SOURCES), expected, atol=1e-4, rtol=0)
    if data is DEEP_ENCODER:
        lm = load(directory, dtype="float32", execution="scanned")
        np.testing.assert_allclose(forward(lm, TARGETS, sources=SOURCES), expected, atol=1e-4, rtol=0)


def test_a_row_alone_equals_the_row_in_the_batch():
    lm = tiny()
    targets = [TARGETS[0], [0], [0, 8, 8]]
    together = forward(lm, targets, sources=SOURCES)
    assert (together[1, 1:] == 0).all()
    for row in (0, 2):  # those with padding beside them
        alone = forward(lm, [targets[row]], sources=[SOURCES[row]])[0]
        np.testing.assert_allclose(together[row, : len(targets[row])], alone, atol=1e-5)


def test_what_is_under_the_padding_changes_nothing():
    lm, generator = tiny(), np.random.default_rng(0)
    padding, target_padding = np.array([9, 0], np.int32), np.array([0, 2], np.int32)
    sources, targets = (generator.integers(2, 61, (2, n)).astype(np.int32) for n in (10, 6))

    @jax.jit
    def run(sources, targets):
        memory = decoder.encode(lm.config, lm.params, sources, padding)
        h = decoder.teacher_forced(lm.config, lm.params, targets, target_padding, (6, 6), memory=memory)
        return memory.states, h

    states, h = run(sources, targets)
    sources[0, :9] = generator.integers(2, 61, 9)
    targets[1, :2] = generator.integers(2, 61, 2)
    others = run(sources, targets)
    np.testing.assert_array_equal(states[0, 9:], others[0][0, 9:])
    np.testing.assert_array_equal(h[0], others[1][0])
    np.testing.assert_array_equal(h[1, 2:], others[1][1, 2:])
    sources[0, 9] = 1 + sources[0, 9] % 59
    assert np.abs(run(sources, targets)[1][0] - h[0]).max() > 1e-3


@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (8, 20), (4, 3), (6, 100), (64, 40), (32, 17)])
@pytest.mark.parametrize("both_ways", [True, False])
def test_buckets_are_those_of_transformers(buckets, max_distance, both_ways):
    torch, t5 = pytest.importorskip("torch"), pytest.importorskip("transformers.models.t5.modeling_t5")
    numbers = jnp.arange(buckets, dtype=jnp.float32)[:, None]
    query, key = jnp.full((1, 1), 200, jnp.int32), jnp.arange(401, dtype=jnp.int32)
    relative = RelativePositions(buckets, max_distance)
    ours = modules.relative_bias(numbers, relative, query, key, both_ways=both_ways)[0, 0, 0]
    distances = torch.arange(-200, 201)
    theirs = t5.T5Attention._relative_position_bucket(distances, both_ways, buckets, max_distance)
    np.testing.assert_array_equal(np.asarray(ours), theirs.numpy())


def test_skipdecode_runs_the_start_token_at_full_depth():
    lm = tiny({**T5, "num_layers": 1, "num_decoder_layers": 4})
    config, method = lm.config, SkipDecode(3, 2, horizon=3)
    skipping = forward(lm, TARGETS, method, sources=SOURCES)
    np.testing.assert_array_equal(skipping, forward(lm, TARGETS, method, prompt_length=1, sources=SOURCES))
    kept = method.plan(4, 3).kept
    assert kept == (3, 0, 2, 3)

    @jax.jit
    def by_definition(tokens, sources, padding):
        """h[l + 1] = where(active[l], block_l(h[l]), h[l]), every layer on every column."""
        columns = jnp.arange(4, dtype=jnp.int32)[None]
        memory = decoder.encode(config, lm.params, sources, padding)
        h = decoder.ends_of(config, lm.params).embed(tokens, columns)
        allowed, bias = causal(jnp.zeros(3, jnp.int32), 4), decoder.decoder_bias(config, lm.params, columns, 4)

        def attend(carry, layer):
            return lambda q, k, v: (attention(q, k, v, allowed, "bskh", scaled=False, bias=bias), carry)

        for layer, last in enumerate(kept):
            recall = decoder.recall_from(config, memory)
            ran, _ = decoder.run_layers(
                config, lm.params["layers"], layer, layer + 1, h, None, attend, None, recall=recall
            )
            h = jnp.where((columns <= last)[..., None], ran, h)
        return decoder.ends_of(config, lm.params).logits(h)

    longest = max(map(len, SOURCES))
    padding = np.array([longest - len(row) for row in SOURCES], np.int32)
    sources = np.array([[0] * pad + row for pad, row in zip(padding, SOURCES, strict=True)], np.int32)
    expected = by_definition(np.array(TARGETS, np.int32), sources, padding)
    np.testing.assert_allclose(skipping, expected, atol=1e-4)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({}, "sources must say what the encoder reads, one for each row of token_ids"),
        ({"sources": "text"}, "sources must be a list of 1, one for each row of token_ids, got 'text'"),
        ({"sources": [[3], [4]]}, r"sources must be a list of 1, .* got \[\[3\], \[4\]\]"),
        ({"sources": [[]]}, "prompt 0 has no tokens"),
        ({"sources": [[61]]}, "prompt 0 has token id 61, outside the vocabulary of 61"),
        ({"sources": ["text"]}, "prompt 0 is a text, but this checkpoint has no tokenizer"),
        (
            {"sources": [[3]], "method": StaticExit(1)},
            r"method must be Full\(\) or SkipDecode\(...\) for teacher-forced",
        ),
        ({"sources": [[3]], "method": SkipDecode(2, 2), "prompt_length": 3}, "prompt_length must be .* from 1 to 2"),
    ],
)
def test_bad_forward_arguments_are_refused(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        forward(tiny(), [[0, 3]], **arguments)


@pytest.mark.parametrize("name", VARIANTS)
def test_config_round_trip(name):
    data, untied = VARIANTS[name]
    config = dataclasses.replace(families.from_huggingface(data), tied=not untied)
    written = json.loads(json.dumps(families.to_huggingface(config)))
    assert families.from_huggingface(written) == config
    assert written["model_type"] == data["model_type"]
    assert written["architectures"] == [data["model_type"].upper() + "ForConditionalGeneration"]


def test_defaults():
    config = families.from_huggingface(T5)
    assert (config.num_layers, config.encoder_layers, config.max_positions) == (2, 2, None)
    assert (config.tied, config.scale_head, config.scale_attention, config.activation) == (True, True, False, "relu")
    assert (config.start_id, config.eos_ids, config.pad_id, config.bos_id) == (0, (1,), 0, None)
    assert families.from_huggingface({**V1_1, "scale_decoder_outputs": True}).scale_head
    bare = {key: value for key, value in T5.items() if not key.endswith("_id")}
    assert families.from_huggingface(bare) == config
    assert families.from_huggingface({**bare, "pad_token_id": 5}).start_id == 5
    mt5 = families.from_huggingface({**bare, "model_type": "mt5"})
    assert (mt5.tied, mt5.scale_head, mt5.gated, mt5.activation) == (False, False, True, "gelu_new")
    assert not families.from_huggingface({**MT5, "tie_word_embeddings": True}).scale_head


def test_generation_config_may_hold_the_start_token():
    bare = {key: value for key, value in T5.items() if key != "decoder_start_token_id"}
    assert families.from_huggingface(bare, {"decoder_start_token_id": 3}).start_id == 3
    assert families.from_huggingface(T5, {"decoder_start_token_id": 3}).start_id == 0, "config.json says otherwise"


# The fields that published config.json files hold, with the number of parameters.
PUBLISHED = {
    "t5-small": (
        {**T5, "vocab_size": 32128, "d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_heads": 8}
        | {"dropout_rate": 0.1, "initializer_factor": 1.0, "n_positions": 512, "output_past": True}
        | {"relative_attention_num_buckets": 32, "task_specific_params": {"summarization": {"max_length": 200}}},
        60_506_624,
    ),
    "mt5-small": (
        {**MT5, "vocab_size": 250112, "d_model": 512, "d_kv": 64, "d_ff": 1024, "num_layers": 8, "num_heads": 6}
        | {"num_decoder_layers": 8, "relative_attention_num_buckets": 32, "tokenizer_class": "T5Tokenizer"}
        | {"gradient_checkpointing": False, "use_cache": True, "architectures": ["MT5ForConditionalGeneration"]},
        300_176_768,
    ),
    "t5 written by transformers 5": (
        {**V1_1, "vocab_size": 32128, "d_model": 768, "d_kv": 64, "d_ff": 2048, "num_layers": 12, "num_heads": 12}
        | {"relative_attention_num_buckets": 32, "dense_act_fn": "gelu_new", "is_gated_act": True, "is_decoder": False}
        | {"classifier_dropout": 0.0, "scale_decoder_outputs": False, "dtype": "float32", "num_decoder_layers": 12},
        247_577_856,
    ),
}


@pytest.mark.parametrize(("data", "count"), PUBLISHED.values(), ids=PUBLISHED.keys())
def test_published_configs(data, count):
    weights = list(families.weight_names(families.from_huggingface(data)))
    assert sum(len(names) * math.prod(shape) for _, names, shape in weights) == count
    every_name = [name for _, names, _ in weights for name in names]
    assert len(set(every_name)) == len(every_name)


def test_random_model():
    config = families.from_huggingface({**MT5, "num_layers": 1})
    lm = shapes.random_model(config, dtype="bfloat16", execution="scanned")
    expected = decoder.abstract_params(config, jnp.bfloat16, "scanned")
    assert jax.tree.map(jnp.shape, lm.params) == jax.tree.map(jnp.shape, expected)
    assert all(leaf.dtype == jnp.bfloat16 for leaf in jax.tree.leaves(lm.params))


BAD = {
    "unknown field": ({**T5, "rope_theta": 1.0}, "'rope_theta' is not known"),
    "umt5": ({**T5, "model_type": "umt5"}, "model_type must be one of 'llama', 'opt', 't5', 'mt5', got 'umt5'"),
    "longt5": ({**T5, "model_type": "longt5"}, "model_type must be one of .* got 'longt5'"),
    "not an encoder-decoder": ({**T5, "is_encoder_decoder": False}, "is_encoder_decoder False is not supported"),
    "decoder alone": ({**T5, "is_decoder": True}, "is_decoder True is not supported"),
    "shared layers": ({**T5, "tie_encoder_decoder": True}, "tie_encoder_decoder True is not supported"),
    "mt5 never scales": ({**MT5, "scale_decoder_outputs": True}, "scale_decoder_outputs True is not supported"),
    "no heads": ({**T5, "num_heads": 0}, "num_heads must be an integer of at least 1, got 0"),
    "no head size": ({**T5, "d_kv": None}, "d_kv is missing"),
    "text for layers": ({**T5, "num_decoder_layers": "2"}, "num_decoder_layers must be an integer of at least 1"),
    "odd buckets": ({**T5, "relative_attention_num_buckets": 9}, "relative_attention_num_buckets must be even, got 9"),
    "few buckets": ({**T5, "relative_attention_num_buckets": 2}, "num_buckets must be an integer of at least 4, got 2"),
    "short distance": ({**T5, "relative_attention_max_distance": 4}, "max_distance must be .* at least 5, got 4"),
    "feed-forward": ({**T5, "feed_forward_proj": "gated-tanh"}, "feed_forward_proj must be one of .* got 'gated-tanh'"),
    "activation": ({**T5, "dense_act_fn": "tanh"}, "dense_act_fn must be one of .* got 'tanh'"),
    "gate": ({**T5, "is_gated_act": 1}, "is_gated_act must be true or false, got 1"),
    "no start": (
        {**T5, "decoder_start_token_id": None, "pad_token_id": None},
        "decoder_start_token_id must be given where pad_token_id is null",
    ),
    "start outside": ({**T5, "decoder_start_token_id": 61}, "decoder_start_token_id must be an integer from 0 to 60"),
}


@pytest.mark.parametrize(("data", "sentence"), BAD.values(), ids=BAD.keys())
def test_refused_configs(data, sentence):
    with pytest.raises(ValueError, match=f"^config.json: .*{sentence}") as caught:
        families.from_huggingface(data)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("data", "execution"), [(T5, "unrolled"), (DEEP_ENCODER, "scanned"), (MT5, "unrolled")], ids=["t5", "v1.1", "mt5"]
)
def test_round_trip_is_exact_and_opens_in_transformers(data, execution, tmp_path):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    lm = tiny(data, execution)
    export_hf(lm, tmp_path / "model")
    config, params, _, _ = load_huggingface(tmp_path / "model", "float32", execution)
    assert config == lm.config
    assert_same(params, lm.params)
    assert jax.tree.structure(params) == jax.tree.structure(lm.params)
    model, info = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert type(model).__name__ == data["model_type"].upper() + "ForConditionalGeneration"
    assert not any(info[side] for side in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert model.generation_config.decoder_start_token_id == 0
    with torch.inference_mode():
        expected = model(**padded(torch, SOURCES), decoder_input_ids=torch.tensor(TARGETS)).logits.numpy()
    np.testing.assert_allclose(forward(lm, TARGETS, sources=SOURCES), expected, atol=1e-4, rtol=0)


def test_exits_of_their_own_are_not_exported(tmp_path):
    lm = tiny()
    lm = LanguageModel(dataclasses.replace(lm.config, exit_heads=ExitHeads((1,))), lm.params)
    with pytest.raises(
        ValueError, match=r"^lm has exits with parameters of their own \(config.exit_heads\), for which"
    ):
        export_hf(lm, tmp_path / "model")
    assert not (tmp_path / "model").exists()


LEFT_OVER = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
COPIES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")


class TestCopiesOfTheTokenEmbedding:
    @pytest.fixture
    def exported(self, tmp_path):
        def export(data):
            lm = tiny(data)
            export_hf(lm, tmp_path / "model")
            path = tmp_path / "model" / "model.safetensors"
            return lm, path, load_file(path)

        return export

    @pytest.mark.parametrize("data", [T5, V1_1], ids=["tied", "untied"])
    def test_in_torch_files(self, exported, data):
        torch = pytest.importorskip("torch")
        lm, path, arrays = exported(data)
        path.unlink()
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        tensors |= dict.fromkeys(COPIES, tensors["shared.weight"]) | {LEFT_OVER: torch.ones(8, 3)}
        tensors.setdefault("lm_head.weight", tensors["shared.weight"])
        torch.save(tensors, path.with_name("pytorch_model.bin"))
        config, params, _, _ = load_huggingface(path.parent, "float32", "unrolled")
        assert config == lm.config
        assert_same(params, lm.params)

    @pytest.mark.parametrize("kept", [*COPIES, "lm_head.weight"])
    def test_the_only_one_under_another_name(self, exported, kept):
        lm, path, tensors = exported(T5)
        tensors[kept] = tensors.pop("shared.weight")
        save_file(tensors, path)
        assert_same(load_huggingface(path.parent, "float32", "unrolled")[1], lm.params)

    def test_one_that_differs(self, exported):
        _, path, tensors = exported(V1_1)
        save_file({**tensors, COPIES[1]: tensors["shared.weight"] + 1}, path)
        with pytest.raises(ValueError, match=f"{COPIES[1]} must repeat the token embedding shared.weight, but differs"):
            load_huggingface(path.parent, "float32", "unrolled")

    def test_missing(self, exported):
        _, path, tensors = exported(T5)
        del tensors["shared.weight"], tensors["encoder.block.1.layer.1.DenseReluDense.wo.weight"]
        save_file({**tensors, "encoder.extra": tensors["encoder.final_layer_norm.weight"]}, path)
        with pytest.raises(ValueError, match=r"missing: .*wo.weight \[32, 40\]; not expected: encoder.extra \[32\]$"):
            load_huggingface(path.parent, "float32", "unrolled")


def test_convert_there_and_back_with_a_check(tmp_path):
    pytest.importorskip("torch")
    from skipjax.main import app

    export_hf(tiny(), tmp_path / "model")
    for source, destination in (("model", "orbax"), ("orbax", "back")):
        arguments = ["convert", str(tmp_path / source), str(tmp_path / destination), "--check"]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
        assert float(result.stdout.split()[-1]) < 1e-4
    one, other = (tmp_path / name / "model.safetensors" for name in ("model", "back"))
    assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize("part", ["layers", "encoder"])
def test_check_sees_a_difference(part, tmp_path):
    pytest.importorskip("torch")
    export_hf(tiny(), tmp_path / "model")
    lm = load(tmp_path / "model")
    layers = lm.params["layers"] if part == "layers" else lm.params["encoder"]["layers"]
    layers[1]["ffn"]["down"]["weight"] = layers[1]["ffn"]["down"]["weight"].at[3].add(1.0)
    assert largest_logit_difference(lm, tmp_path / "model") > 1e-3


@pytest.mark.parametrize(("name", "execution"), [("t5", "unrolled"), ("t5-v1_1", "scanned")])
def test_golden_tokens(name, execution, shared_dir):
    directory = shared_dir / "golden" / name
    lm = load(directory, dtype="float32", execution=execution)
    golden = json.loads((directory / "golden.json").read_text())
    tokens = [row["tokens"] for row in golden["full"]]
    logits = forward(lm, [[lm.config.start_id, *row[:-1]] for row in tokens], sources=golden["prompts"])
    for row, of_row in zip(tokens, logits, strict=True):
        assert of_row[: len(row)].argmax(axis=-1).tolist() == row


@pytest.fixture
def tokenizer_directory(tmp_path):
    """A tokenizer.json as T5 has it: unigram pieces, and a post-processor that ends every text with </s>."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    extra = [f"<extra_id_{number}>" for number in range(2)]
    pieces = ["<pad>", "</s>", "<unk>", "▁", "▁a", "▁cat", "s", "▁sat", ".", "c", "a", "t", *reversed(extra)]
    backend = Tokenizer(models.Unigram([(piece, -float(index)) for index, piece in enumerate(pieces)], unk_id=2))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    named = ["<pad>", "</s>", "<unk>", *extra]
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in named])
    backend.save(str(tmp_path / "tokenizer.json"))
    settings = {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>", "additional_special_tokens": extra}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**settings, "tokenizer_class": "T5Tokenizer"}))
    return tmp_path


def test_tokenizer_ends_sources(tokenizer_directory, tmp_path):
    tokenizer = Tokenizer.from_directory(tokenizer_directory)
    assert tokenizer.encode("a cat sat.") == [4, 5, 7, 8, 1]
    assert tokenizer.encode("a cat sat.", add_special_tokens=False) == [4, 5, 7, 8]
    assert tokenizer.encode("a <extra_id_0> cats") == [4, 3, 13, 5, 6, 1]
    assert tokenizer.decode([0, 13, 4, 5, 6, 12, 7, 8, 1, 0]) == "a cats sat."
    assert (tokenizer.eos_id, tokenizer.pad_id, tokenizer.bos_id) == (1, 0, None)
    export_hf(LanguageModel(tiny().config, tiny().params, tokenizer), tmp_path / "model")
    lm = load(tmp_path / "model")
    by_text = forward(lm, TARGETS[:2], sources=["a cat", "a cat sat."])
    np.testing.assert_array_equal(by_text, forward(lm, TARGETS[:2], sources=[[4, 5, 1], [4, 5, 7, 8, 1]]))

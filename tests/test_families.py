"""Families: configs are translated strictly and back, and the same weights give the same logits as transformers."""

import functools
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from skipjax import decoder, families
from skipjax.config import RopeConfig
from skipjax.huggingface import load_huggingface

LLAMA = {
    "model_type": "llama",
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
OPT = {
    "model_type": "opt",
    "vocab_size": 61,
    "hidden_size": 32,
    "ffn_dim": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "bos_token_id": 2,
    "eos_token_id": 2,
    "pad_token_id": 1,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}

VARIANTS = {
    "llama grouped queries": LLAMA,
    "llama multi-head": {**LLAMA, "num_key_value_heads": 4},
    "llama multi-query": {**LLAMA, "num_key_value_heads": 1},
    "llama tied": {**LLAMA, "tie_word_embeddings": True},
    "llama attention biases": {**LLAMA, "attention_bias": True},
    "llama mlp biases": {**LLAMA, "mlp_bias": True},
    "llama head size": {**LLAMA, "head_dim": 12},
    "llama gelu": {**LLAMA, "hidden_act": "gelu_pytorch_tanh"},
    "llama rope theta": {**LLAMA, "rope_theta": 500.0},
    "llama rope linear": {**LLAMA, "rope_scaling": {"type": "linear", "factor": 3.0}},
    "llama rope llama3": {**LLAMA, "rope_theta": 500.0, "rope_scaling": LLAMA3_ROPE},
    "llama rope parameters": {**LLAMA, "rope_parameters": {"rope_theta": 500.0, **LLAMA3_ROPE}},
    "opt": OPT,
    "opt post-norm with projections": {**OPT, "do_layer_norm_before": False, "word_embed_proj_dim": 20},
    "opt projections": {**OPT, "word_embed_proj_dim": 20},
    "opt without biases": {**OPT, "enable_bias": False},
    "opt plain norms": {**OPT, "layer_norm_elementwise_affine": False},
    "opt without final norm": {**OPT, "_remove_final_layer_norm": True},
    "opt untied": {**OPT, "tie_word_embeddings": False},
    "opt gelu": {**OPT, "activation_function": "gelu"},
}


@functools.partial(jax.jit, static_argnums=0)
def full_depth_logits(config, params, tokens):
    padding = jnp.zeros(tokens.shape[0], jnp.int32)
    h = decoder.teacher_forced(config, params, tokens, padding, (tokens.shape[1],) * config.num_layers)
    return decoder.ends_of(config, params).logits(h)


@pytest.mark.parametrize("data", VARIANTS.values(), ids=VARIANTS.keys())
def test_logits_equal_those_of_transformers(data, tmp_path):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    reference = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**data)).eval()
    with torch.no_grad():
        for parameter in reference.parameters():  # fresh norms are ones and fresh biases zeros: those hide mistakes
            parameter.copy_(torch.randn(parameter.shape) * 0.2 + (parameter.ndim == 1))
    reference.save_pretrained(tmp_path)
    config, params, tokenizer, recorded = load_huggingface(tmp_path, "float32", "unrolled")
    assert tokenizer is None
    assert recorded is None
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, decoder.abstract_params(config))
    # Long enough for all three zones of the Llama 3 embedding.
    ids = np.random.default_rng(0).integers(3, 61, (2, 40))
    with torch.inference_mode():
        expected = reference(input_ids=torch.from_numpy(ids)).logits.numpy()
    assert np.max(np.abs(expected)) > 0.1
    np.testing.assert_allclose(full_depth_logits(config, params, ids.astype(np.int32)), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("data", VARIANTS.values(), ids=VARIANTS.keys())
def test_config_round_trip(data):
    config = families.from_huggingface(data)
    written = json.loads(json.dumps(families.to_huggingface(config)))
    assert families.from_huggingface(written) == config


def test_both_forms_of_rotary_fields():
    expected = RopeConfig(500.0, "llama3", 8.0, 1.0, 4.0, 32)
    assert families.from_huggingface(VARIANTS["llama rope llama3"]).rope == expected
    assert families.from_huggingface(VARIANTS["llama rope parameters"]).rope == expected
    assert families.from_huggingface(LLAMA).rope == RopeConfig(10000.0)
    assert families.from_huggingface(VARIANTS["llama rope linear"]).rope == RopeConfig(10000.0, "linear", 3.0)
    old = {**LLAMA, "rope_theta": 100000, "rope_scaling": None}
    assert families.from_huggingface(old).rope == RopeConfig(100000.0)


# The fields that published config.json files hold, with the number of parameters their model cards give.
PUBLISHED = {
    "opt-125m": (
        {**OPT, "vocab_size": 50272, "hidden_size": 768, "ffn_dim": 3072, "num_hidden_layers": 12, "prefix": "</s>"}
        | {"num_attention_heads": 12, "max_position_embeddings": 2048, "word_embed_proj_dim": 768, "dropout": 0.1}
        | {"do_layer_norm_before": True, "activation_dropout": 0.0, "layerdrop": 0.0, "torch_dtype": "float16"},
        125_239_296,
    ),
    "opt-350m": (
        {**OPT, "vocab_size": 50272, "hidden_size": 1024, "ffn_dim": 4096, "num_hidden_layers": 24}
        | {"num_attention_heads": 16, "max_position_embeddings": 2048, "word_embed_proj_dim": 512}
        | {"do_layer_norm_before": False},
        331_196_416,
    ),
    "opt-1.3b": (
        {**OPT, "vocab_size": 50272, "hidden_size": 2048, "ffn_dim": 8192, "num_hidden_layers": 24}
        | {"num_attention_heads": 32, "max_position_embeddings": 2048, "word_embed_proj_dim": 2048},
        1_315_758_080,
    ),
    "SmolLM2-135M": (
        {**LLAMA, "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30}
        | {"num_attention_heads": 9, "num_key_value_heads": 3, "tie_word_embeddings": True, "rope_interleaved": False}
        | {"is_llama_config": True, "pretraining_tp": 1, "transformers.js_config": {"dtype": "q4"}},
        134_515_008,
    ),
    "Llama-3.2-1B": (
        {**LLAMA, "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16}
        | {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "tie_word_embeddings": True}
        | {"bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009], "mlp_bias": False}
        | {"rope_theta": 500000.0, "rope_scaling": LLAMA3_ROPE | {"factor": 32.0}},
        1_235_814_400,
    ),
    "Llama-2-7b": (
        {**LLAMA, "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32}
        | {"num_attention_heads": 32, "num_key_value_heads": 32, "pretraining_tp": 1, "rope_scaling": None},
        6_738_415_616,
    ),
}


@pytest.mark.parametrize(("data", "count"), PUBLISHED.values(), ids=PUBLISHED.keys())
def test_published_configs(data, count):
    config = families.from_huggingface(data)
    weights = list(families.weight_names(config))
    assert sum(len(names) * math.prod(shape) for _, names, shape in weights) == count
    every_name = [name for _, names, _ in weights for name in names]
    assert len(set(every_name)) == len(every_name)
    if data["num_hidden_layers"] == 16:
        assert config.eos_ids == (128001, 128008, 128009)


def test_end_of_sequence_ids():
    assert families.from_huggingface({**LLAMA, "eos_token_id": None}).eos_ids == ()
    assert families.from_huggingface({**LLAMA, "eos_token_id": [5, 6, 5]}).eos_ids == (5, 6)
    generation = {"eos_token_id": [7, 8], "pad_token_id": 0, "bos_token_id": 9, "temperature": 0.6}
    config = families.from_huggingface(LLAMA, generation)
    assert config.eos_ids == (7, 8)
    assert config.pad_id == 0, "fills what config.json leaves out"
    assert config.bos_id == 1, "does not replace what config.json says"
    assert families.from_huggingface({**LLAMA, "pad_token_id": -1}).pad_id is None


def without(data, name):
    return {key: value for key, value in data.items() if key != name}


BAD = {
    "no model type": (without(LLAMA, "model_type"), "model_type must be one of 'llama', 'opt', .*, got None"),
    "another model type": ({**LLAMA, "model_type": "gpt2"}, "model_type must be one of 'llama', 'opt', .*, got 'gpt2'"),
    "unknown field": ({**LLAMA, "logit_scale": 2.0}, "'logit_scale' is not known"),
    "two unknown fields": ({**OPT, "b_new": 1, "a_new": 1}, "'a_new', 'b_new' is not known"),
    "other family's field": ({**OPT, "rope_theta": 1.0}, "'rope_theta' is not known"),
    "quantised": ({**LLAMA, "quantization_config": {"bits": 4}}, "quantization_config .* is not supported"),
    "sliding window": ({**LLAMA, "sliding_window": 4096}, "sliding_window 4096 is not supported"),
    "tensor parallel": ({**LLAMA, "pretraining_tp": 2}, "pretraining_tp 2 is not supported, .* None or 1"),
    "encoder-decoder": ({**OPT, "is_encoder_decoder": True}, "is_encoder_decoder True is not supported"),
    "number for a flag": ({**OPT, "is_encoder_decoder": 0}, "is_encoder_decoder 0 is not supported"),
    "partial rotary": ({**LLAMA, "partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not supported"),
    "yarn": ({**LLAMA, "rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "rope_type 'yarn' is not supported"),
    "dynamic": ({**LLAMA, "rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type 'dynamic' is not supp"),
    "longrope": ({**LLAMA, "rope_parameters": {"rope_type": "longrope"}}, "rope_type 'longrope' is not supported"),
    "linear without factor": ({**LLAMA, "rope_scaling": {"type": "linear"}}, "rope_scaling: factor is missing"),
    "unknown rotary field": (
        {**LLAMA, "rope_scaling": {"type": "linear", "factor": 2.0, "twist": 1}},
        "rope_scaling: 'twist' is not known",
    ),
    "rotary fields differ": (
        {**LLAMA, "rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_type": "default"}},
        "must be the same",
    ),
    "rotary zone": (
        {**LLAMA, "rope_scaling": LLAMA3_ROPE | {"high_freq_factor": 1.0}},
        "high_freq_factor must be above low_freq_factor 1, got 1",
    ),
    "rotary field no object": ({**LLAMA, "rope_scaling": "linear"}, "rope_scaling must be an object or null"),
    "negative theta": ({**LLAMA, "rope_theta": -1}, "rope_theta must be a number above 0, got -1"),
    "activation": ({**LLAMA, "hidden_act": "silly"}, "hidden_act must be one of .* got 'silly' .did you mean 'silu'"),
    "opt activation": ({**OPT, "activation_function": "tanh"}, "activation_function must be one of"),
    "heads": ({**OPT, "num_attention_heads": 5}, "num_attention_heads must divide hidden_size 32, got 5"),
    "llama heads": ({**LLAMA, "num_attention_heads": 6, "num_key_value_heads": 2}, "must divide hidden_size 32"),
    "kv heads": ({**LLAMA, "num_key_value_heads": 3}, "num_key_value_heads must divide num_attention_heads 4, got 3"),
    "odd head": ({**LLAMA, "head_dim": 7}, "head_dim must be even"),
    "missing size": (without(LLAMA, "hidden_size"), "hidden_size is missing, it must be an integer of at least 1"),
    "negative size": ({**OPT, "ffn_dim": -4}, "ffn_dim must be an integer of at least 1, got -4"),
    "text for a size": ({**OPT, "vocab_size": "61"}, "vocab_size must be an integer of at least 1, got '61'"),
    "no layers": ({**LLAMA, "num_hidden_layers": 0}, "num_hidden_layers must be an integer of at least 1, got 0"),
    "epsilon": ({**LLAMA, "rms_norm_eps": 0}, "rms_norm_eps must be a number above 0, got 0"),
    "flag": ({**LLAMA, "attention_bias": "no"}, "attention_bias must be true or false, got 'no'"),
    "id outside": ({**LLAMA, "eos_token_id": 61}, "eos_token_id must be an integer from 0 to 60, got 61"),
    "one id outside": ({**LLAMA, "eos_token_id": [2, 99]}, "eos_token_id must be an integer from 0 to 60, got 99"),
}


@pytest.mark.parametrize(("data", "sentence"), BAD.values(), ids=BAD.keys())
def test_refused_configs(data, sentence):
    with pytest.raises(ValueError, match=f"^config.json: .*{sentence}") as caught:
        families.from_huggingface(data)
    assert "\n" not in str(caught.value)

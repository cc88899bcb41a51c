"""Shapes of published models, for benchmarks with random weights.

The numbers are those of the config.json files on the Hugging Face Hub: HuggingFaceTB/SmolLM2-135M, SmolLM2-360M and
SmolLM2-1.7B, meta-llama/Llama-3.2-1B, Llama-3.2-3B and Llama-3.1-8B, facebook/opt-125m, opt-1.3b, opt-2.7b and
opt-6.7b, google-t5/t5-small, t5-base, t5-large and t5-3b, google/flan-t5-base and flan-t5-large.
"""

from __future__ import annotations

from typing import Any

from skipjax import checks, families
from skipjax.config import ModelConfig
from skipjax.decoder import init_params, stack_layers
from skipjax.language_model import LanguageModel
from skipjax.loading import resolve_dtype, resolve_execution

_OPT = {
    "model_type": "opt",
    "vocab_size": 50272,
    "max_position_embeddings": 2048,
    "activation_function": "relu",
    "do_layer_norm_before": True,
    "bos_token_id": 2,
    "eos_token_id": 2,
    "pad_token_id": 1,
}

_T5 = {
    "model_type": "t5",
    "vocab_size": 32128,
    "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128,
    "decoder_start_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
}

_T5_V1_1 = {**_T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}

_SMOLLM2 = {
    "model_type": "llama",
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_theta": 100000.0,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 0,
}

_ROPE_SCALING = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}

_LLAMA_3 = {
    "model_type": "llama",
    "vocab_size": 128256,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_theta": 500000.0,
    "rope_scaling": _ROPE_SCALING,
    "tie_word_embeddings": True,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
}


def _opt(layers: int, size: int, heads: int) -> dict[str, Any]:
    sizes = {"hidden_size": size, "word_embed_proj_dim": size, "ffn_dim": 4 * size}
    return {**_OPT, **sizes, "num_hidden_layers": layers, "num_attention_heads": heads}


def _llama(family: dict[str, Any], layers: int, size: int, heads: int, ffn_size: int, **changes: Any) -> dict[str, Any]:
    sizes = {"hidden_size": size, "intermediate_size": ffn_size}
    return {**family, **sizes, "num_hidden_layers": layers, "num_attention_heads": heads, **changes}


def _t5(family: dict[str, Any], layers: int, size: int, heads: int, head_size: int, ffn_size: int) -> dict[str, Any]:
    sizes = {"d_model": size, "d_kv": head_size, "d_ff": ffn_size}
    return {**family, **sizes, "num_layers": layers, "num_heads": heads}


_FIELDS: dict[str, dict[str, Any]] = {
    "smollm2-135m": _llama(_SMOLLM2, 30, 576, 9, 1536, num_key_value_heads=3),
    "smollm2-360m": _llama(_SMOLLM2, 32, 960, 15, 2560, num_key_value_heads=5),
    "smollm2-1.7b": _llama(_SMOLLM2, 24, 2048, 32, 8192, num_key_value_heads=32, rope_theta=130000.0),
    "llama-3.2-1b": _llama(_LLAMA_3, 16, 2048, 32, 8192, head_dim=64),
    "llama-3.2-3b": _llama(_LLAMA_3, 28, 3072, 24, 8192, head_dim=128),
    "llama-3.1-8b": _llama(
        *(_LLAMA_3, 32, 4096, 32, 14336),
        rope_scaling={**_ROPE_SCALING, "factor": 8.0},
        tie_word_embeddings=False,
    ),
    "opt-125m": _opt(12, 768, 12),
    "opt-1.3b": _opt(24, 2048, 32),
    "opt-2.7b": _opt(32, 2560, 32),
    "opt-6.7b": _opt(32, 4096, 32),
    "t5-small": _t5(_T5, 6, 512, 8, 64, 2048),
    "t5-base": _t5(_T5, 12, 768, 12, 64, 3072),
    "t5-large": _t5(_T5, 24, 1024, 16, 64, 4096),
    "t5-3b": _t5(_T5, 24, 1024, 32, 128, 16384),
    "flan-t5-base": _t5(_T5_V1_1, 12, 768, 12, 64, 2048),
    "flan-t5-large": _t5(_T5_V1_1, 24, 1024, 16, 64, 2816),
}

SHAPES = tuple(_FIELDS)


def shape_config(name: str) -> ModelConfig:
    """The config of a shape. Raises ValueError for a name that is not in `SHAPES`."""
    return families.from_huggingface(_FIELDS[checks.choice("shape", name, SHAPES)])


def random_model(config: ModelConfig, *, dtype: Any = "auto", execution: str = "auto") -> LanguageModel:
    """A model with random weights and without a tokenizer; `dtype` and `execution` as in `skipjax.load`."""
    form = resolve_execution(execution)
    params = init_params(config, 0, resolve_dtype(dtype))
    return LanguageModel(config, stack_layers(params) if form == "scanned" else params)

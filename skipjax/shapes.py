"""Shapes of published models, for benchmarks with random weights.

The numbers are those of the config.json files on the Hugging Face Hub: HuggingFaceTB/SmolLM2-135M, facebook/opt-125m,
facebook/opt-1.3b, meta-llama/Llama-3.2-1B, google-t5/t5-small, t5-large and t5-3b, google/flan-t5-base.
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

_FIELDS: dict[str, dict[str, Any]] = {
    "smollm2-135m": {
        "model_type": "llama",
        "vocab_size": 49152,
        "hidden_size": 576,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "intermediate_size": 1536,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "rope_theta": 100000.0,
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": 0,
    },
    "opt-125m": {
        **_OPT,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "ffn_dim": 3072,
        "word_embed_proj_dim": 768,
    },
    "opt-1.3b": {
        **_OPT,
        "hidden_size": 2048,
        "num_hidden_layers": 24,
        "num_attention_heads": 32,
        "ffn_dim": 8192,
        "word_embed_proj_dim": 2048,
    },
    "llama-3.2-1b": {
        "model_type": "llama",
        "vocab_size": 128256,
        "hidden_size": 2048,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "intermediate_size": 8192,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        "tie_word_embeddings": True,
        "bos_token_id": 128000,
        "eos_token_id": 128001,
    },
    "t5-small": {**_T5, "d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_heads": 8},
    "t5-large": {**_T5, "d_model": 1024, "d_kv": 64, "d_ff": 4096, "num_layers": 24, "num_heads": 16},
    "t5-3b": {**_T5, "d_model": 1024, "d_kv": 128, "d_ff": 16384, "num_layers": 24, "num_heads": 32},
    "flan-t5-base": {
        **_T5,
        "d_model": 768,
        "d_kv": 64,
        "d_ff": 2048,
        "num_layers": 12,
        "num_heads": 12,
        "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False,
    },
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

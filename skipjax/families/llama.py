"""Llama and everything published in its form (SmolLM2, TinyLlama, Vicuna, ...): config fields and weight names.

Source: transformers 5, models/llama/configuration_llama.py, modeling_llama.py and modeling_rope_utils.py.
"""

from __future__ import annotations

from typing import Any

from skipjax import checks
from skipjax.config import ModelConfig, RopeConfig
from skipjax.families.fields import ACTIVATIONS, Fields, token_id_fields

MODEL_TYPE = "llama"
ARCHITECTURE = "LlamaForCausalLM"

# Our path -> Hugging Face's name; a module's parameters follow `skipjax.families.LEAVES`.
_WEIGHTS = {
    "ends.tokens": "model.embed_tokens.weight",
    "ends.final_norm": "model.norm",
    "ends.head": "lm_head",
    "layers.attention_norm": "model.layers.{layer}.input_layernorm",
    "layers.attention.query": "model.layers.{layer}.self_attn.q_proj",
    "layers.attention.key": "model.layers.{layer}.self_attn.k_proj",
    "layers.attention.value": "model.layers.{layer}.self_attn.v_proj",
    "layers.attention.output": "model.layers.{layer}.self_attn.o_proj",
    "layers.ffn_norm": "model.layers.{layer}.post_attention_layernorm",
    "layers.ffn.gate": "model.layers.{layer}.mlp.gate_proj",
    "layers.ffn.up": "model.layers.{layer}.mlp.up_proj",
    "layers.ffn.down": "model.layers.{layer}.mlp.down_proj",
}
PREFIXES: tuple[str, ...] = ("model.",)  # left out where the bare decoder was saved
LEFT_OVERS: tuple[str, ...] = (
    r".*\.rotary_emb\.inv_freq",
)  # computed from the config; saved as buffers before transformers 4.32
COPIES: tuple[str, ...] = ()
TIED_BY_WEIGHTS = False

_WITHOUT_EFFECT = frozenset({"initializer_range", "is_llama_config", "max_sequence_length", "mlp_dropout"})
_ONLY_VALUES = {
    "layer_types": (None,),
    "partial_rotary_factor": (None, 1.0),
    "pretraining_tp": (None, 1),  # other values sum in pieces, which is the same only up to rounding
    "rope_interleaved": (False,),
}


def weights(config: ModelConfig) -> dict[str, str]:
    return _WEIGHTS


def from_huggingface(data: dict[str, Any]) -> ModelConfig:
    """Translates a parsed config.json. Raises ValueError for any field or value that is not implemented."""
    fields = Fields(data)
    vocab_size = fields.integer("vocab_size")
    hidden_size = fields.integer("hidden_size")
    num_layers = fields.integer("num_hidden_layers")
    num_heads = fields.integer("num_attention_heads")
    num_kv_heads = fields.integer("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise ValueError(
            f"config.json: num_key_value_heads must divide num_attention_heads {num_heads}, got {num_kv_heads}"
        )
    if data.get("head_dim") is None and hidden_size % num_heads:
        raise ValueError(
            f"config.json: num_attention_heads must divide hidden_size {hidden_size} where head_dim is not given, "
            f"got {num_heads}"
        )
    head_size = fields.integer("head_dim", max(hidden_size // num_heads, 1))
    if head_size % 2:
        raise ValueError(f"config.json: head_dim must be even for rotary embeddings, got {head_size}")
    max_positions = fields.integer("max_position_embeddings", 2048)
    attention_bias = fields.flag("attention_bias", False)
    activation = checks.choice("config.json: hidden_act", fields.take("hidden_act", "silu"), ACTIVATIONS)
    config = ModelConfig(
        family=MODEL_TYPE,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        ffn_size=fields.integer("intermediate_size"),
        embed_size=hidden_size,
        max_positions=max_positions,
        norm="rms",
        norm_epsilon=fields.real("rms_norm_eps", 1e-6),
        norm_affine=True,
        norm_before=True,
        final_norm=True,
        activation=ACTIVATIONS[activation],
        gated=True,
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        mlp_bias=fields.flag("mlp_bias", False),
        rope=_rope(fields, max_positions),
        position_offset=0,
        tied=fields.flag("tie_word_embeddings", False),
        bos_id=fields.token_id("bos_token_id", vocab_size),
        eos_ids=fields.token_ids("eos_token_id", vocab_size),
        pad_id=fields.token_id("pad_token_id", vocab_size),
    )
    fields.finish(_WITHOUT_EFFECT, _ONLY_VALUES)
    return config


def _rope(fields: Fields, max_positions: int) -> RopeConfig:
    """Reads both forms: `rope_theta` with `rope_scaling` (transformers 4), and `rope_parameters` (transformers 5)."""
    theta = fields.take("rope_theta")
    objects = {}
    for name in ("rope_scaling", "rope_parameters"):
        value = fields.take(name)
        if value is not None and not isinstance(value, dict):
            raise ValueError(f"{fields.name(name)} must be an object or null, got {value!r}")
        if value:
            objects[name] = value
    if len(objects) == 2 and objects["rope_scaling"] != objects["rope_parameters"]:
        raise ValueError(f"{fields.where}: rope_scaling and rope_parameters must be the same, got {objects}")
    name, given = next(iter(objects.items()), ("rope_parameters", {}))
    inner = Fields(given, f"{fields.where}: {name}")
    inner_theta = inner.take("rope_theta")
    theta = theta if inner_theta is None else inner_theta
    theta = checks.real(fields.name("rope_theta"), 10000.0 if theta is None else theta, 0, above=True)
    old_name, kind = inner.take("type"), inner.take("rope_type")
    kind = kind or old_name or "default"
    if kind not in ("default", "linear", "llama3"):
        raise ValueError(
            f"{inner.name('rope_type')} {kind!r} is not supported, it must be 'default', 'linear' or 'llama3'"
        )
    rope = RopeConfig(theta)
    if kind == "linear":
        rope = RopeConfig(theta, "linear", inner.real("factor"))
    elif kind == "llama3":
        rope = RopeConfig(
            theta,
            "llama3",
            factor=inner.real("factor"),
            low_frequency_factor=inner.real("low_freq_factor"),
            high_frequency_factor=inner.real("high_freq_factor"),
            original_max_positions=inner.integer("original_max_position_embeddings", max_positions),
        )
        if rope.high_frequency_factor <= rope.low_frequency_factor:
            raise ValueError(
                f"{inner.name('high_freq_factor')} must be above low_freq_factor {rope.low_frequency_factor:g}, "
                f"got {rope.high_frequency_factor:g}"
            )
    inner.finish((), {"partial_rotary_factor": (None, 1.0)})
    return rope


def to_huggingface(config: ModelConfig) -> dict[str, Any]:
    """The config.json that `from_huggingface` reads as `config`, rotary fields in the form both 4 and 5 read."""
    rope = config.rope or RopeConfig()
    scaling: dict[str, Any] | None = None
    if rope.kind != "default":
        scaling = {"rope_type": rope.kind, "factor": rope.factor}
    if scaling is not None and rope.kind == "llama3":
        scaling |= {
            "low_freq_factor": rope.low_frequency_factor,
            "high_freq_factor": rope.high_frequency_factor,
            "original_max_position_embeddings": rope.original_max_positions,
        }
    return {
        "architectures": [ARCHITECTURE],
        "model_type": MODEL_TYPE,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_size,
        "intermediate_size": config.ffn_size,
        "max_position_embeddings": config.max_positions,
        "rms_norm_eps": config.norm_epsilon,
        "hidden_act": "gelu_pytorch_tanh" if config.activation == "gelu_new" else config.activation,
        "attention_bias": config.qkv_bias,
        "mlp_bias": config.mlp_bias,
        "rope_theta": rope.theta,
        "rope_scaling": scaling,
        "tie_word_embeddings": config.tied,
        **token_id_fields(config.bos_id, config.eos_ids, config.pad_id),
    }

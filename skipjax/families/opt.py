"""OPT, in all its published shapes (OPT-350M is post-norm with projections): config fields and weight names.

Source: transformers 5, models/opt/configuration_opt.py and modeling_opt.py.
"""

from __future__ import annotations

from typing import Any

from skipjax import checks
from skipjax.config import ModelConfig
from skipjax.families.fields import ACTIVATIONS, Fields, token_id_fields

MODEL_TYPE = "opt"
ARCHITECTURE = "OPTForCausalLM"

# Our path -> Hugging Face's name; a module's parameters follow `skipjax.families.LEAVES`.
_WEIGHTS = {
    "ends.tokens": "model.decoder.embed_tokens.weight",
    "ends.positions": "model.decoder.embed_positions.weight",
    "ends.project_in": "model.decoder.project_in",
    "ends.final_norm": "model.decoder.final_layer_norm",
    "ends.project_out": "model.decoder.project_out",
    "ends.head": "lm_head",
    "layers.attention_norm": "model.decoder.layers.{layer}.self_attn_layer_norm",
    "layers.attention.query": "model.decoder.layers.{layer}.self_attn.q_proj",
    "layers.attention.key": "model.decoder.layers.{layer}.self_attn.k_proj",
    "layers.attention.value": "model.decoder.layers.{layer}.self_attn.v_proj",
    "layers.attention.output": "model.decoder.layers.{layer}.self_attn.out_proj",
    "layers.ffn_norm": "model.decoder.layers.{layer}.final_layer_norm",
    "layers.ffn.up": "model.decoder.layers.{layer}.fc1",
    "layers.ffn.down": "model.decoder.layers.{layer}.fc2",
}
PREFIXES: tuple[str, ...] = (
    "model.",
    "model.decoder.",
)  # left out by early conversions and where the bare decoder was saved
LEFT_OVERS: tuple[str, ...] = (r"(model\.)?decoder\.version",)  # fairseq's format number
COPIES: tuple[str, ...] = ()
TIED_BY_WEIGHTS = False

POSITION_OFFSET = 2  # OPTLearnedPositionalEmbedding keeps two rows before position 0
NORM_EPSILON = 1e-5  # torch.nn.LayerNorm's default, which OPT never changes

_WITHOUT_EFFECT = frozenset({"activation_dropout", "dropout", "init_std", "layerdrop"})


def weights(config: ModelConfig) -> dict[str, str]:
    return _WEIGHTS


def from_huggingface(data: dict[str, Any]) -> ModelConfig:
    """Translates a parsed config.json. Raises ValueError for any field or value that is not implemented."""
    fields = Fields(data)
    vocab_size = fields.integer("vocab_size")
    hidden_size = fields.integer("hidden_size")
    num_heads = fields.integer("num_attention_heads")
    if hidden_size % num_heads:
        raise ValueError(f"config.json: num_attention_heads must divide hidden_size {hidden_size}, got {num_heads}")
    norm_before = fields.flag("do_layer_norm_before", True)
    keeps_final_norm = not fields.flag("_remove_final_layer_norm", False)
    bias = fields.flag("enable_bias", True)
    activation = checks.choice(
        "config.json: activation_function", fields.take("activation_function", "relu"), ACTIVATIONS
    )
    config = ModelConfig(
        family=MODEL_TYPE,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_layers=fields.integer("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_size=hidden_size // num_heads,
        ffn_size=fields.integer("ffn_dim"),
        embed_size=fields.integer("word_embed_proj_dim", hidden_size),
        max_positions=fields.integer("max_position_embeddings", 2048),
        norm="layer",
        norm_epsilon=NORM_EPSILON,
        norm_affine=fields.flag("layer_norm_elementwise_affine", True),
        norm_before=norm_before,
        final_norm=norm_before and keeps_final_norm,
        activation=ACTIVATIONS[activation],
        gated=False,
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=bias,
        rope=None,
        position_offset=POSITION_OFFSET,
        tied=fields.flag("tie_word_embeddings", True),
        bos_id=fields.token_id("bos_token_id", vocab_size),
        eos_ids=fields.token_ids("eos_token_id", vocab_size),
        pad_id=fields.token_id("pad_token_id", vocab_size),
    )
    fields.finish(_WITHOUT_EFFECT, {})
    return config


def to_huggingface(config: ModelConfig) -> dict[str, Any]:
    """The config.json that `from_huggingface` reads as `config`."""
    return {
        "architectures": [ARCHITECTURE],
        "model_type": MODEL_TYPE,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "ffn_dim": config.ffn_size,
        "word_embed_proj_dim": config.embed_size,
        "max_position_embeddings": config.max_positions,
        "do_layer_norm_before": config.norm_before,
        "_remove_final_layer_norm": config.norm_before and not config.final_norm,
        "enable_bias": config.qkv_bias,
        "layer_norm_elementwise_affine": config.norm_affine,
        "activation_function": config.activation,
        "tie_word_embeddings": config.tied,
        **token_id_fields(config.bos_id, config.eos_ids, config.pad_id),
    }

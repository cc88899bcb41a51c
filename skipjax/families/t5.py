"""T5, in all its published forms (v1.0, v1.1, Flan-T5) and mT5: config fields and weight names.

v1.0 ties its LM head to the token embedding and scales hidden states before it, and has a plain ReLU feed-forward; v1.1
and Flan-T5 have a head of their own, unscaled, and a GELU gate. mT5 is v1.1 under another name.

Source: transformers 5, models/t5/configuration_t5.py and modeling_t5.py, and the same of models/mt5.
"""

from __future__ import annotations

from typing import Any

from skipjax import checks
from skipjax.config import ModelConfig, RelativePositions
from skipjax.families.fields import ACTIVATIONS, Fields, token_id_fields

T5, MT5 = "t5", "mt5"  # the model types
ARCHITECTURES = {T5: "T5ForConditionalGeneration", MT5: "MT5ForConditionalGeneration"}

# Our path -> Hugging Face's name; a module's parameters follow `skipjax.families.LEAVES`. Block 0 holds the position
# bias of all blocks.
_WEIGHTS = {
    "ends.tokens": "shared.weight",
    "ends.relative_bias": "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
    "ends.final_norm": "decoder.final_layer_norm",
    "ends.head": "lm_head",
    "layers.attention_norm": "decoder.block.{layer}.layer.0.layer_norm",
    "layers.attention.query": "decoder.block.{layer}.layer.0.SelfAttention.q",
    "layers.attention.key": "decoder.block.{layer}.layer.0.SelfAttention.k",
    "layers.attention.value": "decoder.block.{layer}.layer.0.SelfAttention.v",
    "layers.attention.output": "decoder.block.{layer}.layer.0.SelfAttention.o",
    "layers.cross_norm": "decoder.block.{layer}.layer.1.layer_norm",
    "layers.cross_attention.query": "decoder.block.{layer}.layer.1.EncDecAttention.q",
    "layers.cross_attention.key": "decoder.block.{layer}.layer.1.EncDecAttention.k",
    "layers.cross_attention.value": "decoder.block.{layer}.layer.1.EncDecAttention.v",
    "layers.cross_attention.output": "decoder.block.{layer}.layer.1.EncDecAttention.o",
    "layers.ffn_norm": "decoder.block.{layer}.layer.2.layer_norm",
    "layers.ffn.down": "decoder.block.{layer}.layer.2.DenseReluDense.wo",
    "encoder.ends.relative_bias": "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
    "encoder.ends.final_norm": "encoder.final_layer_norm",
    "encoder.layers.attention_norm": "encoder.block.{layer}.layer.0.layer_norm",
    "encoder.layers.attention.query": "encoder.block.{layer}.layer.0.SelfAttention.q",
    "encoder.layers.attention.key": "encoder.block.{layer}.layer.0.SelfAttention.k",
    "encoder.layers.attention.value": "encoder.block.{layer}.layer.0.SelfAttention.v",
    "encoder.layers.attention.output": "encoder.block.{layer}.layer.0.SelfAttention.o",
    "encoder.layers.ffn_norm": "encoder.block.{layer}.layer.1.layer_norm",
    "encoder.layers.ffn.down": "encoder.block.{layer}.layer.1.DenseReluDense.wo",
}
_PLAIN = {
    "layers.ffn.up": "decoder.block.{layer}.layer.2.DenseReluDense.wi",
    "encoder.layers.ffn.up": "encoder.block.{layer}.layer.1.DenseReluDense.wi",
}
_GATED = {
    "layers.ffn.gate": "decoder.block.{layer}.layer.2.DenseReluDense.wi_0",
    "layers.ffn.up": "decoder.block.{layer}.layer.2.DenseReluDense.wi_1",
    "encoder.layers.ffn.gate": "encoder.block.{layer}.layer.1.DenseReluDense.wi_0",
    "encoder.layers.ffn.up": "encoder.block.{layer}.layer.1.DenseReluDense.wi_1",
}
PREFIXES: tuple[str, ...] = ()
LEFT_OVERS: tuple[str, ...] = (
    r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
)  # of early conversions; cross-attention has no positions
COPIES: tuple[str, ...] = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
# transformers 5 writes tie_word_embeddings true into every config.json of this family, and an untied head beside it.
TIED_BY_WEIGHTS = True

_WITHOUT_EFFECT = frozenset(
    {"classifier_dropout", "dropout_rate", "gradient_checkpointing", "initializer_factor", "n_positions", "output_past"}
)
_ONLY_VALUES = {
    "is_decoder": (False,),
    "is_encoder_decoder": (True,),
    "scale_decoder_outputs": (None, False),  # taken where it means something; mT5 never scales
}


def weights(config: ModelConfig) -> dict[str, str]:
    return _WEIGHTS | (_GATED if config.gated else _PLAIN)


def from_huggingface(data: dict[str, Any]) -> ModelConfig:
    """Translates a parsed config.json. Raises ValueError for any field or value that is not implemented."""
    family = data["model_type"]
    fields = Fields({"pad_token_id": 0, "eos_token_id": 1, **data})
    vocab_size = fields.integer("vocab_size")
    hidden_size = fields.integer("d_model")
    encoder_layers = fields.integer("num_layers")
    num_heads = fields.integer("num_heads")
    activation, gated = _feed_forward(fields, "relu" if family == T5 else "gated-gelu")
    tied = fields.flag("tie_word_embeddings", family == T5)
    pad_id, start_id = (fields.token_id(name, vocab_size) for name in ("pad_token_id", "decoder_start_token_id"))
    if start_id is None and pad_id is None:
        raise ValueError("config.json: decoder_start_token_id must be given where pad_token_id is null")
    config = ModelConfig(
        family=family,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_layers=fields.integer("num_decoder_layers", encoder_layers),
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_size=fields.integer("d_kv"),
        ffn_size=fields.integer("d_ff"),
        embed_size=hidden_size,
        max_positions=None,
        norm="rms",
        norm_epsilon=fields.real("layer_norm_epsilon", 1e-6),
        norm_affine=True,
        norm_before=True,
        final_norm=True,
        activation=activation,
        gated=gated,
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        rope=None,
        position_offset=0,
        tied=tied,
        bos_id=fields.token_id("bos_token_id", vocab_size),
        eos_ids=fields.token_ids("eos_token_id", vocab_size),
        pad_id=pad_id,
        encoder_layers=encoder_layers,
        start_id=pad_id if start_id is None else start_id,
        relative=_relative(fields),
        scale_attention=False,
        scale_head=family == T5 and fields.flag("scale_decoder_outputs", tied),
    )
    fields.finish(_WITHOUT_EFFECT, _ONLY_VALUES)
    return config


def _feed_forward(fields: Fields, default: str) -> tuple[str, bool]:
    """Our name of the activation, and whether it is of a gate. The two fields that transformers derives from
    feed_forward_proj, and writes beside it, win over it when it reads them."""
    forms = [*ACTIVATIONS, *(f"gated-{name}" for name in ACTIVATIONS)]
    form = checks.choice(fields.name("feed_forward_proj"), fields.take("feed_forward_proj", default), forms)
    name = "gelu_new" if form == "gated-gelu" else form.removeprefix("gated-")
    name = checks.choice(fields.name("dense_act_fn"), fields.take("dense_act_fn", name), ACTIVATIONS)
    return ACTIVATIONS[name], fields.flag("is_gated_act", form.startswith("gated-"))


def _relative(fields: Fields) -> RelativePositions:
    buckets = fields.integer("relative_attention_num_buckets", 32, 4)
    if buckets % 2:
        raise ValueError(f"{fields.name('relative_attention_num_buckets')} must be even, got {buckets}")
    return RelativePositions(buckets, fields.integer("relative_attention_max_distance", 128, buckets // 2 + 1))


def to_huggingface(config: ModelConfig) -> dict[str, Any]:
    """The config.json that `from_huggingface` reads as `config`."""
    assert config.encoder_layers is not None
    assert config.relative is not None
    activation = "gelu" if config.gated and config.activation == "gelu_new" else config.activation
    return {
        "architectures": [ARCHITECTURES[config.family]],
        "model_type": config.family,
        "is_encoder_decoder": True,
        "vocab_size": config.vocab_size,
        "d_model": config.hidden_size,
        "d_kv": config.head_size,
        "d_ff": config.ffn_size,
        "num_layers": config.encoder_layers,
        "num_decoder_layers": config.num_layers,
        "num_heads": config.num_heads,
        "relative_attention_num_buckets": config.relative.buckets,
        "relative_attention_max_distance": config.relative.max_distance,
        "layer_norm_epsilon": config.norm_epsilon,
        "feed_forward_proj": f"gated-{activation}" if config.gated else activation,
        "dense_act_fn": config.activation,
        "is_gated_act": config.gated,
        "tie_word_embeddings": config.tied,
        **({"scale_decoder_outputs": config.scale_head} if config.family == T5 else {}),
        "decoder_start_token_id": config.start_id,
        **token_id_fields(config.bos_id, config.eos_ids, config.pad_id),
    }

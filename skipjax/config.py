"""The description of a model: every number and choice that shapes its parameters or its arithmetic.

One frozen dataclass describes all families; `skipjax.families` translates each Hugging Face `config.json` into
it and back. Instances are hashable, so `jax.jit` takes them as static arguments.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal


@dataclasses.dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding: base frequency and how it is stretched for long contexts.

    Attributes:
      theta: base of the geometric series of wavelengths.
      kind: "default", "linear" (all wavelengths times `factor`) or "llama3" (only the long ones, with a smooth step).
      factor: stretch of the wavelengths.
      low_frequency_factor, high_frequency_factor, original_max_positions: the "llama3" interpolation zone.
    """

    theta: float = 10000.0
    kind: Literal["default", "linear", "llama3"] = "default"
    factor: float = 1.0
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    original_max_positions: int = 8192


@dataclasses.dataclass(frozen=True)
class RelativePositions:
    """T5's relative position bias: one learned number per attention head and bucket of distances.

    Attributes:
      buckets: number of buckets; the encoder uses one half for each direction, the decoder all for looking back.
      max_distance: distances from here on share the last bucket.
    """

    buckets: int
    max_distance: int


@dataclasses.dataclass(frozen=True)
class ExitHeads:
    """What layers have of their own to leave from; without it an exit uses the final norm and the LM head.

    Attributes:
      layers: after how many layers the exits are, ascending; each below the number of layers.
      norm: each exit has its own final norm.
      adapter_rank: of the low-rank update between an exit's norm and the shared LM head; 0 for none.
      classifier: each exit has a linear classifier of its hidden state, the confidence of that name (CALM, 2207.07061).
    """

    layers: tuple[int, ...]
    norm: bool = False
    adapter_rank: int = 0
    classifier: bool = False


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """A decoder-only or an encoder-decoder language model.

    Letters: L layers, N heads, K key/value heads, H head size, D model, F feed-forward, V vocabulary.

    Attributes:
      family: name of the translation that made it, a key of `skipjax.families.FAMILIES`.
      vocab_size, hidden_size, num_layers, num_heads, num_kv_heads, head_size, ffn_size: V, D, L, N, K, H, F. L counts
        the decoder's layers.
      embed_size: width of the token embedding; differs from D only where projections sit around the blocks (OPT-350M).
      max_positions: longest sequence (prompt + generated tokens) the model can hold; None where positions are relative.
      norm: "layer" (LayerNorm) or "rms" (RMSNorm); norm_affine False leaves the scale and bias out.
      norm_before: True for pre-norm blocks; False for post-norm ones, which have no final norm.
      final_norm: whether a norm follows the last block.
      activation: name of the feed-forward activation; `gated` adds the elementwise gate of SwiGLU-like layers.
      qkv_bias, output_bias, mlp_bias: which projections have biases.
      rope: rotary embedding, or None where positions are a learned table or relative.
      position_offset: rows of the learned table that come before position 0 (2 in OPT).
      tied: True if the LM head is the token embedding.
      bos_id, pad_id: token ids or None; eos_ids: every id that ends a text, possibly none.
      encoder_layers: layers of the encoder; None for a decoder-only model.
      start_id: token that the decoder of an encoder-decoder model starts from.
      relative: relative position bias, in place of positions in the embedding.
      scale_attention: attention scores are divided by sqrt(H); T5 leaves that to its initial weights.
      scale_head: hidden states are divided by sqrt(D) before the LM head (T5 where it is tied).
      exit_heads: exits with parameters of their own.
    """

    family: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    ffn_size: int
    embed_size: int
    max_positions: int | None
    norm: Literal["layer", "rms"]
    norm_epsilon: float
    norm_affine: bool
    norm_before: bool
    final_norm: bool
    activation: str
    gated: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    rope: RopeConfig | None
    position_offset: int
    tied: bool
    bos_id: int | None
    eos_ids: tuple[int, ...]
    pad_id: int | None
    encoder_layers: int | None = None
    start_id: int | None = None
    relative: RelativePositions | None = None
    scale_attention: bool = True
    scale_head: bool = False
    exit_heads: ExitHeads | None = None

    @property
    def learned_positions(self) -> bool:
        """Whether positions are a learned table added to the embedding."""
        return self.rope is None and self.relative is None

    @property
    def encoder(self) -> ModelConfig:
        """The encoder's stack of layers, described in the same words. Only for an encoder-decoder model."""
        assert self.encoder_layers is not None
        return dataclasses.replace(self, num_layers=self.encoder_layers, encoder_layers=None, exit_heads=None)

    def to_json(self) -> dict[str, Any]:
        """A JSON object from which `from_json` makes the same config."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ModelConfig:
        """Inverse of `to_json`. Raises ValueError for unknown fields and for missing ones that have no default."""
        fields = dataclasses.fields(cls)
        needed = {field.name for field in fields if field.default is dataclasses.MISSING}
        missing, unknown = sorted(needed - set(data)), sorted(set(data) - {field.name for field in fields})
        if missing or unknown:
            raise ValueError(f"model config: missing fields {missing}, unknown fields {unknown}")
        parts: dict[str, Any] = {"rope": RopeConfig, "relative": RelativePositions, "exit_heads": ExitHeads}
        nested = {name: kind(**data[name]) for name, kind in parts.items() if data.get(name) is not None}
        if "exit_heads" in nested:
            layers = tuple(nested["exit_heads"].layers)
            nested["exit_heads"] = dataclasses.replace(nested["exit_heads"], layers=layers)
        return cls(**{**data, **nested, "eos_ids": tuple(data["eos_ids"])})

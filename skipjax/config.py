"""The description of a decoder: every number and choice that shapes its parameters or its arithmetic.

One frozen dataclass describes all decoder families; `skipjax.families` translates each Hugging Face `config.json` into
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
class DecoderConfig:
    """A decoder-only language model.

    Letters: L layers, N heads, K key/value heads, H head size, D model, F feed-forward, V vocabulary.

    Attributes:
      family: name of the translation that made it, a key of `skipjax.families.FAMILIES`.
      vocab_size, hidden_size, num_layers, num_heads, num_kv_heads, head_size, ffn_size: V, D, L, N, K, H, F.
      embed_size: width of the token embedding; differs from D only where projections sit around the blocks (OPT-350M).
      max_positions: longest sequence (prompt + generated tokens) the model can hold.
      norm: "layer" (LayerNorm) or "rms" (RMSNorm); norm_affine False leaves the scale and bias out.
      norm_before: True for pre-norm blocks; False for post-norm ones, which have no final norm.
      final_norm: whether a norm follows the last block.
      activation: name of the feed-forward activation; `gated` adds the elementwise gate of SwiGLU-like layers.
      qkv_bias, output_bias, mlp_bias: which projections have biases.
      rope: rotary embedding, or None where positions are a learned table.
      position_offset: rows of the learned table that come before position 0 (2 in OPT).
      tied: True if the LM head is the token embedding.
      bos_id, pad_id: token ids or None; eos_ids: every id that ends a text, possibly none.
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
    max_positions: int
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

    def to_json(self) -> dict[str, Any]:
        """A JSON object from which `from_json` makes the same config."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> DecoderConfig:
        """Inverse of `to_json`. Raises ValueError for missing or unknown keys."""
        names = {field.name for field in dataclasses.fields(cls)}
        if set(data) != names:
            missing, unknown = sorted(names - set(data)), sorted(set(data) - names)
            raise ValueError(f"model config: missing fields {missing}, unknown fields {unknown}")
        rope = None if data["rope"] is None else RopeConfig(**data["rope"])
        return cls(**{**data, "rope": rope, "eos_ids": tuple(data["eos_ids"])})

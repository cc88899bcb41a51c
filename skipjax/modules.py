"""The parts of a decoder as flax.nnx modules: they define parameters and arithmetic, never loops, caches or depth.

Weights are stored as [out, in], Hugging Face's own layout, and contracted on the last axis: on CPU that is as fast as
[in, out] at batch 1 and twice as fast at batch 8, and checkpoints need no transposing.

Axis letters, here and everywhere: B batch, T query positions, S key positions, N heads, K key/value heads, G = N/K,
H head size, D model, F feed-forward, V vocabulary, E embedding width, L layers.

Methods under `jax.jit` are traced and lowered once for all layers alike, which is most of the work of a program that
comes compiled from disk. XLA inlines them: what is computed, and how fast, is the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from skipjax.config import ModelConfig, RelativePositions, RopeConfig

# (query [B, T, N, H], key [B, T, K, H], value [B, T, K, H]) -> (mixed values [B, T, N, H], anything to carry out)
Attend = Callable[[jax.Array, jax.Array, jax.Array], tuple[jax.Array, Any]]

# (the layer's cross-attention, query [B, T, N, H]) -> mixed values of the encoder's states [B, T, N, H]
Recall = Callable[["CrossAttention", jax.Array], jax.Array]

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_new": lambda x: jax.nn.gelu(x, approximate=True),
}

INITIAL_SCALE = 0.02  # standard deviation of freshly drawn weights, as in GPT-2, OPT and Llama


def initial_scale(config: ModelConfig, in_size: int, part: str) -> float:
    """Standard deviation of the fresh weights of a projection of `in_size` inputs; `part` is "query", "residual" (the
    last before a residual sum), or "other".

    Where scores are not divided by sqrt(H) weights are drawn as T5's: 1 / sqrt(inputs), and queries smaller by sqrt(H).
    """
    if not config.scale_attention:
        return in_size**-0.5 / (config.head_size**0.5 if part == "query" else 1.0)
    return INITIAL_SCALE / ((2 * config.num_layers) ** 0.5 if part == "residual" else 1.0)


_FEW_ROWS = 64  # up to so many rows a product is read by XLA:CPU in place only with the matrix first


def product(x: jax.Array, weight: jax.Array, dtype: Any = None) -> jax.Array:
    """x [..., I] times weight [O, I], transposed: [..., O], in `dtype` (of x if left out).

    XLA:CPU packs the second of two matrices before it multiplies, which for a few rows is most of the work where that
    is the weight. So the weight comes first there, and the barrier keeps XLA from turning the product round again.
    """

    def rows_first(x: jax.Array, weight: jax.Array) -> jax.Array:
        return jnp.einsum("...i,oi->...o", x, weight, preferred_element_type=dtype)

    def weight_first(x: jax.Array, weight: jax.Array) -> jax.Array:
        rows = x.reshape(-1, x.shape[-1])
        columns = jax.lax.dot_general(weight, rows, (((1,), (1,)), ((), ())), preferred_element_type=dtype)
        return jax.lax.optimization_barrier(columns).T.reshape(*x.shape[:-1], -1)

    if 1 < x.size // x.shape[-1] <= _FEW_ROWS:
        return jax.lax.platform_dependent(x, weight, cpu=weight_first, default=rows_first)
    return rows_first(x, weight)


class Linear(nnx.Module):
    """y = x W^T + b with W [out, in]."""

    def __init__(self, in_size: int, out_size: int, bias: bool, *, scale: float = INITIAL_SCALE, rngs: nnx.Rngs):
        self.weight = nnx.Param(scale * jax.random.normal(rngs.params(), (out_size, in_size)))
        self.bias = nnx.Param(jnp.zeros(out_size)) if bias else None

    def __call__(self, x: jax.Array) -> jax.Array:
        y = product(x, self.weight[...])
        return y if self.bias is None else y + self.bias[...].reshape((1,) * (y.ndim - 1) + (-1,))


class Norm(nnx.Module):
    """LayerNorm or RMSNorm over the last axis, computed in float32, returned in the input's dtype."""

    def __init__(self, config: ModelConfig, size: int):
        self.epsilon = config.norm_epsilon
        self.centred = config.norm == "layer"
        self.scale = nnx.Param(jnp.ones(size)) if config.norm_affine else None
        self.bias = nnx.Param(jnp.zeros(size)) if config.norm_affine and self.centred else None

    @jax.jit
    def __call__(self, x: jax.Array) -> jax.Array:
        y = x.astype(jnp.float32)
        if self.centred:
            y = y - jnp.mean(y, axis=-1, keepdims=True)
        y = y * jax.lax.rsqrt(jnp.mean(jnp.square(y), axis=-1, keepdims=True) + self.epsilon)
        broadcast = (1,) * (x.ndim - 1) + (-1,)
        if self.scale is not None:
            y = y * self.scale[...].astype(jnp.float32).reshape(broadcast)
        if self.bias is not None:
            y = y + self.bias[...].astype(jnp.float32).reshape(broadcast)
        return y.astype(x.dtype)


class Projections(nnx.Module):
    """Query, key, value and output projections."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        self.head_size = config.head_size
        size, bias = config.hidden_size, config.qkv_bias
        width, kv_width = config.num_heads * config.head_size, config.num_kv_heads * config.head_size
        query, other = (initial_scale(config, size, part) for part in ("query", "other"))
        self.query = Linear(size, width, bias, scale=query, rngs=rngs)
        self.key = Linear(size, kv_width, bias, scale=other, rngs=rngs)
        self.value = Linear(size, kv_width, bias, scale=other, rngs=rngs)
        residual = initial_scale(config, width, "residual")
        self.output = Linear(width, size, config.output_bias, scale=residual, rngs=rngs)

    @jax.jit
    def queries(self, x: jax.Array, rotation: Rotation | None = None) -> jax.Array:
        """[B, T, N, H] of x [B, T, D], rotated if there is a rotation."""
        query = self.query(x).reshape(*x.shape[:-1], -1, self.head_size)
        return query if rotation is None else rotate(query, rotation)

    @jax.jit
    def keys_and_values(self, x: jax.Array, rotation: Rotation | None = None) -> tuple[jax.Array, jax.Array]:
        """Two [B, T, K, H] of x [B, T, D], keys rotated if there is a rotation."""
        heads = (*x.shape[:-1], -1, self.head_size)
        key, value = self.key(x).reshape(heads), self.value(x).reshape(heads)
        return (key if rotation is None else rotate(key, rotation)), value

    @jax.jit
    def joined(self, mixed: jax.Array) -> jax.Array:
        """[B, T, D] of mixed values [B, T, N, H]."""
        return self.output(mixed.reshape(*mixed.shape[:-2], -1))


class Attention(Projections):
    """Self-attention, with rotary embedding where the config has one."""

    def __call__(self, x: jax.Array, rotation: Rotation | None, attend: Attend) -> tuple[jax.Array, Any]:
        mixed, carried = attend(self.queries(x, rotation), *self.keys_and_values(x, rotation))
        return self.joined(mixed), carried


class CrossAttention(Projections):
    """Attention of an encoder-decoder model's decoder to the encoder's states, which stay as they are while
    decoding."""

    def __call__(self, x: jax.Array, recall: Recall) -> jax.Array:
        return self.joined(recall(self, self.queries(x)))


class FeedForward(nnx.Module):
    """down(act(up(x))), or down(act(gate(x)) * up(x)) where gated."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        self.activation = config.activation
        size, inner, bias = config.hidden_size, config.ffn_size, config.mlp_bias
        other, residual = initial_scale(config, size, "other"), initial_scale(config, inner, "residual")
        self.gate = Linear(size, inner, bias, scale=other, rngs=rngs) if config.gated else None
        self.up = Linear(size, inner, bias, scale=other, rngs=rngs)
        self.down = Linear(inner, size, bias, scale=residual, rngs=rngs)

    @jax.jit
    def __call__(self, x: jax.Array) -> jax.Array:
        activation = ACTIVATIONS[self.activation]
        inner = activation(self.up(x)) if self.gate is None else activation(self.gate(x)) * self.up(x)
        return self.down(inner)


class Block(nnx.Module):
    """One layer. How keys and values are kept and found again is the caller's: `attend` does it, and `recall` for the
    cross-attention that the decoder of an encoder-decoder model has."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        self.norm_before = config.norm_before
        self.attention_norm = Norm(config, config.hidden_size)
        self.attention = Attention(config, rngs=rngs)
        crossing = config.encoder_layers is not None
        self.cross_norm = Norm(config, config.hidden_size) if crossing else None
        self.cross_attention = CrossAttention(config, rngs=rngs) if crossing else None
        self.ffn_norm = Norm(config, config.hidden_size)
        self.ffn = FeedForward(config, rngs=rngs)

    def keys_and_values(self, h: jax.Array, rotation: Rotation | None) -> tuple[jax.Array, jax.Array]:
        """What this layer's self-attention would keep of h [B, T, D]: two [B, T, K, H]."""
        return self.attention.keys_and_values(self.attention_norm(h) if self.norm_before else h, rotation)

    def __call__(
        self, h: jax.Array, rotation: Rotation | None, attend: Attend, recall: Recall | None = None
    ) -> tuple[jax.Array, Any]:
        """h [B, T, D] -> (h [B, T, D], whatever `attend` carried out)."""
        if self.norm_before:
            mixed, carried = self.attention(self.attention_norm(h), rotation, attend)
            h = h + mixed
            if self.cross_attention is not None and self.cross_norm is not None:
                assert recall is not None, "a layer with cross-attention needs the encoder's states"
                h = h + self.cross_attention(self.cross_norm(h), recall)
            return h + self.ffn(self.ffn_norm(h)), carried
        mixed, carried = self.attention(h, rotation, attend)
        h = self.attention_norm(h + mixed)
        return self.ffn_norm(h + self.ffn(h)), carried


class Ends(nnx.Module):
    """Everything of a decoder that is not a block: embeddings before, final norm and LM head after."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        self.offset = config.position_offset
        self.head_scale = config.hidden_size**-0.5 if config.scale_head else None
        projected = config.embed_size != config.hidden_size
        # As T5's: what the layers add to them is of size 1, and a head that divides by sqrt(D) wants them so too.
        scale = INITIAL_SCALE if config.scale_attention else 1.0
        self.tokens = nnx.Param(scale * jax.random.normal(rngs.params(), (config.vocab_size, config.embed_size)))
        self.positions = nnx.Param(_initial_positions(config, rngs)) if config.learned_positions else None
        self.relative_bias = nnx.Param(_initial_bias(config, rngs)) if config.relative is not None else None
        self.project_in = Linear(config.embed_size, config.hidden_size, False, rngs=rngs) if projected else None
        self.final_norm = Norm(config, config.hidden_size) if config.final_norm else None
        self.project_out = Linear(config.hidden_size, config.embed_size, False, rngs=rngs) if projected else None
        self.head = None if config.tied else Linear(config.embed_size, config.vocab_size, False, rngs=rngs)

    def embed(self, tokens: jax.Array, positions: jax.Array) -> jax.Array:
        """tokens, positions int32 [B, T] -> h [B, T, D]."""
        h = self.tokens[...][tokens]
        if self.project_in is not None:
            h = self.project_in(h)
        if self.positions is not None:
            h = h + self.positions[...][positions + self.offset]
        return h

    def normed(self, h: jax.Array) -> jax.Array:
        """The final norm, where the model has one."""
        return h if self.final_norm is None else self.final_norm(h)

    def logits(self, h: jax.Array) -> jax.Array:
        """h [..., D] after the last layer run -> float32 logits [..., V]."""
        return self.head_logits(self.normed(h))

    def head_logits(self, h: jax.Array) -> jax.Array:
        """The LM head alone: normed h [..., D] -> float32 logits [..., V]."""
        if self.head_scale is not None:
            h = h * jnp.asarray(self.head_scale, h.dtype)
        if self.project_out is not None:
            h = self.project_out(h)
        weight = self.tokens[...] if self.head is None else self.head.weight[...]
        return product(h, weight, jnp.float32)


class EncoderEnds(nnx.Module):
    """Everything of an encoder that is not a block and not the token embedding, which is the decoder's."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        self.relative_bias = None if config.relative is None else nnx.Param(_initial_bias(config, rngs))
        self.final_norm = Norm(config, config.hidden_size)


def _initial_positions(config: ModelConfig, rngs: nnx.Rngs) -> jax.Array:
    assert config.max_positions is not None, "a table of positions has an end"
    shape = (config.max_positions + config.position_offset, config.hidden_size)
    return INITIAL_SCALE * jax.random.normal(rngs.params(), shape)


def _initial_bias(config: ModelConfig, rngs: nnx.Rngs) -> jax.Array:
    assert config.relative is not None
    return INITIAL_SCALE * jax.random.normal(rngs.params(), (config.relative.buckets, config.num_heads))


class ExitHead(nnx.Module):
    """What one exit has of its own; see `skipjax.config.ExitHeads`. It starts as the shared head: a copy of the final
    norm has to be put in by whoever makes it, and the adapter's second factor is zero."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        heads = config.exit_heads
        assert heads is not None
        size, rank = config.hidden_size, heads.adapter_rank
        self.norm = Norm(config, size) if heads.norm and config.final_norm else None
        self.down = Linear(size, rank, False, rngs=rngs) if rank else None
        self.up = Linear(rank, size, False, scale=0.0, rngs=rngs) if rank else None
        self.classifier = Linear(size, 1, True, rngs=rngs) if heads.classifier else None

    def normed(self, h: jax.Array, ends: Ends) -> jax.Array:
        """h [..., D] after the exit's layer -> what the shared LM head takes."""
        h = ends.normed(h) if self.norm is None else self.norm(h)
        if self.down is not None and self.up is not None:
            h = h + self.up(self.down(h))
        return h


Rotation = tuple[jax.Array, jax.Array]  # cosines and sines, float32 [B, T, 1, H/2]


def rotation(rope: RopeConfig, head_size: int, positions: jax.Array) -> Rotation:
    """Cosines and sines for positions int32 [B, T], once per step and shared by all layers."""
    frequencies = 1.0 / rope.theta ** (jnp.arange(0, head_size, 2, dtype=jnp.float32) / head_size)
    if rope.kind == "linear":
        frequencies = frequencies / rope.factor
    elif rope.kind == "llama3":
        turns = rope.original_max_positions * frequencies / (2 * jnp.pi)
        span = rope.high_frequency_factor - rope.low_frequency_factor
        keep = jnp.clip((turns - rope.low_frequency_factor) / span, 0.0, 1.0)
        frequencies = keep * frequencies + (1 - keep) * frequencies / rope.factor
    angles = positions.astype(jnp.float32)[..., None, None] * frequencies.reshape(1, 1, 1, -1)
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x: jax.Array, rotation: Rotation) -> jax.Array:
    """Rotary embedding of x [B, T, heads, H]; the two halves of a head are the two coordinates, as in Hugging Face."""
    cosine, sine = rotation
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)
    return turned.astype(x.dtype)


def relative_distances(relative: RelativePositions) -> tuple[np.ndarray, np.ndarray]:
    """Buckets by distance: int32 [max_distance + 1] for looking back in a decoder, and for either direction in an
    encoder, whose other direction lies buckets / 2 higher. Distances beyond share the last one.

    T5 (arXiv 1910.10683, section 2.1): the nearer half of the buckets holds one distance each, the others
    logarithmically more. Computed on the host in float32, as the models were trained.
    """

    def table(buckets: int) -> np.ndarray:
        exact = buckets // 2
        distance = np.arange(relative.max_distance + 1, dtype=np.int32)
        ratio = np.log(np.maximum(distance, 1).astype(np.float32) / np.float32(exact))
        span = np.float32(math.log(relative.max_distance / exact))
        far = exact + (ratio / span * np.float32(buckets - exact)).astype(np.int32)
        return np.where(distance < exact, distance, np.minimum(far, buckets - 1)).astype(np.int32)

    return table(relative.buckets), table(relative.buckets // 2)


def relative_bias(
    table: jax.Array, relative: RelativePositions, query: jax.Array, key: jax.Array, *, both_ways: bool
) -> jax.Array:
    """T5's addition to attention scores.

    Args:
      table: [buckets, N], learned.
      query, key: columns, int32 [B or 1, T] and [S]; only their differences matter.
      both_ways: an encoder's, else a decoder's (keys ahead of the query are masked anyway).
    Returns:
      float32 [B or 1, N, T, S].
    """
    back, either = relative_distances(relative)
    ahead = key[None, None, :] - query[:, :, None]
    if both_ways:
        distance = jnp.minimum(jnp.abs(ahead), relative.max_distance)
        bucket = jnp.asarray(either)[distance] + jnp.where(ahead > 0, relative.buckets // 2, 0)
    else:
        bucket = jnp.asarray(back)[jnp.clip(-ahead, 0, relative.max_distance)]
    return jnp.moveaxis(table[bucket], -1, 1).astype(jnp.float32)

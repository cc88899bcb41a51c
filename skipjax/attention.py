"""Attention over fresh keys and over the cache: one function, whatever the layout of keys and values."""

from __future__ import annotations

import jax
import jax.numpy as jnp

# Score of a forbidden key: finite, so that a row with no allowed key (padding) gives a mean of values, not NaN.
FORBIDDEN = float(jnp.finfo(jnp.float32).min)


def attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    allowed: jax.Array,
    layout: str,
    *,
    scaled: bool = True,
    bias: jax.Array | None = None,
) -> jax.Array:
    """Softmax attention in float32, with grouped queries.

    Args:
      query: [B, T, N, H].
      key, value: in the order `layout` spells: "bskh" (fresh), "bksh" (cache of unrolled layers), "sbkh" (of scanned).
      allowed: bool [B, T or 1, S], True where a query may read a key.
      layout: static.
      scaled: static; whether scores are divided by sqrt(H).
      bias: float32 [B or 1, N, T, S], added to the scores.
    Returns:
      mixed values [B, T, N, H] in the dtype of `query`.
    """
    batch, length, heads, head_size = query.shape
    kv_heads = key.shape[layout.index("k")]
    grouped = query.reshape(batch, length, kv_heads, heads // kv_heads, head_size)
    if scaled:
        grouped = grouped * jnp.asarray(head_size**-0.5, query.dtype)
    if bias is not None:
        bias = bias.reshape(bias.shape[0], kv_heads, heads // kv_heads, *bias.shape[2:])
    if batch == 1 and layout == "bksh":
        # XLA:CPU copies the cache when a batched product has one batch dimension longer than 1, as here (size-1
        # dimensions do not count). One plain product per head reads it in place.
        heads_apart = [slice(k, k + 1) for k in range(kv_heads)]
        mixed = [
            _mix(grouped[:, :, k], key[:, k], value[:, k], allowed, None if bias is None else bias[:, k], layout)
            for k in heads_apart
        ]
        return jnp.concatenate(mixed, axis=2).reshape(query.shape)
    return _mix(grouped, key, value, allowed, bias, layout).reshape(query.shape)


def _mix(
    grouped: jax.Array, key: jax.Array, value: jax.Array, allowed: jax.Array, bias: jax.Array | None, layout: str
) -> jax.Array:
    """grouped [B, T, K, G, H] -> [B, T, K, G, H]; bias [B or 1, K, G, T, S]."""
    scores = jnp.einsum(f"btkgh,{layout}->bkgts", grouped, key, preferred_element_type=jnp.float32)
    if bias is not None:
        scores = scores + bias
    scores = jnp.where(allowed[:, None, None], scores, FORBIDDEN)
    weights = jax.nn.softmax(scores, axis=-1).astype(value.dtype)
    return jnp.einsum(f"bkgts,{layout}->btkgh", weights, value)


def causal(padding: jax.Array, length: int) -> jax.Array:
    """allowed [B, T, T] for a left-padded batch: no later column and none of the first `padding[b]` (int32 [B])."""
    column = jnp.arange(length, dtype=jnp.int32)
    earlier = column[None, None, :] <= column[None, :, None]
    return earlier & (column[None, None, :] >= padding[:, None, None])


def up_to(padding: jax.Array, queries: jax.Array, length: int) -> jax.Array:
    """allowed [B, T, S] for decode steps at columns `queries` (int32 [B or 1, T]): columns from padding[b] to the
    query's own."""
    column = jnp.arange(length, dtype=jnp.int32)[None, None, :]
    return (column >= padding[:, None, None]) & (column <= queries[:, :, None])

"""Attention over fresh keys and over the cache: one function, whatever the layout of keys and values."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

# Score of a forbidden key: finite, so that a row with no allowed key (padding) gives a mean of values, not NaN.
FORBIDDEN = float(jnp.finfo(jnp.float32).min)

# Queries per key/value head up to which reading the cache once for each is faster on a CPU than one product for all.
_FEW_QUERIES = 4


@functools.partial(jax.jit, static_argnames=("layout", "scaled", "stacked"))  # traced once for layers alike
def attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    allowed: jax.Array,
    layout: str,
    *,
    stacked: bool = False,
    scaled: bool = True,
    bias: jax.Array | None = None,
) -> jax.Array:
    """Softmax attention in float32, with grouped queries.

    Args:
      query: [B, T, N, H].
      key, value: in the order `layout` spells: "bskh" (fresh) or "bksh" (cache).
      allowed: bool [B, T or 1, S], True where a query may read a key.
      layout: static.
      stacked: static; whether they come from a cache of scanned layers, [B, K/p, S, p H] with p heads side by side.
      scaled: static; whether scores are divided by sqrt(H).
      bias: float32 [B or 1, N, T, S], added to the scores.
    Returns:
      mixed values [B, T, N, H] in the dtype of `query`.
    """
    batch, length, heads, head_size = query.shape
    kv_heads = key.shape[layout.index("k")]  # here K, below also where it is K/p and a group p G queries
    grouped = query.reshape(batch, length, kv_heads, heads // kv_heads, head_size)
    if scaled:
        grouped = grouped * jnp.asarray(head_size**-0.5, query.dtype)
    grouped = grouped.transpose(0, 2, 3, 1, 4)  # [B, K, G, T, H]
    if stacked:
        grouped = _spread(grouped, key.shape[-1] // head_size)
    scores = _product(grouped, key, f"bkgth,{layout}->bkgts", jnp.float32, stacked)
    if bias is not None:
        scores = scores + bias.reshape(bias.shape[0], kv_heads, heads // kv_heads, *bias.shape[2:])
    scores = jnp.where(allowed[:, None, None], scores, FORBIDDEN)
    weights = jax.nn.softmax(scores, axis=-1).astype(value.dtype)
    mixed = _product(weights, value, f"bkgts,{layout}->bkgth", stacked=stacked)
    if stacked:
        mixed = _gathered(mixed, heads // kv_heads, head_size)
    return mixed.transpose(0, 3, 1, 2, 4).reshape(query.shape)


def _spread(grouped: jax.Array, heads: int) -> jax.Array:
    """Queries [B, K/p, pG, T, H] for keys with p = `heads` side by side: zeros where the others are, [B, K/p, pG or 2,
    T, p H].

    At least two for each key: XLA:TPU turns a product of keys with one vector into sums that want the cache in another
    order, and copies it, so that a single query gets a second one of zeros for company.
    """
    batch, kv_heads, group, length, _ = grouped.shape
    if heads > 1:
        spread = jnp.where(_own_lanes(group, heads), grouped[..., None, :], 0)
        return spread.reshape(batch, kv_heads, group, length, -1)
    return jnp.concatenate([grouped, jnp.zeros_like(grouped)], axis=2) if group * length == 1 else grouped


def _gathered(mixed: jax.Array, group: int, head_size: int) -> jax.Array:
    """Inverse of `_spread` for the values: [B, K/p, pG, T, H] for `group` pG."""
    apart = mixed[:, :, :group].reshape(*mixed.shape[:2], group, mixed.shape[3], -1, head_size)
    return jnp.sum(jnp.where(_own_lanes(group, apart.shape[4]), apart, 0), axis=4)


def _own_lanes(group: int, heads: int) -> jax.Array:
    """bool [1, 1, pG, 1, p, 1]: which of the p = `heads` side by side is that of each of pG = `group` queries."""
    head_of = jnp.arange(group, dtype=jnp.int32) // (group // heads)
    return (head_of[:, None] == jnp.arange(heads, dtype=jnp.int32)[None]).reshape(1, 1, group, 1, heads, 1)


def _product(rows: jax.Array, cached: jax.Array, formula: str, dtype: Any = None, stacked: bool = False) -> jax.Array:
    """einsum of rows [B, K, G, T, ...] with keys or values, cut up where XLA:CPU needs that to read them in place.

    It reads a cache [B, K, S, H] in place, and on all cores, in a product of two matrices (batch 1: one for each head)
    or in a batch of products with vectors (a few queries of many rows: one batch for each). Other batched products copy
    what they read, or take it apart; with many queries that is the smaller part of the work.
    """
    batch, kv_heads, group, length = rows.shape[:4]
    product = functools.partial(jnp.einsum, formula, preferred_element_type=dtype)
    if stacked or "bksh" not in formula:
        return product(rows, cached)
    if batch == 1:
        heads = [slice(k, k + 1) for k in range(kv_heads)]
        return jnp.concatenate([product(rows[:, k], cached[:, k]) for k in heads], axis=1)
    if 1 < group * length <= _FEW_QUERIES:
        queries = [(slice(g, g + 1), slice(t, t + 1)) for g in range(group) for t in range(length)]
        products = [product(rows[:, :, g, t], cached) for g, t in queries]
        return jnp.concatenate(products, axis=2).reshape(*products[0].shape[:2], group, length, -1)
    return product(rows, cached)


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

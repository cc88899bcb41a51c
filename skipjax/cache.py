"""The key/value cache: a frozen pytree that is passed in, returned and donated, never kept inside a module.

Its physical order belongs to the way layers are run, and is decided here alone:
- unrolled (CPU): one array per layer, [B, K, S, H], which XLA:CPU's batched products read in place;
- scanned (TPU, GPU): one array for all layers, [B, K/p, S of layer 0 + S of layer 1 + ..., p H], so that layers of any
  length share one loop body. XLA:TPU's batched products read this order in place, and it is the one that XLA gives to
  an argument of this shape, so that a program begins and ends without a copy of the cache. p heads lie side by side
  where that fills the 128 lanes of a TPU's registers: heads of 64 alone would be padded to twice their size.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import operator
from typing import Any

import jax
import jax.numpy as jnp

LANES = 128  # numbers side by side in a TPU's registers, and in its tiles of memory
ROWS = 16  # in such a tile of bfloat16; XLA orders the axes of an argument otherwise if this one would be padded

Layer = int | jax.Array  # a Python int where layers are unrolled, a traced int32 where they are scanned


@functools.partial(jax.tree_util.register_dataclass, data_fields=["keys", "values"], meta_fields=["lengths", "stacked"])
@dataclasses.dataclass(frozen=True)
class KVCache:
    """Keys and values of one batch. Slot i of a layer holds column i of the left-padded batch.

    Attributes:
      keys, values: per layer [B, K, S, H] (None for a layer of length 0), or one array [B, K/p, sum of lengths, p H],
        rounded up to `ROWS` slots.
      lengths: static; the slots S of each layer.
      stacked: static; which of the two forms this is.
    """

    keys: Any
    values: Any
    lengths: tuple[int, ...]
    stacked: bool

    @classmethod
    def zeros(
        cls, lengths: tuple[int, ...], batch: int, kv_heads: int, head_size: int, dtype: jnp.dtype, stacked: bool
    ) -> KVCache:
        def empty():
            if stacked:
                together = math.gcd(kv_heads, max(1, LANES // head_size))
                slots = -(-sum(lengths) // ROWS) * ROWS
                return jnp.zeros((batch, kv_heads // together, slots, together * head_size), dtype)
            return tuple(jnp.zeros((batch, kv_heads, n, head_size), dtype) if n else None for n in lengths)

        return cls(empty(), empty(), lengths, stacked)

    @property
    def layout(self) -> str:
        """The order of axes that `read` returns, as `skipjax.attention.attention` spells it."""
        return "bksh"

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.size * array.dtype.itemsize for array in jax.tree.leaves((self.keys, self.values)))

    def _first_row(self, layer: Layer) -> jax.Array:
        return jnp.asarray([0, *itertools.accumulate(self.lengths)][:-1], jnp.int32)[layer]

    def write(self, layer: Layer, slot: Layer, key: jax.Array, value: jax.Array) -> KVCache:
        """The cache with key, value [B, T, K, H] of `layer` at slots [slot, slot + T).

        `slot` is one number, or int32 [B] where rows stand at different ones; slots past the end are not written then.
        """
        return dataclasses.replace(
            self,
            keys=self._put(self.keys, layer, slot, key),
            values=self._put(self.values, layer, slot, value),
        )

    def _put(self, arrays: Any, layer: Layer, slot: Layer, new: jax.Array) -> Any:
        one_slot = jnp.ndim(slot) == 0
        batch, length = new.shape[:2]
        if not one_slot:
            rows = jnp.arange(batch, dtype=jnp.int32)[:, None]
            slots = jnp.reshape(slot, (batch, 1)) + jnp.arange(length, dtype=jnp.int32)[None]
        if self.stacked:
            new = new.reshape(batch, length, arrays.shape[1], arrays.shape[3])
            if one_slot:
                start = self._first_row(layer) + slot
                return jax.lax.dynamic_update_slice_in_dim(arrays, new.swapaxes(1, 2), start, axis=2)
            inside = slots < jnp.asarray(self.lengths, jnp.int32)[layer]
            # Those outside are dropped; they differ too, since the scatter is told that all places do.
            slots = jnp.where(inside, self._first_row(layer), arrays.shape[2]) + slots
            return arrays.at[rows, :, slots].set(new, mode="drop", unique_indices=True)
        index = operator.index(layer)
        if one_slot:
            updated = jax.lax.dynamic_update_slice_in_dim(arrays[index], new.swapaxes(1, 2), slot, axis=2)
        else:
            updated = arrays[index].at[rows, :, slots].set(new, mode="drop", unique_indices=True)
        return (*arrays[:index], updated, *arrays[index + 1 :])

    def read(self, layer: Layer, slots: int) -> tuple[jax.Array, jax.Array]:
        """Keys and values of `layer`: [B, K, S, H] with S its whole length if unrolled (a slice would be a copy), or
        [B, K/p, slots, p H] if stacked; `slots` is static and at most the layer's length."""
        if self.stacked:
            row = self._first_row(layer)
            return (
                jax.lax.dynamic_slice_in_dim(self.keys, row, slots, axis=2),
                jax.lax.dynamic_slice_in_dim(self.values, row, slots, axis=2),
            )
        index = operator.index(layer)
        return self.keys[index], self.values[index]

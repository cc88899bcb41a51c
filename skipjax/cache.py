"""The key/value cache: a frozen pytree that is passed in, returned and donated, never kept inside a module.

Its physical order belongs to the way layers are run, and is decided here alone:
- unrolled (CPU): one array per layer, [B, K, S, H], which XLA:CPU's batched products read in place;
- scanned (TPU, GPU): one position-major array for all layers, [S of layer 0 + S of layer 1 + ..., B, K, H]. Layers of
  any length then share one loop body, and on TPU the loop reads and writes it without a second copy.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import operator
from typing import Any

import jax
import jax.numpy as jnp

Layer = int | jax.Array  # a Python int where layers are unrolled, a traced int32 where they are scanned


@functools.partial(jax.tree_util.register_dataclass, data_fields=["keys", "values"], meta_fields=["lengths", "stacked"])
@dataclasses.dataclass(frozen=True)
class KVCache:
    """Keys and values of one batch. Slot i of a layer holds column i of the left-padded batch.

    Attributes:
      keys, values: per layer [B, K, S, H] (None for a layer of length 0), or one array [sum of lengths, B, K, H].
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
                return jnp.zeros((sum(lengths), batch, kv_heads, head_size), dtype)
            return tuple(jnp.zeros((batch, kv_heads, n, head_size), dtype) if n else None for n in lengths)

        return cls(empty(), empty(), lengths, stacked)

    @property
    def layout(self) -> str:
        """The order of axes that `read` returns, as `skipjax.attention.attention` spells it."""
        return "sbkh" if self.stacked else "bksh"

    @property
    def nbytes(self) -> int:
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
            if one_slot:
                start = self._first_row(layer) + slot
                return jax.lax.dynamic_update_slice_in_dim(arrays, new.swapaxes(0, 1), start, axis=0)
            inside = slots < jnp.asarray(self.lengths, jnp.int32)[layer]
            # Those outside are dropped; they differ too, since the scatter is told that all places do.
            slots = jnp.where(inside, self._first_row(layer), arrays.shape[0]) + slots
            return arrays.at[slots, rows].set(new, mode="drop", unique_indices=True)
        index = operator.index(layer)
        if one_slot:
            updated = jax.lax.dynamic_update_slice_in_dim(arrays[index], new.swapaxes(1, 2), slot, axis=2)
        else:
            updated = arrays[index].at[rows, :, slots].set(new, mode="drop", unique_indices=True)
        return (*arrays[:index], updated, *arrays[index + 1 :])

    def read(self, layer: Layer, slots: int) -> tuple[jax.Array, jax.Array]:
        """Keys and values of `layer`: [B, K, S, H] with S its whole length if unrolled (a slice would be a copy), or
        [slots, B, K, H] if stacked; `slots` is static and at most the layer's length."""
        if self.stacked:
            row = self._first_row(layer)
            return (
                jax.lax.dynamic_slice_in_dim(self.keys, row, slots, axis=0),
                jax.lax.dynamic_slice_in_dim(self.values, row, slots, axis=0),
            )
        index = operator.index(layer)
        return self.keys[index], self.values[index]

"""A decoder inside a traced function, as decoding methods see it: embed, run a range of layers over the cache, logits.

Methods know nothing else of a model, and this knows nothing of methods.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from skipjax import decoder, modules
from skipjax.attention import attention, up_to
from skipjax.cache import KVCache
from skipjax.config import ModelConfig
from skipjax.plan import layer_groups


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Source:
    """What decoding reads of an encoded source and never changes.

    Attributes:
      memory: keys and values of the encoder's states in the layers that run, for cross-attention.
      allowed: bool [B, 1, S], False on padding.
    """

    memory: KVCache
    allowed: jax.Array


class _Where(NamedTuple):
    """What a group of queries shares over all layers: rotation, allowed [B, T, S] and bias [B or 1, N, T, S]."""

    rotation: modules.Rotation | None
    allowed: jax.Array
    bias: jax.Array | None


@dataclasses.dataclass(frozen=True)
class CachedDecoder:
    """Config and parameters with what is constant while a batch is decoded.

    A *slot* is a column of the decoder's left-padded batch, and the place of its keys and values in the cache. It is
    given as one number where all rows stand at the same, or as int32 [B].

    Attributes:
      config: static.
      params: of the model.
      padding: int32 [B], padded columns of the decoder's prompt; zeros for an encoder-decoder model.
      source: of an encoder-decoder model; None without an encoder.
    """

    config: ModelConfig
    params: decoder.Params
    padding: jax.Array
    source: Source | None

    @property
    def dtype(self) -> Any:
        """Of hidden states."""
        return self.params["ends"]["tokens"].dtype

    def embed(self, tokens: jax.Array, slot: jax.Array) -> jax.Array:
        """tokens int32 [B, T] in the columns from `slot` on -> h [B, T, D]."""
        return decoder.ends_of(self.config, self.params).embed(tokens, self._positions(slot, tokens.shape[1]))

    def run(
        self, first: int, last: int, h: jax.Array, cache: KVCache, slot: jax.Array, slots: int
    ) -> tuple[jax.Array, KVCache]:
        """Runs layers [first, last) on h [B, T, D], whose columns begin at `slot`, and adds their keys and values.

        `slots` (static) bounds the columns that queries may read; each reads those up to its own.
        """
        where = self._where(slot, h.shape[1], cache, slots)

        def attend(cache: KVCache, layer: Any) -> modules.Attend:
            def run(query, key, value):
                updated = cache.write(layer, slot, key, value)
                return self._read(query, updated, layer, slots, where), updated

            return run

        layers, recall = self.params["layers"], None if self.source is None else self._recall
        return decoder.run_layers(self.config, layers, first, last, h, where.rotation, attend, cache, recall=recall)

    def run_unless(
        self, out: jax.Array, layer: int, h: jax.Array, cache: KVCache, slot: jax.Array, slots: int
    ) -> tuple[jax.Array, KVCache]:
        """Runs one layer (static) for the rows that are not `out` (bool [B]); h [B, 1, D] of the others stays.

        Keys and values are projected from h for every row: of a row that has left, from the state it left with. If all
        are out, nothing else is computed.
        """
        where = self._where(slot, h.shape[1], cache, slots)
        projected = decoder.block_of(self.config, self.params, layer).keys_and_values(h, where.rotation)
        cache = cache.write(layer, slot, *projected)

        def attend(query, key, value):
            return self._read(query, cache, layer, slots, where), None

        def run() -> jax.Array:
            recall = None if self.source is None else self._recall(layer)
            # Stacked weights are sliced in here: outside, every layer's would be copied in every step.
            block = decoder.block_of(self.config, self.params, layer)
            return jnp.where(out[:, None, None], h, block(h, where.rotation, attend, recall)[0])

        # Both branches only read the cache: it is no result of the branch, so that no branch has to copy it.
        return jax.lax.cond(jnp.all(out), lambda: h, run), cache

    def consumed(self, tokens: jax.Array, count: jax.Array) -> jax.Array:
        """int32 [B]: the token that comes after `count` (int32, one or [B]) generated ones of int32 [B, T]: the last of
        them, or the start token of an encoder-decoder model."""
        index = jnp.broadcast_to(count, tokens.shape[:1])
        last = jnp.take_along_axis(tokens, jnp.maximum(index - 1, 0)[:, None], axis=1)[:, 0]
        start = self.config.start_id
        return last if start is None else jnp.where(index > 0, last, start)

    def exit_logits(self, h: jax.Array, layer: int) -> jax.Array:
        """h [..., D] after `layer` layers (static) -> float32 logits [..., V]."""
        return decoder.exit_logits(self.config, self.params, h, layer)

    def exit_head(self, layer: int) -> modules.ExitHead | None:
        """What the exit after `layer` layers has of its own."""
        return decoder.exit_head_of(self.config, self.params, layer)

    def _where(self, slot: jax.Array, queries: int, cache: KVCache, slots: int) -> _Where:
        columns = _columns(slot, queries)
        length = slots if cache.stacked else max(cache.lengths)  # unrolled layers hand out all the slots they have
        return _Where(
            rotation=decoder.rotation_at(self.config, self._positions(slot, queries)),
            allowed=up_to(self.padding, columns, length),
            bias=decoder.decoder_bias(self.config, self.params, columns, length),
        )

    def _read(self, query: jax.Array, cache: KVCache, layer: Any, slots: int, where: _Where) -> jax.Array:
        keys, values = cache.read(layer, slots)
        length = keys.shape[cache.layout.index("s")]
        bias = None if where.bias is None else where.bias[..., :length]
        return attention(
            *(query, keys, values, where.allowed[:, :, :length], cache.layout),
            stacked=cache.stacked,
            scaled=self.config.scale_attention,
            bias=bias,
        )

    def _recall(self, layer: Any) -> modules.Recall:
        assert self.source is not None
        memory, allowed = self.source.memory, self.source.allowed
        keys, values = memory.read(layer, allowed.shape[-1])
        how = {"stacked": memory.stacked, "scaled": self.config.scale_attention}
        return lambda cross, query: attention(query, keys, values, allowed, memory.layout, **how)

    def _positions(self, slot: jax.Array, length: int) -> jax.Array:
        return jnp.maximum(_columns(slot, length) - self.padding[:, None], 0)


def _columns(slot: jax.Array, length: int) -> jax.Array:
    """int32 [B or 1, T]: the columns of T queries from `slot` on."""
    return jnp.reshape(slot, (-1, 1)) + jnp.arange(length, dtype=jnp.int32)[None]


def remember(config: ModelConfig, params: decoder.Params, states: jax.Array, used: tuple[bool, ...]) -> KVCache:
    """Keys and values of the encoder's states [B, S, D] for the layers that are `used` (static, one per layer)."""
    batch, length, _ = states.shape
    stacked = decoder.execution_of(params) == "scanned"
    lengths = tuple(length if one else 0 for one in used)
    memory = KVCache.zeros(lengths, batch, config.num_kv_heads, config.head_size, states.dtype, stacked)

    def add(layer: Any, memory: KVCache) -> KVCache:
        cross = decoder.block_of(config, params, layer).cross_attention
        assert cross is not None
        return memory.write(layer, 0, *cross.keys_and_values(states))

    for (first, last), one in layer_groups(used):
        if one and stacked:
            memory = jax.lax.fori_loop(first, last, add, memory)
        elif one:
            for layer in range(first, last):
                memory = add(layer, memory)
    return memory

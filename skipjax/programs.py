"""The traced part of generation: one program for the prompt, one chain of jitted loops for the decode steps.

Static: the config, the plan, the execution, and the shapes (batch bucket, prompt bucket). Dynamic: weights, tokens,
padding, sampling numbers, seed, end-of-sequence ids and the stop step. Nothing about depth is decided at run time: each
segment of the plan is its own `while_loop` over the layer ranges of its depth.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp

from skipjax.attention import attention, causal, up_to
from skipjax.cache import KVCache
from skipjax.config import ModelConfig
from skipjax.decoder import Params, ends_of, execution_of, rotation_at, run_layers
from skipjax.plan import Plan, Segment, layer_groups
from skipjax.sampling import SamplingNumbers, next_tokens


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Request:
    """One batch's dynamic inputs.

    Attributes:
      padding: int32 [B], columns of left padding in each row.
      rows: int32 scalar; rows from this one on only fill up the batch bucket.
      numbers: how to sample.
      eos_ids: int32 [number of them, at least 1]; -1 matches no token.
      pad_id: int32 scalar, written after the end of a row.
    """

    padding: jax.Array
    rows: jax.Array
    numbers: SamplingNumbers
    eos_ids: jax.Array
    pad_id: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DecodeState:
    """What decode steps hand on. Donated to `decode`, so cache and tokens are updated in place.

    Attributes:
      cache: keys and values.
      tokens: int32 [B, steps + 1], generated so far, then `pad_id`.
      finished: bool [B], rows that have emitted an end-of-sequence token.
      keys: random keys [B], one per row.
      step: int32 scalar, the next decode step; tokens 0..step exist.
    """

    cache: KVCache
    tokens: jax.Array
    finished: jax.Array
    keys: jax.Array
    step: jax.Array


@functools.partial(jax.jit, static_argnames=("config", "plan"))
def prefill(config: ModelConfig, plan: Plan, params: Params, prompts: jax.Array, request: Request) -> DecodeState:
    """Runs the prompts at full depth, fills the cache of the layers that decode steps will use, and draws token 0.

    Args:
      prompts: int32 [B, P], left-padded.
    """
    batch, length = prompts.shape
    lengths = plan.cache_lengths(length)
    stacked = execution_of(params) == "scanned"
    dtype = params["ends"]["tokens"].dtype
    cache = KVCache.zeros(lengths, batch, config.num_kv_heads, config.head_size, dtype, stacked)
    positions = jnp.maximum(jnp.arange(length, dtype=jnp.int32)[None] - request.padding[:, None], 0)
    allowed = causal(request.padding, length)
    ends = ends_of(config, params)
    h = ends.embed(prompts, positions)
    rotation = rotation_at(config, positions)

    def attend_and_keep(cache, layer):
        return lambda q, k, v: (attention(q, k, v, allowed, "bskh"), cache.write(layer, 0, k, v))

    def attend_only(cache, layer):
        return lambda q, k, v: (attention(q, k, v, allowed, "bskh"), cache)

    for (first, last), kept in layer_groups([n > 0 for n in lengths]):
        attend = attend_and_keep if kept else attend_only
        h, cache = run_layers(config, params["layers"], first, last, h, rotation, attend, cache)
    keys = request.numbers.keys()
    first_tokens = next_tokens(ends.logits(h[:, -1]), request.numbers, keys, jnp.int32(0))
    tokens = jnp.full((batch, plan.steps + 1), request.pad_id, jnp.int32).at[:, 0].set(first_tokens)
    filling = jnp.arange(batch, dtype=jnp.int32) >= request.rows
    return DecodeState(cache, tokens, filling | _ends_text(first_tokens, request), keys, jnp.int32(0))


@functools.partial(jax.jit, static_argnames=("config", "plan", "prompt_length"), donate_argnames=("state",))
def decode(
    config: ModelConfig,
    plan: Plan,
    prompt_length: int,
    params: Params,
    state: DecodeState,
    request: Request,
    stop: jax.Array,
) -> DecodeState:
    """Decode steps from `state.step` up to `stop` (int32 scalar, exclusive), or until every row has finished.

    Token s sits in column prompt_length + s for every row, so a row's own position is that column less its padding.
    """
    ends = ends_of(config, params)
    for segment in plan.segments:

        def unfinished(state: DecodeState, last: int = segment.last_step) -> jax.Array:
            return (state.step < jnp.minimum(stop, last)) & ~jnp.all(state.finished)

        def one_step(state: DecodeState, segment: Segment = segment) -> DecodeState:
            slot = prompt_length + state.step
            consumed = jax.lax.dynamic_slice_in_dim(state.tokens, state.step, 1, axis=1)
            positions = (slot - request.padding)[:, None]
            h = ends.embed(consumed, positions)
            rotation = rotation_at(config, positions)
            # In this segment no key lies beyond its last step; unrolled layers hand out all the slots they have.
            slots = prompt_length + segment.last_step
            allowed = up_to(request.padding, slot, prompt_length + plan.steps)

            def attend(cache, layer):
                def run(query, key, value):
                    updated = cache.write(layer, slot, key, value)
                    keys, values = updated.read(layer, slots)
                    layout = updated.layout
                    visible = allowed[:, :, : keys.shape[layout.index("s")]]
                    return attention(query, keys, values, visible, layout), updated

                return run

            cache = state.cache
            for first, last in segment.ranges:
                h, cache = run_layers(config, params["layers"], first, last, h, rotation, attend, cache)
            chosen = next_tokens(ends.logits(h[:, 0]), request.numbers, state.keys, state.step + 1)
            chosen = jnp.where(state.finished, request.pad_id, chosen)
            tokens = jax.lax.dynamic_update_slice_in_dim(state.tokens, chosen[:, None], state.step + 1, axis=1)
            finished = state.finished | _ends_text(chosen, request)
            return DecodeState(cache, tokens, finished, state.keys, state.step + 1)

        state = jax.lax.while_loop(unfinished, one_step, state)
    return state


def _ends_text(tokens: jax.Array, request: Request) -> jax.Array:
    """bool [B]: whether each token (int32 [B]) is an end-of-sequence id."""
    return jnp.any(tokens[:, None] == request.eos_ids[None, :], axis=1)

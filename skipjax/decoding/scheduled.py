"""Decoding by a plan: which layers run is a function of the step alone, so nothing about depth is decided at run time.

Each segment of the plan is its own `while_loop` over the layer ranges of its depth.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from skipjax.cache import KVCache
from skipjax.decoding.cached_decoder import CachedDecoder
from skipjax.decoding.request import Outcome, Request
from skipjax.decoding.strategy import Start, opening
from skipjax.plan import Plan, Range, Segment
from skipjax.sampling import next_tokens


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ScheduledState:
    """What decode steps hand on.

    Attributes:
      cache: keys and values.
      tokens: int32 [B, T], generated so far, then `pad_id`.
      finished: bool [B], rows that have emitted an end-of-sequence token.
      keys: random keys [B], one per row.
      step: int32 scalar, the next decode step; tokens 0..step exist.
    """

    cache: KVCache
    tokens: jax.Array
    finished: jax.Array
    keys: jax.Array
    step: jax.Array


@dataclasses.dataclass(frozen=True)
class Scheduled:
    """Runs a plan.

    Attributes:
      plan: of the decode steps.
      exit_layer: where the last range of every segment ends: the number of layers, or where a static exit is.
      exits_at_once: whether the start token of an encoder-decoder model leaves at `exit_layer` too; a decoder-only
        model's prompt always runs every layer.
    """

    plan: Plan
    exit_layer: int
    exits_at_once: bool = False

    @property
    def room(self) -> int:
        return self.plan.steps + 1

    def cache_lengths(self, prompt_length: int) -> tuple[int, ...]:
        return self.plan.cache_lengths(prompt_length)

    def prompt_ranges(self, *, has_encoder: bool) -> tuple[Range, ...]:
        return ((0, self.exit_layer if has_encoder and self.exits_at_once else self.plan.num_layers),)

    def begin(self, decoder: CachedDecoder, start: Start, request: Request) -> ScheduledState:
        assert start.first is not None, "the prompt always gives token 0"
        begun = opening(start, request, self.plan.num_layers, self.room)
        return ScheduledState(start.cache, begun.tokens, begun.finished, start.keys, jnp.int32(0))

    def advance(
        self, decoder: CachedDecoder, prompt_length: int, state: ScheduledState, request: Request, stop: jax.Array
    ) -> ScheduledState:
        """Token s sits in column prompt_length + s for every row, so a row's own position is that column less its
        padding."""
        for segment in self.plan.segments:

            def unfinished(state: ScheduledState, last: int = segment.last_step) -> jax.Array:
                return (state.step < jnp.minimum(stop - 1, last)) & ~jnp.all(state.finished)

            def one_step(state: ScheduledState, segment: Segment = segment) -> ScheduledState:
                slot = prompt_length + state.step
                h = decoder.embed(jax.lax.dynamic_slice_in_dim(state.tokens, state.step, 1, axis=1), slot)
                cache = state.cache
                for first, last in segment.ranges:
                    # In this segment no key lies beyond its last step.
                    h, cache = decoder.run(first, last, h, cache, slot, prompt_length + segment.last_step)
                logits = decoder.exit_logits(h[:, 0], self.exit_layer)
                chosen = next_tokens(logits, request.numbers, state.keys, state.step + 1)
                chosen = jnp.where(state.finished, request.pad_id, chosen)
                tokens = jax.lax.dynamic_update_slice_in_dim(state.tokens, chosen[:, None], state.step + 1, axis=1)
                finished = state.finished | request.ends_text(chosen)
                return ScheduledState(cache, tokens, finished, state.keys, state.step + 1)

            state = jax.lax.while_loop(unfinished, one_step, state)
        return state

    def settled(self, state: ScheduledState) -> np.ndarray:
        return np.full(state.tokens.shape[0], int(state.step) + 1)

    def outcome(self, state: ScheduledState, rows: int, *, has_encoder: bool) -> Outcome:
        first = self.prompt_ranges(has_encoder=has_encoder)[-1][1]
        depths = np.tile(np.array([first, *self.plan.depths], np.int32), (rows, 1))
        return Outcome(depths, np.full(depths.shape, np.nan, np.float32), int(state.step))

"""CALM's decoding (arXiv 2207.07061): every row leaves at its own layer, the first whose confidence is high enough."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from skipjax.cache import KVCache
from skipjax.confidence import Confidence, ExitView
from skipjax.decoding.cached_decoder import CachedDecoder
from skipjax.decoding.request import Outcome, Request
from skipjax.decoding.strategy import Start, opening
from skipjax.plan import Range
from skipjax.sampling import next_tokens


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CalmState:
    """What decode steps hand on.

    Attributes:
      cache: keys and values of all layers.
      tokens: int32 [B, T], generated so far, then `pad_id`.
      depths: int32 [B, T]; confidences: float32 [B, T], at the exit, or at the last layer asked where none was taken.
      finished: bool [B]; keys: random keys [B].
      count: int32 scalar, tokens generated.
    """

    cache: KVCache
    tokens: jax.Array
    depths: jax.Array
    confidences: jax.Array
    finished: jax.Array
    keys: jax.Array
    count: jax.Array


@dataclasses.dataclass(frozen=True)
class CalmDecoding:
    """Exit layer by layer, with the keys and values of skipped layers projected from the exit's state.

    Attributes:
      num_layers: L.
      min_depth: layers that always run.
      confidence: asked after each layer from `min_depth` to L - 1.
      room: tokens that can be generated.
    """

    num_layers: int
    min_depth: int
    confidence: Confidence
    room: int

    def cache_lengths(self, prompt_length: int) -> tuple[int, ...]:
        return (prompt_length + self.room - 1,) * self.num_layers

    def prompt_ranges(self, *, has_encoder: bool) -> tuple[Range, ...]:
        return () if has_encoder else ((0, self.num_layers),)

    def begin(self, decoder: CachedDecoder, start: Start, request: Request) -> CalmState:
        tokens, depths, confidences, finished, count = opening(start, request, self.num_layers, self.room)
        return CalmState(start.cache, tokens, depths, confidences, finished, start.keys, jnp.int32(count))

    def advance(
        self, decoder: CachedDecoder, prompt_length: int, state: CalmState, request: Request, stop: jax.Array
    ) -> CalmState:
        slots = max(self.cache_lengths(prompt_length))

        def unfinished(state: CalmState) -> jax.Array:
            return (state.count < stop) & ~jnp.all(state.finished)

        def one_step(state: CalmState) -> CalmState:
            slot = prompt_length - 1 + state.count
            h = decoder.embed(decoder.consumed(state.tokens, state.count)[:, None], slot)
            threshold = falling_threshold(request, state.count)
            cache, out = state.cache, state.finished  # finished rows hold nobody up
            exits = {
                "logits": jnp.zeros((h.shape[0], decoder.config.vocab_size), jnp.float32),
                "depth": jnp.zeros(h.shape[0], jnp.int32),
                "confidence": jnp.full(h.shape[0], jnp.nan, jnp.float32),
            }
            for layer in range(self.num_layers):
                before = h
                h, cache = decoder.run_unless(out, layer, h, cache, slot, slots)
                if layer + 1 < self.min_depth:
                    continue
                out, exits = self._ask(decoder, layer + 1, h, before, out, exits, threshold)
            chosen = next_tokens(exits["logits"], request.numbers, state.keys, state.count)
            chosen = jnp.where(state.finished, request.pad_id, chosen)

            def put(array: jax.Array, new: jax.Array) -> jax.Array:
                return jax.lax.dynamic_update_slice_in_dim(array, new[:, None], state.count, axis=1)

            return CalmState(
                cache,
                put(state.tokens, chosen),
                put(state.depths, exits["depth"]),
                put(state.confidences, exits["confidence"]),
                state.finished | request.ends_text(chosen),
                state.keys,
                state.count + 1,
            )

        return jax.lax.while_loop(unfinished, one_step, state)

    def _ask(
        self,
        decoder: CachedDecoder,
        depth: int,
        h: jax.Array,
        before: jax.Array,
        out: jax.Array,
        exits: dict[str, jax.Array],
        threshold: jax.Array,
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Lets rows go after `depth` layers; those that are `out` (bool [B]) already keep what they left with."""
        last = depth == self.num_layers

        def ask() -> tuple[jax.Array, dict[str, jax.Array]]:
            logits = decoder.exit_logits(h[:, 0], depth)
            sure = exits["confidence"]
            if not last:
                sure = self.confidence(ExitView(logits, h[:, 0], before[:, 0], decoder.exit_head(depth)))
            leaving = ~out & (jnp.bool_(last) | (sure > threshold))
            return out | leaving, {
                "logits": jnp.where(leaving[:, None], logits, exits["logits"]),
                "depth": jnp.where(leaving, depth, exits["depth"]),
                "confidence": jnp.where(out, exits["confidence"], sure),
            }

        return jax.lax.cond(jnp.all(out), lambda: (out, exits), ask)

    def settled(self, state: CalmState) -> np.ndarray:
        return np.full(state.tokens.shape[0], int(state.count))

    def outcome(self, state: CalmState, rows: int, *, has_encoder: bool) -> Outcome:
        # Token 0 of a decoder-only model comes from its prompt.
        steps = int(state.count) - (not has_encoder)
        return Outcome(np.asarray(state.depths)[:rows], np.asarray(state.confidences)[:rows], steps)


def falling_threshold(request: Request, step: jax.Array) -> jax.Array:
    """float32 scalar: 0.9 t + 0.1 t exp(-decay * step / limit) for threshold t, as in FREE's code (arXiv 2310.05424);
    CALM's own equation gives the falling part another weight. Worked: t = .9, decay 4, limit 128: step 1 gives .897231,
    step 32 .843109, step 128 .811648."""
    numbers = request.method
    falling = jnp.exp(-numbers.decay * step.astype(jnp.float32) / request.limit.astype(jnp.float32))
    return numbers.threshold * (0.9 + 0.1 * falling)

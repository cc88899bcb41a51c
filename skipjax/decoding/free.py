"""FREE's synchronised parallel decoding (arXiv 2310.05424, section 3.3), in batches.

A confident token leaves after the shallow layers, and its state waits in a buffer; the next token that is not, or a
full buffer, makes one pass of the deep layers over all that wait. What the deep layers compute for a position does not
depend on when they do, so one pass can serve all rows, whoever asked for it, and each row is what it would be alone.

*Position* i of a row consumes its generated token i - 1 (or the start token) and produces token i. Shallow keys and
values exist for positions below `count`, deep ones for those below `deep`; the buffer holds the states in between.

For XLA: an inner loop of shallow steps; after it one pass of the smallest static window that holds the buffers, each
window a loop that turns at most once, since a loop updates the cache in place where a branch would copy it; and then
one judgement of what the pass says, the same code for every window.
"""

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
class Checks:
    """What is kept of deep passes to judge tokens that have left already.

    Attributes:
      agreements: int8 [B, T], 1 where the deep layers would have given the exit's token, 0 where another, -1 unknown.
      nll: float32 [B, T], -log p of the token under the deep model; tokens: int32 [B, T], the deep model's.
      unchecked: int32 [B], tokens before this one are certain.
      drafted: int32 [B], exits so far, also those that were taken back.
    """

    agreements: jax.Array
    nll: jax.Array
    tokens: jax.Array
    unchecked: jax.Array
    drafted: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FreeState:
    """What steps and passes hand on.

    Attributes:
      cache: keys and values; those of a layer beyond its count are garbage that no query may read.
      buffer: [B, buffer size, D], raw states after the shallow layers of positions from `deep` on.
      tokens: int32 [B, T], generated so far, then `pad_id`.
      depths: int32 [B, T]; confidences: float32 [B, T].
      finished: bool [B]; keys: random keys [B].
      count, deep: tokens so far, and positions the deep layers have seen; int32, scalars where rows go in step, else
        [B].
      unsure: bool [B], rows whose newest token is only the exit's, which was not confident.
      due: bool [B], rows that need a deep pass.
      logits: float32 [B, W, V], of the last deep pass: of the newest position (W = 1), or of all if they are checked.
      passed: bool scalar, whether there are such that were not judged yet.
      steps, passes: int32 scalars, shallow steps and deep passes run.
      positions, row_passes: int32 [B], positions computed by deep passes, and passes with at least one.
      checks: None where no token is judged afterwards.
    """

    cache: KVCache
    buffer: jax.Array
    tokens: jax.Array
    depths: jax.Array
    confidences: jax.Array
    finished: jax.Array
    keys: jax.Array
    count: jax.Array
    deep: jax.Array
    unsure: jax.Array
    due: jax.Array
    logits: jax.Array
    passed: jax.Array
    steps: jax.Array
    passes: jax.Array
    positions: jax.Array
    row_passes: jax.Array
    checks: Checks | None


@dataclasses.dataclass(frozen=True)
class FreeDecoding:
    """Static part of FREE.

    Attributes:
      num_layers, shallow_layers: L and L_S.
      confidence: decides exits.
      buffer_size: positions that wait at most.
      room: tokens that can be generated.
      rolls_back: "never"; "unlikely", the published rollback; "different", verification: the text of the full model.
      compares: whether agreements are wanted (an adaptive threshold learns from them).
    """

    num_layers: int
    shallow_layers: int
    confidence: Confidence
    buffer_size: int
    room: int
    rolls_back: str
    compares: bool

    @property
    def windows(self) -> tuple[int, ...]:
        """Static sizes of deep passes: powers of two up to the buffer's size, and that."""
        return (*(2**i for i in range(20) if 2**i < self.buffer_size), self.buffer_size)

    @property
    def in_step(self) -> bool:
        """Whether all rows stand at the same position: as long as nothing is taken back."""
        return self.rolls_back == "never"

    @property
    def checks(self) -> bool:
        """Whether tokens that have left are judged by the deep layers."""
        return self.compares or not self.in_step

    @property
    def _shallow_ranges(self) -> tuple[Range, ...]:
        cut = self.shallow_layers
        return ((0, cut - 1), (cut - 1, cut)) if self.confidence.needs_previous else ((0, cut),)

    def cache_lengths(self, prompt_length: int) -> tuple[int, ...]:
        columns = prompt_length + self.room - 1
        # A window may reach beyond the last position; what it writes there is never read.
        deep = columns + self.buffer_size - 1
        return (columns,) * self.shallow_layers + (deep,) * (self.num_layers - self.shallow_layers)

    def prompt_ranges(self, *, has_encoder: bool) -> tuple[Range, ...]:
        if has_encoder:
            return ()
        return (*self._shallow_ranges, (self.shallow_layers, self.num_layers))

    def begin(self, decoder: CachedDecoder, start: Start, request: Request) -> FreeState:
        tokens, depths, confidences, finished, first = opening(start, request, self.num_layers, self.room)
        if first:
            # For the record only: token 0 is the full model's.
            confidences = confidences.at[:, 0].set(self._exit(decoder, start.states[:-1])[1])
            finished = finished | (request.limit <= 1)
        batch, shape = tokens.shape[0], tokens.shape
        count = jnp.full(() if self.in_step else (batch,), first, jnp.int32)
        none, zeros = jnp.zeros(batch, bool), jnp.zeros(batch, jnp.int32)
        checks = None
        if self.checks:
            checks = Checks(
                agreements=jnp.full(shape, -1, jnp.int8),
                nll=jnp.zeros(shape, jnp.float32),
                tokens=tokens,
                unchecked=jnp.full(batch, first, jnp.int32),
                drafted=zeros,
            )
        return FreeState(
            cache=start.cache,
            buffer=jnp.zeros((batch, self.buffer_size, decoder.config.hidden_size), decoder.dtype),
            tokens=tokens,
            depths=depths,
            confidences=confidences,
            finished=finished,
            keys=start.keys,
            count=count,
            deep=count,
            unsure=none,
            due=none,
            logits=jnp.zeros((batch, self.buffer_size if self.checks else 1, decoder.config.vocab_size), jnp.float32),
            passed=jnp.bool_(False),
            steps=jnp.int32(0),
            passes=jnp.int32(0),
            positions=zeros,
            row_passes=zeros,
            checks=checks,
        )

    def advance(
        self, decoder: CachedDecoder, prompt_length: int, state: FreeState, request: Request, stop: jax.Array
    ) -> FreeState:
        base = prompt_length - 1  # the column of position 0

        def behind(state: FreeState) -> jax.Array:
            return jnp.any(~state.finished & (self._standing(state) < stop))

        def waiting(state: FreeState) -> jax.Array:
            """The longest buffer of a row that goes on."""
            return jnp.max(jnp.where(state.finished, 0, state.count - state.deep))

        def pass_needed(state: FreeState) -> jax.Array:
            return jnp.any(state.due) | (waiting(state) >= self.buffer_size)

        def rounds(state: FreeState) -> FreeState:
            state = jax.lax.while_loop(
                lambda state: ~pass_needed(state) & behind(state),
                lambda state: self._shallow_step(decoder, base, state, request),
                state,
            )
            smaller = 0
            for window in self.windows:

                def fits(state: FreeState, smaller: int = smaller, window: int = window) -> jax.Array:
                    longest = waiting(state)
                    return pass_needed(state) & ~state.passed & (longest > smaller) & (longest <= window)

                def deep_pass(state: FreeState, window: int = window) -> FreeState:
                    return self._deep_pass(decoder, base, state, window)

                state = jax.lax.while_loop(fits, deep_pass, state)
                smaller = window
            return jax.lax.while_loop(lambda state: state.passed, lambda state: self._judge(state, request), state)

        return jax.lax.while_loop(behind, rounds, state)

    def _standing(self, state: FreeState) -> jax.Array:
        """int32 [B]: tokens of each row that will not change any more."""
        if self.rolls_back == "different":
            return state.deep  # after a pass, all positions that the deep layers have seen have been verified
        if self.rolls_back == "unlikely":
            assert state.checks is not None
            return jnp.where(state.finished, state.count, state.checks.unchecked)
        return state.count - state.unsure.astype(jnp.int32)

    def _shallow_step(self, decoder: CachedDecoder, base: int, state: FreeState, request: Request) -> FreeState:
        """One position of every row through the shallow layers, and the exit's token."""
        cut, slots, slot = self.shallow_layers, base + self.room, base + state.count
        h = decoder.embed(decoder.consumed(state.tokens, state.count)[:, None], slot)
        cache, states = state.cache, []
        for first, last in self._shallow_ranges:
            h, cache = decoder.run(first, last, h, cache, slot, slots)
            states.append(h[:, 0])
        logits, sure = self._exit(decoder, tuple(states))
        index = jnp.broadcast_to(state.count, state.finished.shape)
        token = next_tokens(logits, request.numbers, state.keys, index)

        active = ~state.finished
        exits = active & (sure > request.method.threshold)
        count = state.count + (1 if self.in_step else active.astype(jnp.int32))
        ends = active & (request.ends_text(token) | (count >= request.limit))
        unsure = active & ~exits
        checks = state.checks
        if checks is not None:
            checks = dataclasses.replace(checks, drafted=checks.drafted + exits.astype(jnp.int32))
        verifies = self.rolls_back == "different"
        return dataclasses.replace(
            state,
            cache=cache,
            buffer=_put(state.buffer, index - state.deep, states[-1], jnp.bool_(True)),
            tokens=_put(state.tokens, index, token, active),
            depths=_put(state.depths, index, jnp.full_like(index, cut), active),
            confidences=_put(state.confidences, index, sure, active),
            # The end of a text counts once it is certain: at once, or, with verification, after the next pass.
            finished=state.finished if verifies else state.finished | (ends & exits),
            count=count,
            unsure=unsure,
            due=(unsure | ends) if verifies else unsure,
            steps=state.steps + 1,
            checks=checks,
        )

    def _exit(self, decoder: CachedDecoder, states: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        """Logits [B, V] and confidence [B] of the exit; `states` [B, D] are those after the `_shallow_ranges`."""
        logits, cut = decoder.exit_logits(states[-1], self.shallow_layers), self.shallow_layers
        previous = states[-2] if len(states) > 1 else None
        return logits, self.confidence(ExitView(logits, states[-1], previous, decoder.exit_head(cut)))

    def _deep_pass(self, decoder: CachedDecoder, base: int, state: FreeState, window: int) -> FreeState:
        """The deep layers over all that wait, at most `window` (static) positions a row."""
        slots = base + self.room + self.buffer_size - 1
        h, cache = decoder.run(
            *(self.shallow_layers, self.num_layers, state.buffer[:, :window], state.cache),
            *(base + state.deep, slots),
        )
        filled = self._filled(state)
        if not self.checks:
            h = jnp.take_along_axis(h, jnp.clip(filled - 1, 0, window - 1)[:, None, None], axis=1)
        logits = decoder.exit_logits(h, self.num_layers)
        took_part = ~state.finished & (filled > 0)
        return dataclasses.replace(
            state,
            cache=cache,
            logits=jax.lax.dynamic_update_slice(state.logits, logits, (0, 0, 0)),
            passed=jnp.bool_(True),
            passes=state.passes + 1,
            positions=state.positions + jnp.where(took_part, filled, 0),
            row_passes=state.row_passes + took_part.astype(jnp.int32),
        )

    def _filled(self, state: FreeState) -> jax.Array:
        """int32 [B], positions that wait in each row."""
        return jnp.broadcast_to(state.count - state.deep, state.finished.shape)

    def _judge(self, state: FreeState, request: Request) -> FreeState:
        """What follows from a deep pass: its tokens for unsure rows, and in place of those that are rolled back."""
        state = self._take_over(state, request)
        none = jnp.zeros_like(state.unsure)
        return dataclasses.replace(state, deep=state.count, unsure=none, due=none, passed=jnp.bool_(False))

    def _take_over(self, state: FreeState, request: Request) -> FreeState:
        checks, filled = state.checks, self._filled(state)
        newest = jnp.broadcast_to(state.count, filled.shape) - 1
        unsure = state.unsure & ~state.finished
        if checks is None:
            tokens = next_tokens(state.logits[:, 0], request.numbers, state.keys, newest)
            return self._correct(state, request, unsure, newest, tokens)

        logits = state.logits
        batch, width, _ = logits.shape
        positions = jnp.reshape(state.deep, (-1, 1)) + jnp.arange(width, dtype=jnp.int32)[None]
        positions = jnp.broadcast_to(positions, (batch, width))
        keys = jnp.broadcast_to(state.keys[:, None], (batch, width)).reshape(-1)
        flat = logits.reshape(batch * width, -1)
        deep_tokens = next_tokens(flat, request.numbers, keys, positions.reshape(-1)).reshape(batch, width)
        inside = jnp.minimum(positions, self.room - 1)
        given = jnp.take_along_axis(state.tokens, inside, axis=1)
        nll = jax.nn.logsumexp(logits, axis=-1) - jnp.take_along_axis(logits, given[..., None], axis=-1)[..., 0]
        real = (jnp.arange(width, dtype=jnp.int32)[None] < filled[:, None]) & ~state.finished[:, None]
        compared = (deep_tokens == given).astype(jnp.int8)
        checks = dataclasses.replace(
            checks,
            # A pass over one position alone gives no pair (section 3.4).
            agreements=_put(checks.agreements, positions, compared, real & (filled[:, None] >= 2)),
            nll=_put(checks.nll, positions, nll, real),
            tokens=_put(checks.tokens, positions, deep_tokens, real),
        )
        state = dataclasses.replace(state, checks=checks)
        column = jnp.arange(self.room, dtype=jnp.int32)[None]
        old = (column >= checks.unchecked[:, None]) & (column <= newest[:, None])
        if self.rolls_back == "never":
            changed, place = unsure, newest
        else:
            if self.rolls_back == "different":
                judged, wrong = ~state.finished, old & (checks.tokens != state.tokens)
            else:
                # As published, a row's tokens are judged when the row itself asks for the deep layers; a pass that
                # another row asked for only prepares it.
                judged, wrong = unsure, old & (checks.nll > request.method.rollback)
            wrong = wrong | (unsure[:, None] & (column == newest[:, None]))
            changed, place = judged & jnp.any(wrong, axis=1), jnp.argmax(wrong, axis=1).astype(jnp.int32)
            count = jnp.where(changed, place + 1, state.count)
            unchecked = jnp.where(judged, count, checks.unchecked)
            cut = changed[:, None] & (column > place[:, None])
            state = dataclasses.replace(
                state,
                tokens=jnp.where(cut, request.pad_id, state.tokens),
                depths=jnp.where(cut, 0, state.depths),
                confidences=jnp.where(cut, jnp.nan, state.confidences),
                count=count,
                checks=dataclasses.replace(
                    checks, unchecked=unchecked, agreements=jnp.where(cut, jnp.int8(-1), checks.agreements)
                ),
            )
        chosen = jnp.take_along_axis(checks.tokens, jnp.clip(place, 0, self.room - 1)[:, None], axis=1)[:, 0]
        return self._correct(state, request, changed, place, chosen)

    def _correct(
        self, state: FreeState, request: Request, changed: jax.Array, place: jax.Array, tokens: jax.Array
    ) -> FreeState:
        """Puts the deep model's tokens int32 [B] at positions `place` of the rows `changed`, and finishes rows."""
        state = dataclasses.replace(
            state,
            tokens=_put(state.tokens, place, tokens, changed),
            depths=_put(state.depths, place, jnp.full_like(place, self.num_layers), changed),
        )
        certain = ~state.finished if self.rolls_back == "different" else changed
        newest = jnp.clip(jnp.broadcast_to(state.count, place.shape) - 1, 0, self.room - 1)
        last = jnp.take_along_axis(state.tokens, newest[:, None], axis=1)[:, 0]
        ends = request.ends_text(last) | (newest + 1 >= request.limit)
        return dataclasses.replace(state, finished=state.finished | (certain & ends))

    def settled(self, state: FreeState) -> np.ndarray:
        standing = np.asarray(state.count if self.in_step else self._standing(state))
        finished = np.broadcast_to(np.asarray(state.count), state.finished.shape)
        return np.where(np.asarray(state.finished), finished, standing)

    def outcome(self, state: FreeState, rows: int, *, has_encoder: bool) -> Outcome:
        checks = state.checks
        return Outcome(
            depths=np.asarray(state.depths)[:rows],
            confidences=np.asarray(state.confidences)[:rows],
            steps=int(state.steps),
            deep_passes=int(state.passes),
            deep_positions=np.asarray(state.positions)[:rows],
            row_passes=np.asarray(state.row_passes)[:rows],
            drafted=None if checks is None or self.in_step else int(np.asarray(checks.drafted)[:rows].sum()),
            agreements=None if checks is None else np.asarray(checks.agreements)[:rows],
        )


def _put(array: jax.Array, index: jax.Array, new: jax.Array, where: jax.Array) -> jax.Array:
    """array [B, X, ...] with `new` [B, ...] or [B, W, ...] at places int32 [B] or [B, W] of each row, where bool
    (broadcast against the places) says so."""
    rows = jnp.arange(array.shape[0], dtype=jnp.int32).reshape((-1,) + (1,) * (index.ndim - 1))
    index = jnp.where(where, index, array.shape[1])  # out of bounds, and dropped
    return array.at[rows, index].set(new, mode="drop")

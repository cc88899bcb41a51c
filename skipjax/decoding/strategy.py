"""What `skipjax.programs` needs to know of a way of decoding."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from skipjax.cache import KVCache
from skipjax.decoding.cached_decoder import CachedDecoder
from skipjax.decoding.request import Outcome, Request
from skipjax.plan import Range


class Start(NamedTuple):
    """Where decoding begins: after the prompt, or before the start token.

    Attributes:
      cache: keys and values of the prompt, with room for what follows.
      keys: random keys [B].
      first: int32 [B], token 0 if the prompt gave it, else None.
      states: [B, D] of the prompt's last column after each of the ranges it ran; empty if it ran none.
    """

    cache: KVCache
    keys: jax.Array
    first: jax.Array | None
    states: tuple[jax.Array, ...]


class Opening(NamedTuple):
    """A state's arrays before the first decode step, as far as strategies share them.

    Attributes:
      tokens: int32 [B, T], pads but for token 0 where the prompt gave it.
      depths: int32 [B, T], L there, else 0.
      confidences: float32 [B, T], NaN.
      finished: bool [B], rows that ended with token 0 and those that nobody asked for.
      first: tokens there are, 0 or 1.
    """

    tokens: jax.Array
    depths: jax.Array
    confidences: jax.Array
    finished: jax.Array
    first: int


def opening(start: Start, request: Request, num_layers: int, room: int) -> Opening:
    """For `num_layers` L and `room` T."""
    shape = (request.padding.shape[0], room)
    tokens, depths = jnp.full(shape, request.pad_id, jnp.int32), jnp.zeros(shape, jnp.int32)
    confidences, finished = jnp.full(shape, jnp.nan, jnp.float32), request.filling()
    if start.first is None:
        return Opening(tokens, depths, confidences, finished, 0)
    tokens, depths = tokens.at[:, 0].set(start.first), depths.at[:, 0].set(num_layers)
    return Opening(tokens, depths, confidences, finished | request.ends_text(start.first), 1)


class Strategy(Protocol):
    """A way of decoding, static and hashable. Its state is a pytree with at least `tokens` int32 [B, T] and `finished`
    bool [B]; the numbers that may change come with the request."""

    @property
    def room(self) -> int:
        """T, tokens that can be generated."""

    def cache_lengths(self, prompt_length: int) -> tuple[int, ...]:
        """Slots of keys and values for each layer, after a decoder prompt of `prompt_length` columns; 0 for none."""

    def prompt_ranges(self, *, has_encoder: bool) -> tuple[Range, ...]:
        """Layers that the decoder's prompt runs, cut where states are wanted. Empty only with an encoder: the start
        token is an ordinary step."""

    def begin(self, decoder: CachedDecoder, start: Start, request: Request) -> Any:
        """Traced: the state before the first decode step."""

    def advance(self, decoder: CachedDecoder, prompt_length: int, state: Any, request: Request, stop: jax.Array) -> Any:
        """Traced: the state once `stop` tokens (int32 scalar) of every row stand or all rows have finished."""

    def settled(self, state: Any) -> np.ndarray:
        """On the host: how many tokens of each row can no longer change, int [B]."""

    def outcome(self, state: Any, rows: int, *, has_encoder: bool) -> Outcome:
        """On the host: what the first `rows` rows did."""

"""What `skipjax.programs` needs to know of a way of decoding."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from skipjax.cache import KVCache
from skipjax.decoding.cached_decoder import CachedDecoder
from skipjax.decoding.request import Outcome, Request
from skipjax.plan import Range


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Source:
    """What decoding reads of an encoded source and never changes; both None for a decoder-only model.

    Attributes:
      memory: keys and values of the encoder's states, for cross-attention.
      allowed: bool [B, 1, S], False on padding.
    """

    memory: KVCache | None
    allowed: jax.Array | None


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

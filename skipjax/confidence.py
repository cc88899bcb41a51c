"""How sure an exit is of its token: small classes, one per measure, that exit-by-confidence methods use.

A new measure is one class, an entry in `CONFIDENCES`, and a test. Larger is surer; a token exits if its confidence is
strictly above the threshold. All lie between 0 and 1, but for the cosine between -1 and 1. All work per token: nothing
is normed or averaged over the batch.
"""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp

from skipjax import checks
from skipjax.modules import ExitHead


class ExitView(NamedTuple):
    """What a confidence may look at.

    Attributes:
      logits: float32 [B, V], of the exit.
      state: [B, D], hidden state after the exit's layer, before any norm.
      previous: [B, D], hidden state one layer earlier; may be None unless the measure `needs_previous`.
      head: parameters of the exit's own, or None.
    """

    logits: jax.Array
    state: jax.Array
    previous: jax.Array | None
    head: ExitHead | None


class Confidence(Protocol):
    """A measure. Hashable, so static under `jax.jit`."""

    @property
    def needs_previous(self) -> bool:
        """Whether it looks at the state one layer earlier."""

    @property
    def needs_classifier(self) -> bool:
        """Whether the exit must have a trained classifier."""

    def __call__(self, view: ExitView) -> jax.Array:
        """float32 [B]."""


class _Measure:
    """Needs nothing but logits and state."""

    needs_previous = False
    needs_classifier = False


@dataclasses.dataclass(frozen=True)
class Margin(_Measure):
    """p1 - p2, the gap of the two largest probabilities (FREE, 2310.05424, section 3.2; CALM, 2207.07061).

    Worked: logits (2, 1, 0) give 0.42051.
    """

    def __call__(self, view: ExitView) -> jax.Array:
        # Two passes for the maximum instead of sorting the vocabulary.
        best = jnp.argmax(view.logits, axis=-1, keepdims=True)
        tokens = jax.lax.broadcasted_iota(best.dtype, view.logits.shape, view.logits.ndim - 1)
        second = jnp.max(jnp.where(tokens == best, -jnp.inf, view.logits), axis=-1)
        total = jax.nn.logsumexp(view.logits, axis=-1)
        return jnp.exp(jnp.max(view.logits, axis=-1) - total) - jnp.exp(second - total)


@dataclasses.dataclass(frozen=True)
class Top1(_Measure):
    """p1, the largest probability. Worked: logits (2, 1, 0) give 0.66524."""

    def __call__(self, view: ExitView) -> jax.Array:
        return jnp.exp(jnp.max(view.logits, axis=-1) - jax.nn.logsumexp(view.logits, axis=-1))


@dataclasses.dataclass(frozen=True)
class Entropy(_Measure):
    """1 - H(p) / log V: 0 for a uniform distribution, 1 for a certain token. Worked: logits (2, 1, 0) give 0.24232."""

    def __call__(self, view: ExitView) -> jax.Array:
        entropy = jnp.sum(jax.scipy.special.entr(jax.nn.softmax(view.logits, axis=-1)), axis=-1)
        return 1 - entropy / math.log(view.logits.shape[-1])


@dataclasses.dataclass(frozen=True)
class Cosine(_Measure):
    """Cosine of the hidden states after the exit's layer and one layer earlier, per token: how little the last layer
    changed (CALM, 2207.07061, section 3.2)."""

    needs_previous = True

    def __call__(self, view: ExitView) -> jax.Array:
        assert view.previous is not None
        state, previous = view.state.astype(jnp.float32), view.previous.astype(jnp.float32)
        lengths = jnp.linalg.norm(state, axis=-1) * jnp.linalg.norm(previous, axis=-1)
        return jnp.clip(jnp.sum(state * previous, axis=-1) / jnp.maximum(lengths, 1e-20), -1.0, 1.0)


@dataclasses.dataclass(frozen=True)
class Classifier(_Measure):
    """A trained linear classifier of the hidden state (CALM, 2207.07061, section 3.2; `skipjax train heads`): the
    probability that the exit's token is the full model's."""

    needs_classifier = True

    def __call__(self, view: ExitView) -> jax.Array:
        assert view.head is not None
        assert view.head.classifier is not None
        return jax.nn.sigmoid(view.head.classifier(view.state)[..., 0].astype(jnp.float32))


CONFIDENCES: dict[str, Confidence] = {
    "margin": Margin(),
    "top1": Top1(),
    "entropy": Entropy(),
    "cosine": Cosine(),
    "classifier": Classifier(),
}


def confidence_named(name: str) -> Confidence:
    """The measure of a name. Raises ValueError for one that is not in `CONFIDENCES`."""
    return CONFIDENCES[checks.choice("confidence", name, CONFIDENCES)]

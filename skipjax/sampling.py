"""Choosing the next token from logits: greedy, temperature, top-k, top-p."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from skipjax import checks


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How the next token is drawn. The default is greedy. All numbers are dynamic: changing them compiles nothing.

    The order is Hugging Face's: temperature, then top_k, then top_p on what is left.

    Attributes:
      temperature: divides the logits; 0 is greedy.
      top_p: keep the smallest set of most probable tokens whose probabilities sum to at least top_p; 1 keeps all.
      top_k: keep the k most probable tokens; 0 keeps all.
      seed: the only source of randomness. A row's draws depend on the seed, its own prompt and, where the same prompt
        stands in a batch (or in the file that batches are made of) several times, which of them it is: never on its
        neighbours or its place.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        checks.real("temperature", self.temperature, 0.0, 1e6)
        checks.real("top_p", self.top_p, 0.0, 1.0, above=True)
        checks.integer("top_k", self.top_k, 0, 2**31 - 1)
        checks.integer("seed", self.seed, 0, 2**32 - 1)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SamplingNumbers:
    """A batch's `Sampling` as dynamic arguments.

    Attributes:
      temperature, top_p: float32 scalars; top_k: int32 scalar; seed: uint32 scalar.
      prompt_hashes: uint32 [B], a hash of each row's prompt tokens.
      occurrences: uint32 [B], the number of equal prompts before each.
    """

    temperature: jax.Array
    top_p: jax.Array
    top_k: jax.Array
    seed: jax.Array
    prompt_hashes: jax.Array
    occurrences: jax.Array

    def keys(self) -> jax.Array:
        """One random key per row [B]."""

        def one(prompt_hash, occurrence):
            return jax.random.fold_in(jax.random.fold_in(jax.random.key(self.seed), prompt_hash), occurrence)

        return jax.vmap(one)(self.prompt_hashes, self.occurrences)


def next_tokens(logits: jax.Array, numbers: SamplingNumbers, keys: jax.Array, index: jax.Array) -> jax.Array:
    """Token ids int32 [B] from float32 logits [B, V], with random keys [B], for generated token number `index` (int32,
    scalar or [B]).

    Given the key and the index, a drawn token is a function of the logits alone: equal logits give equal tokens.
    """

    def greedy():
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)

    def sampled():
        # The largest logit becomes 0, which no temperature turns into infinity.
        centred = logits - jnp.max(logits, axis=-1, keepdims=True)
        kept = keep_likely(centred / numbers.temperature, numbers.top_k, numbers.top_p)
        step_keys = jax.vmap(jax.random.fold_in)(keys, jnp.broadcast_to(index, keys.shape))
        return jax.vmap(jax.random.categorical)(step_keys, kept).astype(jnp.int32)

    # A run-time branch on a scalar: greedy and sampled calls share a program, and greedy ones skip the drawing.
    return jax.lax.cond(numbers.temperature > 0, sampled, greedy)


def keep_likely(logits: jax.Array, top_k: jax.Array, top_p: jax.Array) -> jax.Array:
    """logits float32 [B, V] with -inf for tokens outside top-k and then top-p. Tokens tied with the last kept one stay.

    Instead of sorting the vocabulary it finds, per row, the cut-off logit by bisection over the 32 bits of a float.
    Worked: probabilities (.5, .3, .2): top_p .5 keeps one token, .6 keeps two, 1 keeps three.
    """
    vocab = logits.shape[-1]
    order = _ordered(logits)
    wanted = jnp.where(top_k > 0, jnp.minimum(top_k, vocab), vocab).astype(jnp.float32)
    cut = _largest_cut(order, jnp.ones_like(logits), wanted)
    logits = jnp.where(order >= cut, logits, -jnp.inf)
    probabilities = jax.nn.softmax(logits, axis=-1)
    # top_p = 1 must keep all, whatever float32 sums to.
    wanted = jnp.maximum(top_p, jnp.finfo(jnp.float32).tiny)  # a top_p that rounds to 0 still keeps one token
    cut = jnp.where(top_p < 1, _largest_cut(order, probabilities, wanted), jnp.uint32(0))
    return jnp.where(order >= cut, logits, -jnp.inf)


def _ordered(x: jax.Array) -> jax.Array:
    """uint32 that sort as the floats do."""
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
    return jnp.where(bits >> 31 == 1, ~bits, bits | jnp.uint32(1 << 31))


def _largest_cut(order: jax.Array, weights: jax.Array, wanted: jax.Array) -> jax.Array:
    """The largest uint32 [B, 1] such that the weights at and above it in `order` still sum to `wanted` (scalar)."""

    def set_bit(index, cut):
        trial = cut | (jnp.uint32(1 << 31) >> index.astype(jnp.uint32))
        enough = jnp.sum(jnp.where(order >= trial, weights, 0.0), axis=-1, keepdims=True) >= wanted
        return jnp.where(enough, trial, cut)

    return jax.lax.fori_loop(0, 32, set_bit, jnp.zeros((order.shape[0], 1), jnp.uint32))

"""Sampling against plain numpy, and its edges."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from skipjax.sampling import Sampling, SamplingNumbers, keep_likely, next_tokens


def reference_kept(logits: np.ndarray, top_k: int, top_p: float) -> np.ndarray:
    """bool [V]: sort, cut to k, then the shortest prefix whose probabilities reach top_p. Float64."""
    order = np.argsort(-logits, kind="stable")[: top_k or None]
    probabilities = np.exp(logits[order].astype(np.float64) - logits.max())
    probabilities /= probabilities.sum()
    count = len(order) if top_p == 1 else int(np.searchsorted(np.cumsum(probabilities), top_p - 1e-9)) + 1
    kept = np.zeros(logits.shape, bool)
    kept[order[:count]] = True
    return kept


@pytest.mark.parametrize(
    ("top_k", "top_p"), [(0, 1.0), (1, 1.0), (5, 1.0), (0, 0.7), (20, 0.9), (500, 0.05), (3, 1e-6), (0, 1e-50)]
)
def test_kept_tokens_are_those_of_a_sort(top_k, top_p):
    logits = np.random.default_rng(3).normal(0, 3, (6, 211)).astype(np.float32)
    logits[1] -= 40  # all negative
    logits[2] += 40
    kept = np.isfinite(jax.jit(keep_likely)(logits, jnp.int32(top_k), jnp.float32(top_p)))
    for row, mask in zip(logits, kept, strict=True):
        np.testing.assert_array_equal(mask, reference_kept(row, top_k, top_p))


@pytest.mark.parametrize(("top_p", "count"), [(0.3, 1), (0.5, 1), (0.6, 2), (0.9, 3), (1.0, 3)])
def test_worked_example_of_top_p(top_p, count):
    logits = jnp.log(jnp.array([[0.5, 0.3, 0.2]], jnp.float32))
    assert int(jnp.isfinite(keep_likely(logits, jnp.int32(0), jnp.float32(top_p))).sum()) == count


def test_ties_at_the_cut_stay():
    logits = jnp.array([[1.0, 2.0, 2.0, 0.0]], jnp.float32)
    assert jnp.isfinite(keep_likely(logits, jnp.int32(1), jnp.float32(1.0))).tolist() == [[False, True, True, False]]


def numbers_for(rows: int, **changes) -> SamplingNumbers:
    values = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "seed": 0} | changes
    return SamplingNumbers(
        temperature=jnp.float32(values["temperature"]),
        top_p=jnp.float32(values["top_p"]),
        top_k=jnp.int32(values["top_k"]),
        seed=jnp.uint32(values["seed"]),
        prompt_hashes=jnp.zeros(rows, jnp.uint32),
        occurrences=jnp.arange(rows, dtype=jnp.uint32),
    )


def test_papers_sampling_has_the_reference_distribution():
    """Temperature 0.3 and top-p 0.7, as in SkipDecode's evaluation; 20,000 rows of one distribution."""
    rows = 20_000
    logits = np.array([0.6, 0.5, 0.4, 0.1, -0.5], np.float32)
    numbers = numbers_for(rows, temperature=0.3, top_p=0.7)
    drawn = next_tokens(jnp.tile(logits, (rows, 1)), numbers, numbers.keys(), jnp.int32(0))
    scaled = logits / 0.3
    weights = np.where(reference_kept(scaled, 0, 0.7), np.exp(scaled), 0)
    np.testing.assert_allclose(np.bincount(drawn, minlength=5) / rows, weights / weights.sum(), atol=0.012)


def test_temperature_zero_is_argmax_and_seeds_repeat():
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(50, 31)), jnp.float32)
    greedy, cold = numbers_for(50, temperature=0.0), numbers_for(50, temperature=1e-4)
    best = jnp.argmax(logits, axis=-1).tolist()
    assert next_tokens(logits, greedy, greedy.keys(), jnp.int32(0)).tolist() == best
    assert next_tokens(logits, cold, cold.keys(), jnp.int32(0)).tolist() == best
    one, same, other = numbers_for(50, seed=5), numbers_for(50, seed=5), numbers_for(50, seed=6)
    draws = [next_tokens(logits, n, n.keys(), jnp.int32(3)).tolist() for n in (one, same, other)]
    assert draws[0] == draws[1] != draws[2]
    assert next_tokens(logits, one, one.keys(), jnp.int32(4)).tolist() != draws[0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"temperature": -0.1}, r"temperature must be a number at least 0 and at most 1e\+06, got -0.1"),
        ({"temperature": float("nan")}, "temperature must be a number at least 0 and at most"),
        ({"temperature": "hot"}, "temperature must be a number at least 0 and at most"),
        ({"top_p": 0.0}, "top_p must be a number above 0 and at most 1, got 0.0"),
        ({"top_p": 1.5}, "top_p must be a number above 0 and at most 1, got 1.5"),
        ({"temperature": 1e300}, "temperature must be a number at least 0 and at most"),
        ({"top_k": -1}, "top_k must be an integer from 0 to 2147483647, got -1"),
        ({"seed": -1}, "seed must be an integer from 0 to 4294967295, got -1"),
        ({"seed": 1.5}, "seed must be an integer from 0 to 4294967295, got 1.5"),
    ],
)
def test_bad_numbers_are_refused_by_name(arguments, said):
    with pytest.raises(ValueError, match=said):
        Sampling(**arguments)

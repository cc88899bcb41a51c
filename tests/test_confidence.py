"""Measures of confidence: worked values, and what must hold at the edges."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tiny_models import tiny_config

from skipjax.confidence import CONFIDENCES, Confidence, ExitView, confidence_named
from skipjax.config import ExitHeads
from skipjax.modules import ExitHead

MARGIN, TOP1, ENTROPY, COSINE, CLASSIFIER = (
    CONFIDENCES[name] for name in ("margin", "top1", "entropy", "cosine", "classifier")
)


def of_logits(measure: Confidence, *rows: tuple[float, ...]) -> list[float]:
    state = jnp.zeros((len(rows), 1))
    result = jax.jit(measure)(ExitView(jnp.asarray(rows, jnp.float32), state, None, None))
    assert (result.shape, result.dtype) == ((len(rows),), jnp.float32)
    return result.tolist()


def of_states(state: np.ndarray, previous: np.ndarray, dtype=jnp.float32) -> np.ndarray:
    logits = jnp.zeros((len(state), 3))
    result = jax.jit(COSINE)(ExitView(logits, jnp.asarray(state, dtype), jnp.asarray(previous, dtype), None))
    assert (result.shape, result.dtype) == ((len(state),), jnp.float32)
    return np.asarray(result)


@pytest.mark.parametrize(
    ("measure", "expected"), [(MARGIN, 0.42051), (TOP1, 0.66524), (ENTROPY, 0.24232)], ids=["margin", "top1", "entropy"]
)
def test_worked_values(measure, expected):
    shifted = (102.0, 101.0, 100.0)
    in_another_order = (0.0, 2.0, 1.0)
    assert of_logits(measure, (2.0, 1.0, 0.0), shifted, in_another_order) == pytest.approx([expected] * 3, abs=5e-6)


def test_against_float64():
    logits = np.random.default_rng(0).normal(size=(50, 97)) * np.linspace(0.1, 12, 50)[:, None]
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    highest = np.sort(p, axis=1)
    for measure, expected in [
        (MARGIN, highest[:, -1] - highest[:, -2]),
        (TOP1, highest[:, -1]),
        (ENTROPY, 1 + (p * np.log(p)).sum(axis=1) / np.log(97)),
    ]:
        np.testing.assert_allclose(of_logits(measure, *logits), expected, atol=2e-6)


def test_ties_have_no_margin():
    assert of_logits(MARGIN, (3.0, 3.0, 1.0), (-2.0, 5.0, 5.0), (0.0, 0.0, 0.0)) == [0, 0, 0]


def test_uniform_and_certain_distributions():
    uniform, certain = (1.5,) * 8, (200.0,) + (0.0,) * 7
    assert of_logits(ENTROPY, uniform, certain) == pytest.approx([0, 1], abs=1e-6)
    assert of_logits(TOP1, uniform, certain) == pytest.approx([1 / 8, 1])
    assert of_logits(MARGIN, uniform, certain) == pytest.approx([0, 1])


@pytest.mark.parametrize(
    ("measure", "two_left"), [(MARGIN, 0.0), (TOP1, 0.5), (ENTROPY, 0.5)], ids=["margin", "top1", "entropy"]
)
def test_impossible_tokens_count_for_nothing(measure, two_left):
    never = -float("inf")
    assert of_logits(measure, (2.0, never, never, never), (2.0, 2.0, never, never)) == pytest.approx([1, two_left])


def test_no_measure_is_above_one_which_as_a_threshold_lets_nothing_go():
    generator = np.random.default_rng(0)
    for measure in (MARGIN, TOP1, ENTROPY):
        values = of_logits(measure, *(10.0 ** generator.uniform(-3, 4, (200, 1)) * generator.normal(size=(200, 7))))
        assert max(values) <= 1
        assert min(values) >= -1e-6
    state = generator.normal(size=(500, 32)) * 10.0 ** generator.uniform(-3, 4, (500, 1))
    for dtype in (jnp.float32, jnp.bfloat16):
        assert of_states(state, state, dtype).max() <= 1
        assert of_states(state, -state, dtype).min() >= -1


def test_cosine_is_taken_per_token():
    state = np.array([[3.0, 4.0], [1.0, 0.0], [2.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    previous = np.array([[4.0, 3.0], [0.0, 5.0], [-7.0, 0.0], [1e3, 1e3], [1.0, 1.0]])
    expected = [24 / 25, 0, -1, 1, 0]
    np.testing.assert_allclose(of_states(state, previous), expected, atol=1e-6)
    for row in range(5):
        alone = of_states(state[row : row + 1], previous[row : row + 1])
        np.testing.assert_allclose(alone, expected[row : row + 1], atol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_classifier_reads_the_state_before_any_norm(dtype):
    generator = np.random.default_rng(0)
    head = ExitHead(tiny_config(exit_heads=ExitHeads((2,), norm=True, classifier=True)), rngs=nnx.Rngs(0))
    state, weight = jnp.asarray(generator.normal(size=(4, 32)) * 40, dtype), jnp.asarray([[0.01] * 32], dtype)
    assert head.classifier is not None
    head.classifier.weight, head.classifier.bias = nnx.Param(weight), nnx.Param(jnp.asarray([0.5], dtype))
    result = CLASSIFIER(ExitView(jnp.zeros((4, 97)), state, None, head))
    assert (result.shape, result.dtype) == ((4,), jnp.float32)
    expected = 1 / (1 + np.exp(-(np.asarray(state, np.float64) @ np.asarray(weight, np.float64)[0] + 0.5)))
    np.testing.assert_allclose(result, expected, atol=1e-5 if dtype == jnp.float32 else 1e-2)
    assert np.ptp(expected) > 0.3


def test_names():
    assert list(CONFIDENCES) == ["margin", "top1", "entropy", "cosine", "classifier"]
    assert [confidence_named(name).needs_classifier for name in CONFIDENCES] == [False] * 4 + [True]
    assert [confidence_named(name).needs_previous for name in CONFIDENCES] == [False] * 3 + [True, False]
    assert len({*CONFIDENCES.values(), type(MARGIN)()}) == 5  # by value, as keys of compiled programs
    with pytest.raises(
        ValueError, match=r"^confidence must be one of 'margin', .* got 'margn' \(did you mean 'margin'"
    ):
        confidence_named("margn")

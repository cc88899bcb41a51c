"""FREE's loss: teachers and pairs as published, and the sum of its parts."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_training import LLAMA, T5, bottom, cross_entropies, predicted, random_batch, stacked, wide_params

from skipjax import decoder
from skipjax.methods import Free
from skipjax.recorded import Recorded
from skipjax.training import free
from skipjax.training.free_loss import FreeLoss, distillation, dynamic_choices, pair_distances, teacher_layers
from skipjax.training.loss import target_states

TEACHERS = {  # as the official code lists them
    (24, 12): (1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23),
    (24, 10): (2, 5, 7, 10, 12, 15, 17, 19, 21, 23),
    (24, 8): (2, 5, 8, 11, 14, 17, 20, 23),
    (24, 6): (3, 7, 11, 15, 19, 23),
    (24, 4): (5, 11, 17, 23),
    (12, 3): (3, 7, 11),
}


@pytest.mark.parametrize("sizes", TEACHERS, ids=str)
def test_teachers(sizes):
    assert teacher_layers(*sizes) == TEACHERS[sizes]


def test_every_shallow_layer_has_a_teacher_above_it():
    for deep in range(2, 40):
        for shallow in range(1, deep):
            teachers = teacher_layers(deep, shallow)
            assert len(set(teachers)) == shallow
            assert all(layer < teacher for layer, teacher in enumerate(teachers))
            assert teachers[-1] == deep - 1


def scalar_states(*values):
    """One position, D = 1: [number, 1, 1, 1]."""
    return jnp.asarray(values, jnp.float32).reshape(-1, 1, 1, 1)


@functools.partial(jax.jit, static_argnums=2)
def distilled(students, teachers, kind):
    """((value, choices), gradients) of one real position."""

    def loss(students, teachers):
        return distillation(students, teachers, jnp.ones((1, 1), bool), kind)

    return jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(students, teachers)


@pytest.mark.parametrize(
    ("students", "teachers", "choices", "value", "gradient"),
    [
        ((0, 1, 2), (2, 2, 2), (0, 1, 2), 5 / 3, (-4 / 3, -2 / 3, 0)),
        ((5, 1, 2), (5, 5, 5), (0, 0, 0), 0, (0, 0, 0)),
        ((0, 1, 2), (0, 1, 2), (0, 1, 2), 0, (0, 0, 0)),
    ],
)
def test_dynamic_pairs(students, teachers, choices, value, gradient):
    """L = 12, L_S = 3: teachers are the states after layers 4, 8 and 12."""
    (total, chosen), (slopes, _) = distilled(scalar_states(*students), scalar_states(*teachers), "dyna")
    assert chosen.tolist() == list(choices)
    np.testing.assert_allclose(total, value, rtol=1e-6)
    np.testing.assert_allclose(slopes.ravel(), gradient, rtol=1e-6)


@pytest.mark.parametrize(
    ("kind", "value", "gradient"),
    [
        ("unif", (4 + 4 + 1) / 3, (-4 / 3, 4 / 3, 2 / 3)),
        ("last", 1, (0, 0, 2)),
        ("none", 0, (0, 0, 0)),
        # The last teacher (3) is nearest to student 1, the others (1, 2) have only student 0 below it.
        ("dyna", (4 + 1 + 0) / 3, (-6 / 3, 0, 0)),
    ],
)
def test_kinds(kind, value, gradient):
    (total, _), (slopes, of_teachers) = distilled(scalar_states(0, 3, 4), scalar_states(2, 1, 3), kind)
    np.testing.assert_allclose(total, value, rtol=1e-6)
    np.testing.assert_allclose(slopes.ravel(), gradient, atol=1e-6)
    assert not of_teachers.any()


def test_choices_by_walking():
    rng = np.random.default_rng(0)
    for _ in range(20):
        distances = rng.random((5, 5)).astype(np.float32)
        ceiling, expected = 5, []
        for row in distances[::-1]:
            ceiling = int(np.argmin(row[:ceiling])) if ceiling else 0
            expected.insert(0, ceiling)
        assert jax.jit(dynamic_choices)(distances).tolist() == expected


def test_padding_does_not_count():
    rng = np.random.default_rng(0)
    students, teachers = (jnp.asarray(rng.normal(size=(2, 3, 4, 5)), jnp.float32) for _ in range(2))
    real = jnp.arange(4)[None] < jnp.asarray([4, 2, 0])[:, None]
    squared = ((np.asarray(students)[None] - np.asarray(teachers)[:, None]) ** 2).mean(axis=-1)
    squared[:, :, ~np.asarray(real)] = 0
    np.testing.assert_allclose(pair_distances(students, teachers, real), squared.sum(axis=(2, 3)) / 6, rtol=1e-5)
    total, _ = distillation(students, teachers, real, "unif")
    np.testing.assert_allclose(total, (squared[0, 0].sum() + squared[1, 1].sum()) / 2, rtol=1e-5)
    np.testing.assert_array_equal(pair_distances(students, teachers, jnp.zeros((3, 4), bool)), 0)


@functools.partial(jax.jit, static_argnums=(0, 3))
def loss_and_gradient(config, params, batch, objective):
    return jax.value_and_grad(lambda params: objective.loss(config, params, batch), has_aux=True)(params)


@functools.partial(jax.jit, static_argnums=0)
def normed_states(config, params, batch):
    return decoder.ends_of(config, params).normed(target_states(config, params, batch))


@pytest.mark.parametrize("config", [LLAMA, T5], ids=lambda config: config.family)
def test_loss_is_the_sum_of_its_parts(config):
    """L = 3, L_S = 2: teachers 1 and 2, counted from 0."""
    batch, params = random_batch(3), wide_params(config)
    real = np.arange(9)[None] < batch.lengths[:, None]
    shallow, deep = (
        cross_entropies(predicted(*bottom(config, params, layers), batch), batch).mean() for layers in (2, 3)
    )
    (total, tokens), plain = loss_and_gradient(config, stacked(params), batch, FreeLoss(2, "none"))
    assert int(tokens) == real.sum()
    np.testing.assert_allclose(total / tokens, (2 * shallow + 3 * deep) / 5, rtol=1e-5)

    states = np.asarray(normed_states(config, stacked(params), batch), np.float64)[:, real]  # [L, positions, D]
    distances = ((states[None] - states[:, None]) ** 2).mean(axis=(2, 3))  # [teacher, student], of all layers
    last = int(np.argmin(distances[2, :2]))
    expected = (distances[2, last] + distances[1, 0]) / 2
    (with_pairs, _), gradient = loss_and_gradient(config, stacked(params), batch, FreeLoss(2, weight=2.0))
    np.testing.assert_allclose(with_pairs / tokens, total / tokens + 2 * expected, rtol=1e-5)

    # The distillation moves the layers below the exit and the final norm, nothing else of the decoder.
    def moved(one, other):
        return (np.abs(one - other) > 1e-4).any(axis=tuple(range(1, one.ndim)))

    difference = jax.tree.map(moved, gradient, plain)
    assert all(leaf[0] for leaf in jax.tree.leaves(difference["layers"]["attention"]))
    assert not any(leaf[2] for leaf in jax.tree.leaves(difference["layers"]))
    assert difference["ends"]["final_norm"]["scale"].any()


def test_curriculum():
    curriculum = free(T5, shallow_layers=1)
    assert curriculum.objectives == (FreeLoss(1, "dyna", 0.5),)
    assert curriculum.recorded == Recorded(Free(shallow_layers=1), exit_layers=(1,))
    assert list(curriculum.validated) == ["full", "exit 1"]
    assert curriculum.rated == {"full": 0.75, "exit 1": 0.25}
    assert curriculum.settings == {"distillation": "dyna", "distillation_weight": 0.5}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shallow_layers": 3}, "shallow_layers must be an integer from 1 to 2, got 3"),
        ({"shallow_layers": 0}, "shallow_layers must be an integer from 1 to 2, got 0"),
        (
            {"distillation": "dynamic"},
            "distillation must be one of 'dyna', 'unif', 'last', 'none', got 'dynamic' (did you mean 'dyna'?)",
        ),
        ({"distillation_weight": -1}, "distillation_weight must be a number at least 0, got -1"),
    ],
)
def test_refused(changes, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        free(LLAMA, **{"shallow_layers": 1, **changes})

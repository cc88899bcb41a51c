"""One update: accumulation, dtypes, rematerialisation, executions, optimizers."""

import dataclasses
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compile_count import counting
from tiny_training import LLAMA, T5, assert_trees_equal, random_batch, stacked

from skipjax import decoder
from skipjax.config import ExitHeads
from skipjax.methods import Full, SkipDecode
from skipjax.training.free_loss import FreeLoss
from skipjax.training.heads_loss import ClassifierLoss, HeadsLoss
from skipjax.training.loss import ExitToken, NextToken
from skipjax.training.multi_exit_loss import MultiExitLoss
from skipjax.training.optimizer import OptimizerSettings, apply_gradient, decayed, learning_rate_at, make_optimizer
from skipjax.training.step import StepOptions, initial_state, loss_step, train_step

OPTIONS = StepOptions(LLAMA, NextToken(SkipDecode(3, 2, horizon=8)))
PLAIN = OptimizerSettings(1e-2, 100, schedule="constant")


def updated(options=OPTIONS, settings=PLAIN, batch=None, scanned=False, steps=1):
    params = decoder.init_params(LLAMA, 0)
    state = initial_state(decoder.stack_layers(params) if scanned else params, settings)
    for _ in range(steps):
        state, results = train_step(state, random_batch(4) if batch is None else batch, options, settings)
    return state, results


@pytest.fixture(scope="module")
def reference():
    return updated()


def assert_close(state, expected, tolerance):
    for one, other in zip(jax.tree.leaves(state.params), jax.tree.leaves(expected.params), strict=True):
        np.testing.assert_allclose(one, other, atol=tolerance)


# Adam divides each gradient by its own size, which would hide or blow up differences: compare what the clip sees.
def test_accumulated_parts_equal_the_whole_batch(reference):
    state, results = updated(dataclasses.replace(OPTIONS, accumulate=2))
    np.testing.assert_allclose(results["loss"], reference[1]["loss"], rtol=1e-6)
    np.testing.assert_allclose(results["gradient_norm"], reference[1]["gradient_norm"], rtol=1e-5)
    moments = [one.optimizer[1].mu for one in (state, reference[0])]
    for one, other in zip(*map(jax.tree.leaves, moments), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-7)


def test_accumulated_parts_of_an_encoder_decoder_model():
    """With FREE's loss. The pairs of kd-dyna follow the part, those of kd-unif are fixed."""
    params = stacked(decoder.init_params(T5, 0))
    settings = dataclasses.replace(PLAIN, name="adafactor")
    results = []
    for parts in (1, 2):
        options = StepOptions(T5, FreeLoss(2, "unif"), accumulate=parts)
        state = initial_state(jax.tree.map(jnp.array, params), settings)
        results.append(train_step(state, random_batch(4), options, settings)[1])
    for name in ("loss", "gradient_norm"):
        np.testing.assert_allclose(results[0][name], results[1][name], rtol=1e-5)


@pytest.mark.parametrize(
    "objective",
    [NextToken(Full()), ExitToken(2), FreeLoss(2), MultiExitLoss(), HeadsLoss(), ClassifierLoss(1)],
    ids=lambda objective: type(objective).__name__,
)
def test_every_objective_takes_every_dtype_and_form(objective):
    """Traced only."""
    for config, execution in ((LLAMA, "unrolled"), (T5, "scanned")):
        config = dataclasses.replace(config, exit_heads=ExitHeads((1, 2), True, 2, True))
        options = StepOptions(config, objective, "bfloat16", rematerialise=True, accumulate=2)
        params = decoder.abstract_params(config, execution=execution)
        state = jax.eval_shape(lambda params: initial_state(params, PLAIN), params)
        after, results = train_step.eval_shape(state, random_batch(4), options, PLAIN)
        assert after == state
        assert results["loss"].dtype == jnp.float32


def test_rematerialised_equals_kept(reference):
    _, results = updated(dataclasses.replace(OPTIONS, rematerialise=True))
    np.testing.assert_allclose(results["loss"], reference[1]["loss"], rtol=1e-6)
    np.testing.assert_allclose(results["gradient_norm"], reference[1]["gradient_norm"], rtol=1e-5)


def test_scanned_equals_unrolled(reference):
    state, results = updated(scanned=True)
    np.testing.assert_allclose(results["gradient_norm"], reference[1]["gradient_norm"], rtol=1e-5)
    layers = decoder.unstack_layers(state.optimizer[1].mu)
    for one, other in zip(jax.tree.leaves(layers), jax.tree.leaves(reference[0].optimizer[1].mu), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-7)


def test_bfloat16_computes_but_does_not_keep(reference):
    state, results = updated(dataclasses.replace(OPTIONS, dtype="bfloat16"))
    assert {leaf.dtype for leaf in jax.tree.leaves(state.params)} == {jnp.dtype("float32")}
    np.testing.assert_allclose(results["loss"], reference[1]["loss"], rtol=1e-2)
    assert results["loss"] != reference[1]["loss"]
    np.testing.assert_allclose(results["gradient_norm"], reference[1]["gradient_norm"], rtol=0.1)


def test_other_data_does_not_compile_again(reference):
    updated()
    with counting() as compiled:
        updated(batch=random_batch(4, seed=5), steps=2)
    assert compiled == [0]


@pytest.mark.parametrize("name", ["adamw", "adafactor"])
def test_learns_a_toy_set_by_heart(name):
    rate = 2e-2 if name == "adamw" else 1e-2
    settings = OptimizerSettings(rate, 150, name=name, warmup_steps=5, weight_decay=1e-4)
    state = initial_state(decoder.init_params(LLAMA, 0), settings)
    batch = random_batch(4)
    before, tokens = loss_step(state.params, batch, OPTIONS)
    assert abs(before / tokens - math.log(31)) < 0.2  # fresh weights know nothing
    for _ in range(150):
        state, _ = train_step(state, batch, OPTIONS, settings)
    total, tokens = loss_step(state.params, batch, OPTIONS)
    # The first token after prompts that look alike is all that stays open.
    assert total / tokens < 0.1


def test_learning_rates():
    def rates(**changes):
        settings = OptimizerSettings(0.8, 10, warmup_steps=2, **changes)
        return [round(float(learning_rate_at(settings, step)), 4) for step in (0, 1, 2, 6, 10)]

    assert rates(schedule="constant") == [0.4, 0.8, 0.8, 0.8, 0.8]
    assert rates(schedule="linear") == [0.4, 0.8, 0.8, 0.4, 0.0]
    assert rates(schedule="cosine") == [0.4, 0.8, 0.8, 0.4, 0.0]
    assert round(float(learning_rate_at(OptimizerSettings(0.8, 8), 2)), 4) == 0.6828  # 0.4 * (1 + cos(pi / 4))


@pytest.mark.parametrize("scanned", [False, True])
def test_decay_spares_norms(scanned):
    params = decoder.init_params(LLAMA, 0)
    flags = decayed(decoder.stack_layers(params) if scanned else params)
    layer = flags["layers"] if scanned else flags["layers"][0]
    assert layer["attention"]["query"]["weight"] is True
    assert layer["attention_norm"]["scale"] is False
    assert flags["ends"]["tokens"] is True
    assert flags["ends"]["final_norm"]["scale"] is False


def test_decay_and_clip_by_hand():
    """One AdamW update of a zero gradient is decay alone, and a clipped gradient has the norm asked for."""
    params = {"weight": jnp.full((2, 2), 3.0), "scale": jnp.full(2, 3.0)}
    settings = OptimizerSettings(0.1, 10, schedule="constant", clip=0.5, weight_decay=0.5)
    start = make_optimizer(settings).init(params)
    new, _ = apply_gradient(settings, jax.tree.map(jnp.zeros_like, params), start, params)
    np.testing.assert_allclose(new["weight"], 3 - 0.1 * 0.5 * 3)
    np.testing.assert_allclose(new["scale"], 3)
    gradient = {"weight": jnp.asarray([[3.0, 0.0], [0.0, 0.0]]), "scale": jnp.asarray([4.0, 0.0])}
    _, state = apply_gradient(settings, gradient, start, params)
    np.testing.assert_allclose(state[1].mu["scale"], 0.1 * np.array([0.4, 0.0]), rtol=1e-5)  # 1 - b1 = 0.1


def test_equal_settings_are_one_optimizer():
    assert make_optimizer(OptimizerSettings(0.1, 10)) is make_optimizer(OptimizerSettings(0.1, 10))


def test_same_start_same_result(reference):
    assert_trees_equal(updated()[0], reference[0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learning_rate": 0}, "learning_rate must be a number above 0, got 0"),
        ({"learning_rate": "fast"}, "learning_rate must be a number above 0, got 'fast'"),
        ({"steps": 0}, "steps must be an integer of at least 1, got 0"),
        ({"name": "adam"}, "optimizer must be one of 'adamw', 'adafactor', got 'adam' (did you mean 'adamw'?)"),
        ({"warmup_steps": 11}, "warmup_steps must be an integer from 0 to 10, got 11"),
        (
            {"schedule": "cos"},
            "schedule must be one of 'cosine', 'linear', 'constant', got 'cos' (did you mean 'cosine'?)",
        ),
        ({"clip": -1.0}, "clip must be a number at least 0, got -1.0"),
        ({"weight_decay": float("nan")}, "weight_decay must be a number at least 0, got nan"),
    ],
)
def test_bad_optimizer_settings(changes, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        OptimizerSettings(**{"learning_rate": 0.1, "steps": 10, **changes})


def test_the_old_state_is_donated():
    """No second copy of weights and moments exists during an update."""
    params = decoder.init_params(LLAMA, 0)
    state = initial_state(params, PLAIN)
    train_step(state, random_batch(4), OPTIONS, PLAIN)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state))

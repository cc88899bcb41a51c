"""Losses at many exits: multi-exit training, and exits of their own on a frozen model."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_training import LLAMA, OPT, T5, assert_trees_equal, bottom, cross_entropies, predicted, random_batch, stacked
from tiny_training import wide_params as wide

from skipjax import decoder
from skipjax.config import ExitHeads
from skipjax.language_model import LanguageModel
from skipjax.methods import Full
from skipjax.recorded import Recorded
from skipjax.training import OptimizerSettings, heads, multi_exit, with_exit_heads
from skipjax.training.heads_loss import ClassifierLoss, HeadsLoss
from skipjax.training.loss import ExitToken, NextToken, target_states
from skipjax.training.multi_exit_loss import MultiExitLoss, exit_weights
from skipjax.training.step import StepOptions, initial_state, train_step


@functools.partial(jax.jit, static_argnums=(0, 3))
def loss_and_gradient(config, params, batch, objective):
    return jax.value_and_grad(lambda params: objective.loss(config, params, batch), has_aux=True)(params)


def test_exit_weights():
    np.testing.assert_allclose(exit_weights(3), [1 / 6, 2 / 6, 3 / 6], rtol=1e-6)


@pytest.mark.parametrize("config", [LLAMA, T5], ids=lambda config: config.family)
def test_multi_exit_loss_is_the_weighted_sum_of_exits(config):
    batch, params = random_batch(3), wide(config)
    (total, tokens), gradient = loss_and_gradient(config, stacked(params), batch, MultiExitLoss())
    exits = [cross_entropies(predicted(*bottom(config, params, layers), batch), batch) for layers in (1, 2, 3)]
    assert int(tokens) == len(exits[0])
    np.testing.assert_allclose(total / tokens, np.mean([exits[0] / 6, exits[1] / 3, exits[2] / 2], axis=1).sum(), 1e-5)
    if config is LLAMA:
        apart = [loss_and_gradient(config, stacked(params), batch, ExitToken(layers))[1] for layers in (1, 2, 3)]
        expected = jax.tree.map(lambda one, two, three: one / 6 + two / 3 + three / 2, *apart)
        for one, other in zip(jax.tree.leaves(gradient), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


def test_multi_exit_curriculum():
    curriculum = multi_exit(LLAMA)
    assert curriculum.recorded == Recorded(Full(), exit_layers=(1, 2))
    assert curriculum.validated == {"full": NextToken(Full()), "exit 1": ExitToken(1), "exit 2": ExitToken(2)}
    assert curriculum.rated == {"full": 1 / 2, "exit 1": 1 / 6, "exit 2": 1 / 3}


def model_with_exits(config, **changes):
    """Exits whose parameters are not those they start with."""
    lm = with_exit_heads(LanguageModel(config, wide(config)), [2, 1], **changes)
    rng = np.random.default_rng(0)
    moved = jax.tree.map(lambda leaf: leaf + rng.normal(0, 0.3, leaf.shape).astype(np.float32), lm.params["exits"])
    return lm.config, stacked({**lm.params, "exits": moved})


@pytest.mark.parametrize("config", [LLAMA, T5], ids=lambda config: config.family)
def test_heads_loss_by_hand(config):
    config, params = model_with_exits(config, norm=True, adapter_rank=2, classifier=True)
    batch = random_batch(3)
    real = np.arange(9)[None] < batch.lengths[:, None]
    (total, tokens), gradient = loss_and_gradient(config, params, batch, HeadsLoss())

    @jax.jit
    def pieces(params):
        states = target_states(config, params, batch)
        return states, [decoder.exit_logits(config, params, states[layer - 1], layer) for layer in (1, 2, 3)]

    states, logits = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), pieces(params))
    chances = [jax.nn.softmax(one[real]) for one in logits]
    parts = []
    for index in (0, 1):
        labels = cross_entropies(logits[index], batch)
        divergence = (chances[2] * np.log(chances[2] / chances[index])).sum(axis=-1)
        classifier = jax.tree.map(np.asarray, params["exits"][str(index + 1)]["classifier"])
        score = states[index][real] @ classifier["weight"][0] + classifier["bias"]
        agree = chances[index].argmax(axis=-1) == chances[2].argmax(axis=-1)
        surprise = -np.log(np.where(agree, 1 / (1 + np.exp(-score)), 1 / (1 + np.exp(score))))
        if index == 0:
            (alone, _), _ = loss_and_gradient(config, params, batch, ClassifierLoss(1))
            np.testing.assert_allclose(alone, surprise.sum(), rtol=1e-4)
        parts.append(labels + divergence + surprise)
    assert int(tokens) == real.sum()
    np.testing.assert_allclose(total, np.mean(parts, axis=0).sum(), rtol=1e-4)
    rest = {name: part for name, part in gradient.items() if name != "exits"}
    assert not any(leaf.any() for leaf in jax.tree.leaves(rest))
    assert all(leaf.any() for leaf in jax.tree.leaves(gradient["exits"]))


def test_exits_start_as_the_shared_head():
    config, params = LLAMA, wide(LLAMA)
    lm = with_exit_heads(LanguageModel(config, params), [1], norm=True, adapter_rank=2)
    h = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 16)), jnp.float32)
    own = decoder.exit_logits(lm.config, lm.params, h, 1)
    np.testing.assert_array_equal(own, decoder.exit_logits(config, params, h, 1))
    assert lm.config.exit_heads == ExitHeads((1,), True, 2, False)


def test_a_classifier_alone_leaves_predictions_alone():
    config, params = model_with_exits(OPT, classifier=True)
    batch = random_batch(3)
    (total, _), gradient = loss_and_gradient(config, params, batch, HeadsLoss())
    both = [loss_and_gradient(config, params, batch, ClassifierLoss(layer))[0][0] for layer in (1, 2)]
    np.testing.assert_allclose(total, sum(both) / 2, rtol=1e-6)
    assert set(gradient["exits"]["1"]) == {"classifier"}


def test_only_exits_change():
    """And the optimizer holds nothing of the rest. Parts give what the whole batch gives."""
    config, params = model_with_exits(LLAMA, norm=True, adapter_rank=2, classifier=True)
    before = jax.tree.map(np.array, params)
    settings = OptimizerSettings(1e-2, 10, schedule="constant")
    results = []
    for parts in (1, 2):
        state = initial_state(jax.tree.map(jnp.array, before), settings, ("exits",))
        size = sum(leaf.size for leaf in jax.tree.leaves(params["exits"]))
        assert sum(leaf.size for leaf in jax.tree.leaves(state.optimizer)) == 2 * size + 2  # moments, and counts
        state, of_step = train_step(
            state, random_batch(4), StepOptions(config, HeadsLoss(), accumulate=parts), settings
        )
        results.append(of_step)
        assert set(state.params) == {"exits"}
        assert_trees_equal(state.frozen, {name: part for name, part in before.items() if name != "exits"})
        exits = {"exits": before["exits"]}
        assert all((new != old).any() for new, old in zip(*map(jax.tree.leaves, (state.params, exits)), strict=True))
    for name in ("loss", "gradient_norm"):
        np.testing.assert_allclose(results[0][name], results[1][name], rtol=1e-5)


def test_heads_curriculum():
    config, _ = model_with_exits(LLAMA, norm=True, classifier=True)
    curriculum = heads(config)
    assert curriculum.trained == ("exits",)
    assert list(curriculum.validated) == ["full", "exit 1", "exit 2", "classifier 1", "classifier 2"]
    assert curriculum.rated == dict.fromkeys(["exit 1", "exit 2", "classifier 1", "classifier 2"], 0.25)
    assert curriculum.recorded == Recorded(Full(), exit_layers=(1, 2))


@pytest.mark.parametrize(
    ("layers", "changes", "message"),
    [
        ([3], {"norm": True}, "layers must be an integer from 1 to 2, got 3"),
        ([0], {"norm": True}, "layers must be an integer from 1 to 2, got 0"),
        ([], {"norm": True}, "layers must name at least one exit"),
        ([1], {}, "at least one of --norm, --adapter-rank and --classifier must be given"),
        ([1], {"adapter_rank": 17}, "adapter_rank must be an integer from 0 to 16, got 17"),
    ],
)
def test_refused_heads(layers, changes, message):
    lm = LanguageModel(LLAMA, decoder.init_params(LLAMA, 0))
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        with_exit_heads(lm, layers, **changes)
    with pytest.raises(ValueError, match="model must be one without exits of its own"):
        with_exit_heads(with_exit_heads(lm, [1], norm=True), [1], norm=True)

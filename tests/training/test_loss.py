"""The loss with static slices is the loss with a depth mask, and costs what it says."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_training import LLAMA, OPT, random_batch

from skipjax import decoder
from skipjax.attention import attention, causal
from skipjax.methods import Full, SkipDecode
from skipjax.training.loss import target_loss

METHODS = {
    "full": Full(),
    "linear": SkipDecode(4, 2, horizon=8),
    "short horizon": SkipDecode(3, 2, horizon=4),
    "no warm-up": SkipDecode(3, 1, warmup_layers=0, horizon=6, shape="cosine"),
    "two warm-up layers": SkipDecode(4, 3, warmup_layers=2, horizon=5, shape="step"),
}


def masked_loss(params, config, batch, method):
    """Every layer on every column, and `where` by the depth of each column; token by token."""
    prompt_size, target_size = batch.prompts.shape[1], batch.targets.shape[1]
    tokens = jnp.concatenate([batch.prompts, batch.targets], axis=1)
    plan = method.plan(config.num_layers, target_size)
    active = np.ones((config.num_layers, prompt_size + target_size), bool)
    for segment in plan.segments:
        for layer in range(config.num_layers):
            active[layer, prompt_size + segment.first_step : prompt_size + segment.last_step] = segment.runs(layer)
    positions = jnp.maximum(jnp.arange(tokens.shape[1], dtype=jnp.int32)[None] - batch.padding[:, None], 0)
    ends = decoder.ends_of(config, params)
    h = ends.embed(tokens, positions)
    allowed = causal(jnp.asarray(batch.padding), tokens.shape[1])

    def attend(carry, layer):
        return lambda q, k, v: (attention(q, k, v, allowed, "bskh"), carry)

    turned = decoder.rotation_at(config, positions)
    for layer in range(config.num_layers):
        changed, _ = decoder.run_layers(config, params["layers"], layer, layer + 1, h, turned, attend, None)
        h = jnp.where(jnp.asarray(active[layer])[None, :, None], changed, h)
    chances = jax.nn.log_softmax(ends.logits(h), axis=-1)
    wanted = np.zeros(chances.shape, np.float32)
    for row in range(len(batch.targets)):
        for index in range(int(batch.lengths[row])):
            wanted[row, prompt_size - 1 + index, batch.targets[row, index]] = 1
    return -jnp.sum(chances * wanted)


@pytest.mark.parametrize(("config", "name"), [*((LLAMA, name) for name in METHODS), (OPT, "linear")], ids=lambda value: value if isinstance(value, str) else value.family)
def test_loss_and_gradient_equal_the_masked_ones(config, name):
    batch, method = random_batch(3), METHODS[name]
    params = decoder.init_params(config, 0)
    kept = method.plan(config.num_layers, batch.targets.shape[1] - 1).kept
    # Larger weights, so that what a layer does to a column shows in the loss.
    params = jax.tree.map(lambda leaf: leaf * 5 if leaf.ndim > 1 else leaf, params)
    sliced = jax.jit(jax.value_and_grad(lambda p: target_loss(config, p, batch, kept), has_aux=True))
    masked = jax.jit(jax.value_and_grad(lambda p: masked_loss(p, config, batch, method)))
    (total, tokens), gradient = sliced(params)
    expected, expected_gradient = masked(params)
    assert int(tokens) == batch.lengths.sum()
    np.testing.assert_allclose(total, expected, rtol=1e-5)
    for one, other in zip(jax.tree.leaves(gradient), jax.tree.leaves(expected_gradient), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=2e-4)


def test_methods_differ():
    """The comparison above would also pass if depth did nothing."""
    batch, params = random_batch(3), decoder.init_params(LLAMA, 0)
    params = jax.tree.map(lambda leaf: leaf * 5 if leaf.ndim > 1 else leaf, params)
    losses = [target_loss(LLAMA, params, batch, method.plan(4, 8).kept)[0] for method in METHODS.values()]
    assert len({f"{float(loss):.3f}" for loss in losses}) == len(METHODS)


def test_padding_does_not_matter():
    batch = random_batch(4)
    params = decoder.init_params(LLAMA, 0)
    rng = np.random.default_rng(1)
    hidden = np.arange(7)[None] < batch.padding[:, None]
    after = np.arange(9)[None] >= batch.lengths[:, None]
    other = batch._replace(
        prompts=np.where(hidden, rng.integers(0, 31, hidden.shape), batch.prompts).astype(np.int32),
        targets=np.where(after, rng.integers(0, 31, after.shape), batch.targets).astype(np.int32),
    )
    assert hidden.any()
    assert after.any()
    kept = SkipDecode(4, 2, horizon=8).plan(4, 8).kept
    first, second = (target_loss(LLAMA, params, one, kept)[0] for one in (batch, other))
    np.testing.assert_allclose(first, second, rtol=1e-6)


def test_one_target_token():
    """T = 1: the prompt alone predicts it, no decode step is run."""
    batch = random_batch(3, (7, 1))
    params = decoder.init_params(LLAMA, 0)
    total, tokens = target_loss(LLAMA, params, batch, SkipDecode(4, 2, horizon=8).plan(4, 0).kept)
    assert int(tokens) == 3
    np.testing.assert_allclose(total, target_loss(LLAMA, params, batch, Full().plan(4, 0).kept)[0])


def flops(method, target_size):
    config = dataclasses.replace(LLAMA, num_layers=8, hidden_size=32, head_size=16, ffn_size=96, embed_size=32)
    params = decoder.abstract_params(config)
    kept = method.plan(8, target_size - 1).kept
    batch = random_batch(2, (8, target_size))
    step = jax.jit(jax.grad(lambda p: target_loss(config, p, batch, kept)[0]))
    return step.lower(params).compile().cost_analysis()["flops"]


def test_skipped_columns_cost_nothing():
    """Forward and backward work per target column at 2x is half of that at 1x: two target sizes, same prompt."""
    half = SkipDecode(5, 3, horizon=8, shape="constant")
    assert half.target_speedup(8) == 2
    full_columns = flops(Full(), 25) - flops(Full(), 9)
    half_columns = flops(half, 25) - flops(half, 9)
    # The embedding and the head run at any depth; they are the rest.
    assert 0.45 < half_columns / full_columns < 0.6

"""The loss with static slices is the loss with a depth mask, and costs what the schedule says."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import tiny_config
from tiny_training import LLAMA, OPT, T5, bottom, cross_entropies, predicted, random_batch, stacked, wide_params

from skipjax import decoder
from skipjax.attention import attention, causal
from skipjax.methods import Full, SkipDecode
from skipjax.training.loss import ExitToken, NextToken

METHODS = {
    "full": Full(),
    "linear": SkipDecode(3, 2, horizon=8),
    "short horizon": SkipDecode(2, 2, horizon=4),
    "no warm-up": SkipDecode(3, 1, warmup_layers=0, horizon=6, shape="cosine"),
    "two warm-up layers": SkipDecode(3, 3, warmup_layers=2, horizon=5, shape="step"),
}


@functools.partial(jax.jit, static_argnums=0)
def masked_loss(config, params, tokens, padding, active, wanted, source):
    """Every layer on every column of tokens [B, C], and `where` by active [L, C]; wanted [B, C, V] picks the losses.

    `source` is what an encoder reads: tokens [B, S] and padding [B], or None.

    Here the layers are looped over and `active` is dynamic: nothing of the sliced version is used but the block.
    """

    def loss(params):
        positions = jnp.maximum(jnp.arange(tokens.shape[1], dtype=jnp.int32)[None] - padding[:, None], 0)
        ends = decoder.ends_of(config, params)
        allowed = causal(padding, tokens.shape[1])
        turned = decoder.rotation_at(config, positions)
        bias = decoder.decoder_bias(config, params, jnp.arange(tokens.shape[1], dtype=jnp.int32)[None], tokens.shape[1])
        memory = None if source is None else decoder.encode(config, params, *source)
        recall = decoder.recall_from(config, memory)

        def attend(carry, _layer):
            scaled = config.scale_attention
            return lambda q, k, v: (attention(q, k, v, allowed, "bskh", scaled=scaled, bias=bias), carry)

        def one_layer(h, layer):
            block, runs = layer
            changed, _ = decoder.run_layers(config, [block], 0, 1, h, turned, attend, None, recall=recall)
            return jnp.where(runs[None, :, None], changed, h), None

        h, _ = jax.lax.scan(one_layer, ends.embed(tokens, positions), (params["layers"], active))
        return -jnp.sum(jax.nn.log_softmax(ends.logits(h), axis=-1) * wanted)

    return jax.value_and_grad(loss)(params)


def by_masking(config, params, batch, method):
    prompts, padding, source, target_size = batch.prompts, batch.padding, None, batch.targets.shape[1]
    if config.encoder_layers is not None:
        source, prompts, padding = (prompts, padding), np.full_like(prompts[:, :1], config.start_id), padding * 0
    prompt_size = prompts.shape[1]
    tokens = np.concatenate([prompts, batch.targets], axis=1)
    active = np.ones((config.num_layers, tokens.shape[1]), bool)
    for segment in method.plan(config.num_layers, target_size).segments:
        for layer in range(config.num_layers):
            active[layer, prompt_size + segment.first_step : prompt_size + segment.last_step] = segment.runs(layer)
    wanted = np.zeros((*tokens.shape, config.vocab_size), np.float32)
    for row, length in enumerate(batch.lengths):
        for index in range(length):
            wanted[row, prompt_size - 1 + index, batch.targets[row, index]] = 1
    total, gradient = masked_loss(config, stacked(params), tokens, padding, active, wanted, source)
    return total, decoder.unstack_layers(gradient)


@functools.partial(jax.jit, static_argnums=(0, 3))
def sliced_loss(config, params, batch, method):
    return jax.value_and_grad(lambda params: NextToken(method).loss(config, params, batch), has_aux=True)(params)


@pytest.mark.parametrize(
    ("config", "name"),
    [*((LLAMA, name) for name in METHODS), (OPT, "linear"), (T5, "linear"), (T5, "no warm-up")],
    ids=lambda value: value if isinstance(value, str) else value.family,
)
def test_loss_and_gradient_equal_the_masked_ones(config, name):
    batch, method, params = random_batch(3), METHODS[name], wide_params(config)
    (total, tokens), gradient = sliced_loss(config, params, batch, method)
    expected, expected_gradient = by_masking(config, params, batch, method)
    assert int(tokens) == batch.lengths.sum()
    np.testing.assert_allclose(total, expected, rtol=1e-5)
    for one, other in zip(jax.tree.leaves(gradient), jax.tree.leaves(expected_gradient), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


def test_methods_differ():
    """The comparison above would also pass if depth did nothing. ("two warm-up layers" keeps all three: full depth.)"""
    batch, params = random_batch(3), wide_params(LLAMA)
    losses = {name: float(by_masking(LLAMA, params, batch, method)[0]) for name, method in METHODS.items()}
    assert losses.pop("two warm-up layers") == losses["full"]
    assert len({f"{loss:.3f}" for loss in losses.values()}) == len(METHODS) - 1


@pytest.mark.parametrize("method", [None, METHODS["linear"]], ids=["full", "skipdecode"])
def test_encoder_decoder_loss_by_hand(method):
    batch, params = random_batch(3), wide_params(T5)
    expected = cross_entropies(predicted(T5, params, batch, method), batch)
    (total, tokens), _ = sliced_loss(T5, params, batch, method or Full())
    np.testing.assert_allclose(total, expected.sum(), rtol=1e-5)
    assert int(tokens) == len(expected)


@pytest.mark.parametrize("config", [LLAMA, T5], ids=lambda config: config.family)
def test_loss_at_an_exit_is_that_of_the_model_that_ends_there(config):
    batch, params = random_batch(3), wide_params(config)
    loss = jax.jit(lambda params: ExitToken(2).loss(config, params, batch))
    expected = cross_entropies(predicted(*bottom(config, params, 2), batch), batch)
    for form in (params, stacked(params)):
        total, tokens = loss(form)
        np.testing.assert_allclose(total, expected.sum(), rtol=1e-5)
        assert int(tokens) == len(expected)


@pytest.mark.parametrize("config", [LLAMA, T5], ids=lambda config: config.family)
def test_padding_does_not_matter(config):
    batch, params = random_batch(3), wide_params(config)
    rng = np.random.default_rng(1)
    before = np.arange(7)[None] < batch.padding[:, None]
    after = np.arange(9)[None] >= batch.lengths[:, None]
    assert before.any()
    assert after.any()
    other = batch._replace(
        prompts=np.where(before, rng.integers(0, 31, before.shape), batch.prompts).astype(np.int32),
        targets=np.where(after, rng.integers(0, 31, after.shape), batch.targets).astype(np.int32),
    )
    (first, _), _ = sliced_loss(config, params, batch, METHODS["linear"])
    (second, _), _ = sliced_loss(config, params, other, METHODS["linear"])
    np.testing.assert_allclose(first, second, rtol=1e-6)


def test_one_target_token():
    """T = 1: the prompt alone predicts it, and no decode step is run, whatever the method."""
    batch, params = random_batch(3, (7, 1)), wide_params(LLAMA)
    (total, tokens), _ = sliced_loss(LLAMA, params, batch, SkipDecode(3, 2, horizon=8))
    assert int(tokens) == 3
    np.testing.assert_allclose(total, by_masking(LLAMA, params, batch, Full())[0], rtol=1e-5)


def flops(method, target_size):
    """By XLA's cost analysis of the gradient, at a size where layers outweigh the head."""
    config = tiny_config("llama", 8, vocab_size=31)
    batch = random_batch(2, (8, target_size))
    step = jax.jit(jax.grad(lambda params: NextToken(method).loss(config, params, batch)[0]))
    return step.lower(decoder.abstract_params(config)).cost_analysis()["flops"]


def test_skipped_columns_cost_nothing():
    """Work per target column at 2x is half of that at 1x: from two target sizes after the same prompt."""
    half = SkipDecode(5, 3, horizon=8, shape="constant")
    assert half.target_speedup(8) == 2
    full_columns = flops(Full(), 25) - flops(Full(), 9)
    half_columns = flops(half, 25) - flops(half, 9)
    # Embedding and head run at any depth; they are the rest.
    assert 0.5 < half_columns / full_columns < 0.55

"""Training exits of their own on a frozen model: the targets, its final predictions, and when the two exits agree."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp

from skipjax.config import ModelConfig
from skipjax.decoder import Params, exit_head_of, exit_logits
from skipjax.training.batches import Batch
from skipjax.training.loss import Sums, cross_entropy, number_of_targets, sum_over_real, target_states


def divergence(final: jax.Array, logits: jax.Array, batch: Batch) -> jax.Array:
    """Kullback-Leibler divergence of an exit's predictions from the final ones, sum over the real target tokens.

    Both are float32 logits [B, T, V]; no gradient reaches `final`.
    """
    final, logits = jax.nn.log_softmax(jax.lax.stop_gradient(final)), jax.nn.log_softmax(logits)
    return sum_over_real(jnp.sum(jnp.exp(final) * (final - logits), axis=-1), batch)


def classifier_loss(
    config: ModelConfig, params: Params, batch: Batch, layer: int, h: jax.Array, logits: jax.Array, final: jax.Array
) -> jax.Array:
    """Binary cross-entropy of the exit's classifier against "exit and final layer choose the same token", sum over the
    real target tokens (CALM, arXiv 2207.07061, section 3.5). Only the classifier gets a gradient.

    h is [B, T, D] after `layer` layers, `logits` and `final` are [B, T, V] of the exit and of the last layer.
    """
    head = exit_head_of(config, params, layer)
    assert head is not None
    assert head.classifier is not None
    score = head.classifier(jax.lax.stop_gradient(h))[..., 0].astype(jnp.float32)
    agree = (jnp.argmax(logits, axis=-1) == jnp.argmax(final, axis=-1)).astype(jnp.float32)
    return sum_over_real(jax.nn.softplus(score) - agree * score, batch)


@dataclasses.dataclass(frozen=True)
class HeadsLoss:
    """Mean over the exits of `config.exit_heads`; nothing but their parameters gets a gradient.

    An exit with a norm or an adapter: cross-entropy of the targets plus the divergence from the final predictions
    (self-distillation). One with a classifier: plus `classifier_loss`.
    """

    def loss(self, config: ModelConfig, params: Params, batch: Batch, *, rematerialise: bool = False) -> Sums:
        assert config.exit_heads is not None, "the model must have exits of its own"
        params = {**jax.lax.stop_gradient(params), "exits": params["exits"]}
        states = target_states(config, params, batch, rematerialise=rematerialise)
        final = exit_logits(config, params, states[-1], config.num_layers)
        total = jnp.zeros((), jnp.float32)
        for layer in config.exit_heads.layers:
            # One exit's logits at a time, as in multi-exit training.
            exit_loss = jax.checkpoint(functools.partial(_exit_loss, config, layer))
            total = total + exit_loss(params, batch, states[layer - 1], final)
        return total / len(config.exit_heads.layers), number_of_targets(batch)


def _exit_loss(
    config: ModelConfig, layer: int, params: Params, batch: Batch, h: jax.Array, final: jax.Array
) -> jax.Array:
    assert config.exit_heads is not None
    logits, total = exit_logits(config, params, h, layer), jnp.zeros((), jnp.float32)
    if config.exit_heads.norm or config.exit_heads.adapter_rank:
        total = cross_entropy(logits, batch) + divergence(final, logits, batch)
    if config.exit_heads.classifier:
        total = total + classifier_loss(config, params, batch, layer, h, logits, final)
    return total


@dataclasses.dataclass(frozen=True)
class ClassifierLoss:
    """`classifier_loss` of the exit after `layer` layers alone, for validation."""

    layer: int

    def loss(self, config: ModelConfig, params: Params, batch: Batch, *, rematerialise: bool = False) -> Sums:
        states = target_states(config, params, batch, rematerialise=rematerialise)
        h = states[self.layer - 1]
        logits = exit_logits(config, params, h, self.layer)
        final = exit_logits(config, params, states[-1], config.num_layers)
        return classifier_loss(config, params, batch, self.layer, h, logits, final), number_of_targets(batch)

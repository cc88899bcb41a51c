"""One training step and one evaluation step: pure functions with everything static in one hashable argument."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax

from skipjax.config import ModelConfig
from skipjax.decoder import Params
from skipjax.training.batches import Batch
from skipjax.training.loss import in_dtype, target_loss
from skipjax.training.optimizer import OptimizerSettings, apply_gradient, make_optimizer


@dataclasses.dataclass(frozen=True)
class StepOptions:
    """Everything static of a step: another value, or another batch shape, is another program.

    Attributes:
      config: of the decoder.
      kept: decode steps that run each layer, `method.plan(num_layers, T - 1).kept`.
      dtype: name of the dtype to compute in; parameters and their updates are float32.
      rematerialise: recompute activations in the backward pass.
      accumulate: the batch is run in so many equal parts, one after the other, for one update.
    """

    config: ModelConfig
    kept: tuple[int, ...]
    dtype: str = "float32"
    rematerialise: bool = False
    accumulate: int = 1


@functools.partial(jax.tree_util.register_dataclass, data_fields=["params", "optimizer"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class TrainState:
    """What an update changes: float32 parameters, and the optimizer's state (which counts the updates)."""

    params: Params
    optimizer: Any


def initial_state(params: Params, settings: OptimizerSettings) -> TrainState:
    return TrainState(params, make_optimizer(settings).init(params))


def _loss(params: Params, batch: Batch, options: StepOptions) -> tuple[jax.Array, jax.Array]:
    params = in_dtype(params, options.dtype)
    return target_loss(options.config, params, batch, options.kept, rematerialise=options.rematerialise)


@functools.partial(jax.jit, static_argnums=(2, 3), donate_argnums=(0,))
def train_step(
    state: TrainState, batch: Batch, options: StepOptions, settings: OptimizerSettings
) -> tuple[TrainState, dict[str, jax.Array]]:
    """One update by the mean loss over the batch's target tokens. `state` is donated.

    With `accumulate` parts the sums over the parts are divided by the number of target tokens of the whole batch: the
    update is the one of the whole batch, whatever the lengths in each part.

    Returns:
      the new state; {"loss": mean cross-entropy per target token, "gradient_norm": before clipping} (float32 scalars).
    """
    gradient_of = jax.value_and_grad(_loss, has_aux=True)
    if options.accumulate == 1:
        (total, tokens), gradient = gradient_of(state.params, batch, options)
    else:

        def add_part(sums, part):
            return jax.tree.map(jnp.add, sums, gradient_of(state.params, part, options)), None

        parts = jax.tree.map(lambda leaf: leaf.reshape(options.accumulate, -1, *leaf.shape[1:]), batch)
        zero = jnp.zeros((), jnp.float32)
        sums = ((zero, zero), jax.tree.map(jnp.zeros_like, state.params))
        ((total, tokens), gradient), _ = jax.lax.scan(add_part, sums, parts)
    gradient = jax.tree.map(lambda leaf: leaf / tokens, gradient)
    params, optimizer = apply_gradient(settings, gradient, state.optimizer, state.params)
    return TrainState(params, optimizer), {"loss": total / tokens, "gradient_norm": optax.tree.norm(gradient)}


@functools.partial(jax.jit, static_argnums=(2,))
def loss_step(params: Params, batch: Batch, options: StepOptions) -> tuple[jax.Array, jax.Array]:
    """Summed loss and number of target tokens of a batch (float32 scalars), for evaluation."""
    return _loss(params, batch, options)

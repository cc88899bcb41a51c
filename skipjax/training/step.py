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
from skipjax.training.loss import Objective, Sums, in_dtype
from skipjax.training.optimizer import OptimizerSettings, apply_gradient, make_optimizer


@dataclasses.dataclass(frozen=True)
class StepOptions:
    """Everything static of a step: another value, or another batch shape, is another program.

    Attributes:
      config: of the model.
      objective: what is minimised.
      dtype: name of the dtype to compute in; parameters and their updates are float32.
      rematerialise: recompute activations in the backward pass.
      accumulate: the batch is run in so many equal parts, one after the other, for one update.
    """

    config: ModelConfig
    objective: Objective
    dtype: str = "float32"
    rematerialise: bool = False
    accumulate: int = 1


@functools.partial(jax.tree_util.register_dataclass, data_fields=["params", "optimizer", "frozen"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class TrainState:
    """Between two updates; all arrays of parameters are float32.

    Attributes:
      params: the parts of the parameters that are trained, by name; often all.
      optimizer: the optimizer's state for these (it counts the updates).
      frozen: the other parts, which no gradient is computed for.
    """

    params: Params
    optimizer: Any
    frozen: Params = dataclasses.field(default_factory=dict)

    @property
    def model(self) -> Params:
        """All parameters."""
        return {**self.frozen, **self.params}


def parted(params: Params, trained: tuple[str, ...] | None) -> tuple[Params, Params]:
    """Parameters by name: the parts that are trained (None for all), and the frozen ones."""
    parts = {name: part for name, part in params.items() if trained is None or name in trained}
    return parts, {name: part for name, part in params.items() if name not in parts}


def initial_state(params: Params, settings: OptimizerSettings, trained: tuple[str, ...] | None = None) -> TrainState:
    """The state before the first update; `trained` as in `parted`."""
    parts, frozen = parted(params, trained)
    return TrainState(parts, make_optimizer(settings).init(parts), frozen)


def _loss(params: Params, batch: Batch, options: StepOptions) -> Sums:
    params = in_dtype(params, options.dtype)
    return options.objective.loss(options.config, params, batch, rematerialise=options.rematerialise)


@functools.partial(jax.jit, static_argnums=(2, 3), donate_argnums=(0,))
def train_step(
    state: TrainState, batch: Batch, options: StepOptions, settings: OptimizerSettings
) -> tuple[TrainState, dict[str, jax.Array]]:
    """One update by the mean loss over the batch's target tokens. `state` is donated.

    With `accumulate` parts the sums over the parts are divided by the number of target tokens of the whole batch: the
    update is the one of the whole batch, whatever the lengths in each part.

    Returns:
      the new state; {"loss": mean per target token, "gradient_norm": before clipping} (float32 scalars).
    """

    def loss(trained, part):
        return _loss({**state.frozen, **trained}, part, options)

    gradient_of = jax.value_and_grad(loss, has_aux=True)
    if options.accumulate == 1:
        (total, tokens), gradient = gradient_of(state.params, batch)
    else:

        def add_part(sums, part):
            return jax.tree.map(jnp.add, sums, gradient_of(state.params, part)), None

        parts = jax.tree.map(lambda leaf: leaf.reshape(options.accumulate, -1, *leaf.shape[1:]), batch)
        zero = jnp.zeros((), jnp.float32)
        sums = ((zero, zero), jax.tree.map(jnp.zeros_like, state.params))
        ((total, tokens), gradient), _ = jax.lax.scan(add_part, sums, parts)
    gradient = jax.tree.map(lambda leaf: leaf / tokens, gradient)
    params, optimizer = apply_gradient(settings, gradient, state.optimizer, state.params)
    results = {"loss": total / tokens, "gradient_norm": optax.tree.norm(gradient)}
    return TrainState(params, optimizer, state.frozen), results


@functools.partial(jax.jit, static_argnums=(2,))
def loss_step(params: Params, batch: Batch, options: StepOptions) -> Sums:
    """Summed loss and number of target tokens of a batch (float32 scalars), for evaluation. `params` are all parts."""
    return _loss(params, batch, options)

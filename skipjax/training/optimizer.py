"""Optimizers and learning-rate schedules, from optax's parts."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from skipjax import checks

SCHEDULES = ("cosine", "linear", "constant")
OPTIMIZERS = ("adamw", "adafactor")
NOT_DECAYED = ("scale", "bias")  # parameters of norms, and biases


@dataclasses.dataclass(frozen=True)
class OptimizerSettings:
    """What the optimizer does in each step. Static (hashable).

    Attributes:
      learning_rate: the highest, reached at the end of the warm-up.
      steps: updates in the whole run; the decay ends there.
      name: "adamw" or "adafactor" (factored second moments, no first moment, and the learning rate taken as it is).
      warmup_steps: updates over which the learning rate rises from 0.
      schedule: how it falls afterwards: "cosine" or "linear" to 0, or "constant".
      clip: largest global norm of the gradient; 0 turns clipping off.
      weight_decay: decoupled, times the learning rate; not on norms and biases.
    """

    learning_rate: float
    steps: int
    name: Literal["adamw", "adafactor"] = "adamw"
    warmup_steps: int = 0
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    clip: float = 1.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        checks.real("learning_rate", self.learning_rate, 0.0, above=True)
        checks.integer("steps", self.steps, 1)
        checks.choice("optimizer", self.name, OPTIMIZERS)
        checks.integer("warmup_steps", self.warmup_steps, 0, self.steps)
        checks.choice("schedule", self.schedule, SCHEDULES)
        checks.real("clip", self.clip, 0.0)
        checks.real("weight_decay", self.weight_decay, 0.0)


def learning_rate_at(settings: OptimizerSettings, step: jax.Array | int) -> jax.Array:
    """Learning rate (float32) of update number `step`, counted from 0. No update has rate 0."""
    step = jnp.asarray(step).astype(jnp.float32)
    rising = jnp.minimum((step + 1) / max(settings.warmup_steps, 1), 1.0)
    progress = jnp.clip((step - settings.warmup_steps) / max(settings.steps - settings.warmup_steps, 1), 0.0, 1.0)
    falling = {
        "cosine": lambda: (1 + jnp.cos(math.pi * progress)) / 2,
        "linear": lambda: 1 - progress,
        "constant": lambda: jnp.ones_like(progress),
    }[settings.schedule]()
    return settings.learning_rate * rising * falling


def decayed(params: Any) -> Any:
    """True for each parameter that weight decay applies to: by name, since stacked layers give norms a second axis."""
    return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key not in NOT_DECAYED, params)


@functools.cache
def make_optimizer(settings: OptimizerSettings) -> optax.GradientTransformation:
    """Clip, precondition, decay, scale. The same object for equal settings."""
    parts = [optax.clip_by_global_norm(settings.clip)] if settings.clip else []
    if settings.name == "adamw":
        parts.append(optax.scale_by_adam())
    else:
        parts += [optax.scale_by_factored_rms(), optax.clip_by_block_rms(1.0)]
    if settings.weight_decay:
        parts.append(optax.add_decayed_weights(settings.weight_decay, mask=decayed))
    parts.append(optax.scale_by_learning_rate(functools.partial(learning_rate_at, settings)))
    return optax.chain(*parts)


def apply_gradient(settings: OptimizerSettings, gradient: Any, state: Any, params: Any) -> tuple[Any, Any]:
    """One update: (new parameters, new optimizer state)."""
    # optax raises floats to the power of its int32 count, which strict promotion would refuse.
    with jax.numpy_dtype_promotion("standard"):
        updates, state = make_optimizer(settings).update(gradient, state, params)
    return optax.apply_updates(params, updates), state

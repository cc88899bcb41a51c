"""FREE's training loss: cross-entropy at two exits, and layer-wise distillation into the shallow layers.

Source: FREE (arXiv 2310.05424), section 3, and its official code where the paper leaves something open.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from skipjax import checks
from skipjax.config import ModelConfig
from skipjax.decoder import Params, ends_of, exit_logits
from skipjax.training.batches import Batch
from skipjax.training.loss import Sums, cross_entropy, number_of_targets, real_targets, target_states

DISTILLATIONS = ("dyna", "unif", "last", "none")

# (L, L_S) -> teachers of a published model that do not follow the formula.
PUBLISHED_TEACHERS = {(24, 10): (2, 5, 7, 10, 12, 15, 17, 19, 21, 23)}


def teacher_layers(num_layers: int, shallow_layers: int) -> tuple[int, ...]:
    """For each shallow layer the deep layer that teaches it, counted from 0: evenly spread, the last one last.

    ceil((k + 1) L / L_S) - 1 for k = 0..L_S - 1, which is what the official code lists for its models but L_S = 10 of
    L = 24, where its list is used. Worked: L = 12, L_S = 3 gives 3, 7, 11.
    """
    checks.integer("shallow_layers", shallow_layers, 1, num_layers)
    by_formula = tuple(-(-(k + 1) * num_layers // shallow_layers) - 1 for k in range(shallow_layers))
    return PUBLISHED_TEACHERS.get((num_layers, shallow_layers), by_formula)


def dynamic_choices(distances: jax.Array) -> jax.Array:
    """For each teacher the student that it teaches ("kd-dyna").

    From the last teacher to the first, each chooses the nearest student below the choice of the teacher after it; if
    there is none below, the same student. Worked: rows (4, 1, 0) for three teachers give the choices 0, 1, 2.

    Args:
      distances: float32 [K, K], distances[k, j] between teacher k and student j.
    Returns:
      int32 [K].
    """
    students = jnp.arange(distances.shape[1], dtype=jnp.int32)

    def choose(ceiling, row):
        nearest = jnp.argmin(jnp.where(students < ceiling, row, jnp.inf)).astype(jnp.int32)
        choice = jnp.where(ceiling > 0, nearest, ceiling)
        return choice, choice

    return jax.lax.scan(choose, jnp.asarray(len(students), jnp.int32), distances, reverse=True)[1]


def pair_distances(students: jax.Array, teachers: jax.Array, real: jax.Array) -> jax.Array:
    """float32 [K, K]: mean squared error between teacher k and student j over real positions; shapes as in
    `distillation`."""

    def to_students(teacher):
        squared = jnp.mean(jnp.square(students - teacher[None]), axis=-1)
        return jnp.sum(jnp.where(real[None], squared, 0.0), axis=(1, 2))

    return jax.lax.map(to_students, teachers) / jnp.maximum(jnp.sum(real, dtype=jnp.float32), 1.0)


def distillation(students: jax.Array, teachers: jax.Array, real: jax.Array, kind: str) -> tuple[jax.Array, jax.Array]:
    """Squared error between students and their teachers: mean over D and over the pairs, sum over real positions.

    No gradient reaches the teachers or goes through the choice of pairs. The official code counts padding as well.

    Args:
      students: final-normed states after layers 1..K, [K, B, T, D].
      teachers: final-normed states after the `teacher_layers`, [K, B, T, D].
      real: bool [B, T].
      kind: static. "last": last with last; "unif": teacher k with student k; "dyna": teacher k with its
        `dynamic_choices` by the mean over all real positions; "none": 0.
    Returns:
      the sum, float32 scalar; the student of each teacher, int32 [number of pairs].
    """
    students, teachers = students.astype(jnp.float32), jax.lax.stop_gradient(teachers.astype(jnp.float32))
    choices = jnp.arange(len(students), dtype=jnp.int32)
    if kind == "none":
        return jnp.zeros((), jnp.float32), choices[:0]
    if kind == "last":
        teachers, choices = teachers[-1:], choices[-1:]
    if kind == "dyna":
        choices = dynamic_choices(pair_distances(jax.lax.stop_gradient(students), teachers, real))
    squared = jnp.mean(jnp.square(students[choices] - teachers), axis=(0, -1))
    return jnp.sum(jnp.where(real, squared, 0.0)), choices


@dataclasses.dataclass(frozen=True)
class FreeLoss:
    """(L_S CE_shallow + L CE_deep) / (L_S + L) + weight * distillation (FREE, section 3).

    Both exits go through the final norm and the LM head. Means are over target tokens: neither padding nor the columns
    of a decoder-only model's prompt count, also in the distillation, where the official code counts padding. A batch
    run in parts gives the loss of the whole but for "dyna", whose pairs are chosen in each part.

    Attributes:
      shallow_layers: L_S.
      distillation: see the function of that name.
      weight: of the distillation; 0.5 as published.
    """

    shallow_layers: int
    distillation: str = "dyna"
    weight: float = 0.5

    def __post_init__(self) -> None:
        checks.integer("shallow_layers", self.shallow_layers, 1)
        checks.choice("distillation", self.distillation, DISTILLATIONS)
        checks.real("distillation_weight", self.weight, 0.0)

    def loss(self, config: ModelConfig, params: Params, batch: Batch, *, rematerialise: bool = False) -> Sums:
        shallow, deep = self.shallow_layers, config.num_layers
        states = target_states(config, params, batch, rematerialise=rematerialise)
        at_shallow, at_deep = (
            cross_entropy(exit_logits(config, params, states[layer - 1], layer), batch) for layer in (shallow, deep)
        )
        total = (shallow * at_shallow + deep * at_deep) / (shallow + deep)
        if self.distillation != "none":
            normed = ends_of(config, params).normed
            students = normed(states[:shallow])
            teachers = normed(jax.lax.stop_gradient(states[np.array(teacher_layers(deep, shallow))]))
            total = total + self.weight * distillation(students, teachers, real_targets(batch), self.distillation)[0]
        return total, number_of_targets(batch)

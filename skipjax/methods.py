"""Decoding methods: small frozen dataclasses that turn a length into a `Plan`; hashable, so static under `jax.jit`."""

from __future__ import annotations

import dataclasses
import math
from typing import Protocol

from skipjax import checks
from skipjax.plan import Plan, plan_from_depths
from skipjax.schedules import SHAPES, depth_at


class Method(Protocol):
    """What generation needs to know of a method whose depths are fixed before it starts."""

    def check(self, num_layers: int) -> None:
        """Raises ValueError if a decoder of `num_layers` layers cannot run this method."""

    def resolve(self, max_new_tokens: int) -> Method:
        """The method with every length filled in: it no longer depends on the token budget."""

    def plan(self, num_layers: int, steps: int) -> Plan:
        """The plan of `steps` decode steps. Needs a resolved method."""

    def target_speedup(self, num_layers: int) -> float:
        """Layers of the full model over the depth the method aims at: the midpoint of a schedule's two depths."""


def checked(method: Method | None, num_layers: int) -> Method:
    """The method, `Full()` for None. Raises ValueError if it is none, or not one for `num_layers` layers."""
    if method is None:
        return Full()
    if isinstance(method, type) or not hasattr(method, "plan"):
        raise ValueError(f"method must be a decoding method such as Full() or SkipDecode(...), got {method!r}")
    method.check(num_layers)
    return method


@dataclasses.dataclass(frozen=True)
class Full:
    """Every layer for every token: ordinary decoding, the yardstick of all others."""

    def check(self, num_layers: int) -> None:
        pass

    def resolve(self, max_new_tokens: int) -> Full:
        return self

    def plan(self, num_layers: int, steps: int) -> Plan:
        return plan_from_depths([num_layers] * steps, num_layers, 0)

    def target_speedup(self, num_layers: int) -> float:
        return 1.0


@dataclasses.dataclass(frozen=True)
class SkipDecode:
    """One depth per decode step for the whole batch, falling as generation goes on (arXiv 2307.02628, section 3).

    A token of depth d runs the bottom `warmup_layers` and the top d - warmup_layers layers; the prompt runs all.

    Attributes:
      max_depth: most layers of a decode step (warm-up layers counted in), at most the model's number of layers.
      min_depth: fewest layers; at least warmup_layers + 1, since the last layer always runs.
      warmup_layers: bottom layers that always run; 1 in every published configuration.
      horizon: decode steps over which the depth falls; None follows `max_new_tokens`, so a new budget is a new program.
      shape: how it falls from max_depth at step 0 to min_depth from step `horizon` on, a key of
        `skipjax.schedules.SHAPES`: "linear" (the paper's), "cosine", "step"; or "constant", the midpoint of the two.
    """

    max_depth: int
    min_depth: int
    warmup_layers: int = 1
    horizon: int | None = None
    shape: str = "linear"

    def __post_init__(self) -> None:
        checks.integer("warmup_layers", self.warmup_layers, 0)
        checks.integer("min_depth", self.min_depth, self.warmup_layers + 1)
        checks.integer("max_depth", self.max_depth, self.min_depth)
        if self.horizon is not None:
            checks.integer("horizon", self.horizon, 1)
        checks.choice("shape", self.shape, SHAPES)

    @classmethod
    def for_speedup(
        cls,
        speedup: float,
        *,
        num_layers: int,
        warmup_layers: int = 1,
        horizon: int | None = None,
        shape: str = "linear",
    ) -> SkipDecode:
        """The depths for a target speed-up of `speedup`, by the rule behind all published configurations.

        The midpoint of the depths is num_layers / speedup and max_depth / min_depth falls from 2 at 2x to 1.5 at 5x;
        max_depth is rounded up, min_depth to the nearest. 24 layers: 2x is 16/8, 5x is 6/4; 32 layers: 22/11, 14/8
        (3x), 10/6 (4x), 8/5. A speed-up of 1 is full depth.
        Raises ValueError if fewer than warmup_layers + 1 layers would be left.
        """
        checks.integer("num_layers", num_layers, 2)
        checks.integer("warmup_layers", warmup_layers, 0, num_layers - 1)
        checks.real("speedup", speedup, 1.0)
        midpoint = num_layers / speedup
        ratio = min(max(2 - (speedup - 2) / 6, 1.5), 2.0)
        max_depth = min(math.ceil(2 * midpoint * ratio / (1 + ratio) - 1e-9), num_layers)
        min_depth = min(math.floor(2 * midpoint - 2 * midpoint * ratio / (1 + ratio) + 0.5), max_depth)
        if max_depth == num_layers:  # a mild speed-up: the rule's max_depth does not fit, the midpoint still holds
            min_depth = min(math.floor(2 * midpoint - num_layers + 0.5), num_layers)
        if min_depth < warmup_layers + 1:
            fewest = warmup_layers + 1
            raise ValueError(
                f"speedup {speedup:g} leaves {min_depth} of {num_layers} layers at the end, but {fewest} always run"
                f" (warm-up and last): ask for a smaller speedup"
            )
        return cls(max_depth, min_depth, warmup_layers, horizon, shape)

    def check(self, num_layers: int) -> None:
        if self.max_depth > num_layers:
            raise ValueError(f"max_depth must be at most the model's {num_layers} layers, got {self.max_depth}")

    def resolve(self, max_new_tokens: int) -> SkipDecode:
        return self if self.horizon is not None else dataclasses.replace(self, horizon=max_new_tokens)

    def plan(self, num_layers: int, steps: int) -> Plan:
        assert self.horizon is not None, "resolve the method first"
        depths = [depth_at(s, self.max_depth, self.min_depth, self.horizon, self.shape) for s in range(steps)]
        return plan_from_depths(depths, num_layers, self.warmup_layers)

    def target_speedup(self, num_layers: int) -> float:
        return num_layers / ((self.max_depth + self.min_depth) / 2)

"""Which depth schedules a run trains: one, or one drawn per batch from a range of speed-ups."""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np

from skipjax import checks
from skipjax.methods import Full, SkipDecode
from skipjax.recorded import Recorded


@dataclasses.dataclass(frozen=True)
class Depths:
    """The schedules of a run.

    Attributes:
      methods: resolved methods; where there are several, each batch draws one.
      recorded: what the checkpoint will say its weights were trained for.
    """

    methods: tuple[Full | SkipDecode, ...]
    recorded: Recorded

    def draw(self, seed: int, step: int) -> Full | SkipDecode:
        """The method of update number `step`: a function of seed and step alone, so that runs can be resumed."""
        if len(self.methods) == 1:
            return self.methods[0]
        # A third number keeps these draws apart from the shuffling of epochs, which uses (seed, epoch).
        return self.methods[int(np.random.default_rng([seed, step, 1]).integers(len(self.methods)))]

    def validated(self, num_layers: int) -> dict[str, Full | SkipDecode]:
        """The methods to validate, by label: full depth, and each schedule that is not full depth."""
        found: dict[str, Full | SkipDecode] = {"full": Full()}
        for method in self.methods:
            if method.target_speedup(num_layers) > 1:
                found[speedup_label(method.target_speedup(num_layers))] = method
        return found


def speedup_label(speedup: float) -> str:
    return f"{speedup:.3g}x"


def full_depth() -> Depths:
    """Every layer for every token: ordinary fine-tuning."""
    return Depths((Full(),), Recorded(Full()))


def check_depth_flags(
    speedup: float | None, max_depth: int | None, min_depth: int | None, speedup_range: tuple[float, float] | None
) -> None:
    """Raises ValueError unless the depths are given in exactly one way."""
    by_depth = max_depth is not None or min_depth is not None
    if (speedup is not None) + by_depth + (speedup_range is not None) != 1:
        raise ValueError("exactly one of --speedup, --max-depth with --min-depth, and --speedup-range must be given")
    if by_depth and (max_depth is None or min_depth is None):
        missing = "--max-depth" if max_depth is None else "--min-depth"
        raise ValueError(f"--max-depth and --min-depth must be given together, {missing} is missing")


def skipdecode_depths(
    num_layers: int,
    *,
    speedup: float | None = None,
    max_depth: int | None = None,
    min_depth: int | None = None,
    speedup_range: tuple[float, float] | None = None,
    warmup_layers: int = 1,
    horizon: int,
    shape: str = "linear",
) -> Depths:
    """The schedule for one speed-up or one pair of depths, or those of a range of speed-ups.

    A range becomes the schedules of its two ends and of the whole numbers between them, all with the same warm-up
    layers, horizon and shape: 1 to 3.5 trains 1x, 2x, 3x and 3.5x. Each is a compiled program per batch shape. The
    checkpoint records 2x as its own method where the range holds it, else the highest.
    Raises ValueError for depths the model cannot have.
    """
    check_depth_flags(speedup, max_depth, min_depth, speedup_range)
    for_speedup = functools.partial(
        SkipDecode.for_speedup, num_layers=num_layers, warmup_layers=warmup_layers, horizon=horizon, shape=shape
    )
    if speedup_range is not None:
        low = checks.real("speedup_range", speedup_range[0], 1.0)
        high = checks.real("speedup_range", speedup_range[1], low, above=True)
        between = range(math.floor(low) + 1, math.ceil(high))
        methods = tuple(dict.fromkeys(for_speedup(one) for one in (low, *between, high)))
        return Depths(methods, Recorded(for_speedup(2.0 if low <= 2 <= high else high), (low, high)))
    if speedup is not None:
        method = for_speedup(speedup)
    else:
        assert max_depth is not None
        assert min_depth is not None
        method = SkipDecode(max_depth, min_depth, warmup_layers, horizon, shape)
    method.check(num_layers)
    return Depths((method,), Recorded(method))

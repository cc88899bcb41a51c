"""Depth schedules: how SkipDecode's depth falls from the first decode step to the horizon."""

from __future__ import annotations

import math
from collections.abc import Callable

# Fraction of the way from max_depth to min_depth, for progress s/T in [0, 1]; none decreases, so depth never rises.
SHAPES: dict[str, Callable[[float], float]] = {
    "linear": lambda progress: progress,  # SkipDecode, section 3
    "cosine": lambda progress: (1 - math.cos(math.pi * progress)) / 2,
    "step": lambda progress: 0.0 if progress < 0.5 else 1.0,
    "constant": lambda progress: 0.5,
}


def depth_at(step: int, max_depth: int, min_depth: int, horizon: int, shape: str) -> int:
    """Depth of decode step `step`: round_half_up(max - (max - min) * shape(s / T)) within [min, max], min from T on.

    The shape "constant" stays at the midpoint of the two depths. Source: SkipDecode (arXiv 2307.02628), section 3.
    Worked: max 6, min 3, T 6, linear: steps 0..7 have depths 6, 6, 5, 5, 4, 4, 3, 3.
    """
    progress = min(step / horizon, 1.0)
    exact = max_depth - (max_depth - min_depth) * SHAPES[shape](progress)
    return min(max(math.floor(exact + 0.5), min_depth), max_depth)

"""What a run trains: one objective, or one drawn per update, and what is recorded of it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from skipjax import checks
from skipjax.config import ModelConfig
from skipjax.methods import Free, Full, SkipDecode
from skipjax.recorded import Recorded
from skipjax.training.free_loss import FreeLoss
from skipjax.training.heads_loss import ClassifierLoss, HeadsLoss
from skipjax.training.loss import ExitToken, NextToken, Objective
from skipjax.training.multi_exit_loss import MultiExitLoss

FULL = "full"  # label of the loss at full depth


@dataclasses.dataclass(frozen=True)
class Curriculum:
    """The objectives of a run.

    Attributes:
      objectives: where there are several, each update draws one.
      speedups: the target speed-up of each, by which metrics tell drawn objectives apart.
      recorded: what the checkpoint will say its weights were trained for.
      validated: the losses to validate, by label.
      rated: labels of `validated` -> weights that make the one loss by which checkpoints are compared.
      settings: as JSON, what a resumed run must have the same besides `recorded`.
      trained: the parts of the parameters that are trained, by name; None for all.
    """

    objectives: tuple[Objective, ...]
    speedups: tuple[float, ...]
    recorded: Recorded
    validated: Mapping[str, Objective]
    rated: Mapping[str, float]
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    trained: tuple[str, ...] | None = None

    def draw(self, seed: int, step: int) -> tuple[Objective, float]:
        """The objective of update number `step` and its target speed-up: a function of seed and step alone, so that
        runs can be resumed."""
        index = 0
        if len(self.objectives) > 1:
            # A third number keeps these draws apart from the shuffling of epochs, which uses (seed, epoch).
            index = int(np.random.default_rng([seed, step, 1]).integers(len(self.objectives)))
        return self.objectives[index], self.speedups[index]


def speedup_label(speedup: float) -> str:
    return f"{speedup:.3g}x"


def exit_label(layer: int) -> str:
    return f"exit {layer}"


def full_depth() -> Curriculum:
    """Every layer for every token: ordinary fine-tuning."""
    return _by_depth((Full(),), 1, Recorded(Full()))


def _by_depth(methods: tuple[Full | SkipDecode, ...], num_layers: int, recorded: Recorded) -> Curriculum:
    """Validated are full depth and each schedule that is not full depth; those trained count alike."""
    speedups = tuple(method.target_speedup(num_layers) for method in methods)
    validated: dict[str, Objective] = {FULL: NextToken(Full())}
    rated: dict[str, float] = {}
    for method, speedup in zip(methods, speedups, strict=True):
        label = FULL
        if speedup > 1:
            label = speedup_label(speedup)
            validated[label] = NextToken(method)
        rated[label] = rated.get(label, 0.0) + 1 / len(methods)
    return Curriculum(tuple(NextToken(method) for method in methods), speedups, recorded, validated, rated)


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


def skipdecode(
    config: ModelConfig,
    *,
    speedup: float | None = None,
    max_depth: int | None = None,
    min_depth: int | None = None,
    speedup_range: tuple[float, float] | None = None,
    warmup_layers: int = 1,
    horizon: int,
    shape: str = "linear",
    max_segments: int | None = None,
) -> Curriculum:
    """The schedule for one speed-up or one pair of depths, or those of a range of speed-ups.

    A range becomes the schedules of its two ends and of the whole numbers between them, all with the same warm-up
    layers, horizon, shape and segments: 1 to 3.5 trains 1x, 2x, 3x and 3.5x. Each is a compiled program per batch
    shape. The checkpoint records 2x as its own method where the range holds it, else the highest.
    Raises ValueError for depths the model cannot have.
    """
    check_depth_flags(speedup, max_depth, min_depth, speedup_range)
    num_layers = config.num_layers
    alike: dict[str, Any] = {
        "warmup_layers": warmup_layers,
        "horizon": horizon,
        "shape": shape,
        "max_segments": max_segments,
    }

    def for_speedup(target: float) -> SkipDecode:
        return SkipDecode.for_speedup(target, num_layers=num_layers, **alike)

    if speedup_range is not None:
        low = checks.real("speedup_range", speedup_range[0], 1.0)
        high = checks.real("speedup_range", speedup_range[1], low, above=True)
        between = range(math.floor(low) + 1, math.ceil(high))
        methods = tuple(dict.fromkeys(for_speedup(one) for one in (low, *between, high)))
        recorded = Recorded(for_speedup(2.0 if low <= 2 <= high else high), (low, high))
        return _by_depth(methods, num_layers, recorded)
    if speedup is not None:
        method = for_speedup(speedup)
    else:
        assert max_depth is not None
        assert min_depth is not None
        method = SkipDecode(max_depth, min_depth, **alike)
    method.check(config)
    return _by_depth((method,), num_layers, Recorded(method))


def free(
    config: ModelConfig,
    *,
    shallow_layers: int,
    distillation: str = "dyna",
    distillation_weight: float = 0.5,
) -> Curriculum:
    """FREE's shallow-deep module with layer-wise distillation (arXiv 2310.05424, section 3).

    Validated are both exits; checkpoints are compared by the weighted cross-entropy, without distillation.
    Raises ValueError for shallow layers that the model does not have, or an unknown distillation.
    """
    checks.integer("shallow_layers", shallow_layers, 1, config.num_layers - 1)
    objective = FreeLoss(shallow_layers, distillation, distillation_weight)
    whole = shallow_layers + config.num_layers
    label = exit_label(shallow_layers)
    return Curriculum(
        (objective,),
        (1.0,),
        Recorded(Free(shallow_layers=shallow_layers), exit_layers=(shallow_layers,)),
        {FULL: NextToken(Full()), label: ExitToken(shallow_layers)},
        {FULL: config.num_layers / whole, label: shallow_layers / whole},
        {"distillation": distillation, "distillation_weight": distillation_weight},
    )


def multi_exit(config: ModelConfig) -> Curriculum:
    """A loss after every layer, weighted by its depth.

    Validated are full depth and the exits after a fourth, a half and three fourths of the layers, weighted alike.
    """
    num_layers = config.num_layers
    layers = sorted({num_layers * quarter // 4 for quarter in (1, 2, 3)} - {0})
    validated: dict[str, Objective] = {FULL: NextToken(Full())}
    validated |= {exit_label(layer): ExitToken(layer) for layer in layers}
    whole = sum(layers) + num_layers
    rated = {FULL: num_layers / whole, **{exit_label(layer): layer / whole for layer in layers}}
    recorded = Recorded(Full(), exit_layers=tuple(range(1, num_layers)))
    return Curriculum((MultiExitLoss(),), (1.0,), recorded, validated, rated)


def heads(config: ModelConfig) -> Curriculum:
    """The exits of `config.exit_heads`, all else frozen. Validated are full depth, which stays as it is, each exit and
    each classifier; the exits and classifiers count alike."""
    assert config.exit_heads is not None
    layers = config.exit_heads.layers
    trained: dict[str, Objective] = {exit_label(layer): ExitToken(layer) for layer in layers}
    if config.exit_heads.classifier:
        trained |= {f"classifier {layer}": ClassifierLoss(layer) for layer in layers}
    return Curriculum(
        (HeadsLoss(),),
        (1.0,),
        Recorded(Full(), exit_layers=layers),
        {FULL: NextToken(Full()), **trained},
        {label: 1 / len(trained) for label in trained},
        trained=("exits",),
    )

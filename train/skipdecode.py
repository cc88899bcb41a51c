"""Fine-tuning for SkipDecode: each layer sees the tokens it will see when decoding.

skipjax train skipdecode --speedup 2 --model M --data train.csv --prompt-template "{mr} ->" --target-column ref \
    --steps 1000 --batch-size 16 --learning-rate 3e-4 --out DIR
"""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from skipjax.flag_groups import with_flags

from . import flags


@with_flags(max_shapes=None)
def skipdecode(
    run: flags.RunFlags,
    speedup: Annotated[float | None, typer.Option(help="Target speed-up, which sets the depths.")] = None,
    max_depth: Annotated[int | None, typer.Option(help="Layers of the first decode step.")] = None,
    min_depth: Annotated[int | None, typer.Option(help="Layers from the horizon on.")] = None,
    speedup_range: Annotated[
        tuple[float, float] | None, typer.Option(help="Lowest and highest speed-up: each batch draws its schedule.")
    ] = None,
    warmup_layers: Annotated[int, typer.Option(help="Bottom layers that always run.")] = 1,
    horizon: Annotated[
        int | None, typer.Option(help="Decode steps over which the depth falls.", show_default="longest target")
    ] = None,
    shape: Annotated[str, typer.Option(help="How the depth falls: linear, cosine, step or constant.")] = "linear",
    max_segments: Annotated[
        int | None,
        typer.Option(help="At most so many different depths, which compiles faster.", show_default="all"),
    ] = None,
) -> None:
    """Fine-tune for a SkipDecode schedule, or several.

    With --speedup-range each batch draws one schedule of the range, so that one checkpoint serves all of them.
    Each batch shape is compiled once per schedule: --max-shapes is 4 with --speedup-range, else 8.
    """
    from skipjax import training

    from .build import start

    training.check_depth_flags(speedup, max_depth, min_depth, speedup_range)
    if run.max_shapes is None:
        run = dataclasses.replace(run, max_shapes=8 if speedup_range is None else 4)
    start(
        run,
        lambda config, longest: training.skipdecode(
            config,
            speedup=speedup,
            max_depth=max_depth,
            min_depth=min_depth,
            speedup_range=speedup_range,
            warmup_layers=warmup_layers,
            horizon=longest if horizon is None else horizon,
            shape=shape,
            max_segments=max_segments,
        ),
    )

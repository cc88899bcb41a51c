"""Fine-tuning for SkipDecode: each layer sees the tokens it will see when decoding.

skipjax train skipdecode --speedup 2 --model M --data train.csv --prompt-template "{mr} ->" --target-column ref \
    --steps 1000 --batch-size 16 --learning-rate 3e-4 --out DIR
"""

from __future__ import annotations

from typing import Annotated

import typer

from . import flags


def skipdecode(
    data: flags.Data,
    prompt_template: flags.PromptTemplate,
    target_column: flags.TargetColumn,
    steps: flags.Steps,
    batch_size: flags.BatchSize,
    learning_rate: flags.LearningRate,
    out: flags.Out,
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
    model: flags.Model = None,
    init: flags.Init = None,
    tokenizer: flags.TokenizerFiles = None,
    split: flags.Split = "train",
    limit: flags.Limit = None,
    max_prompt_tokens: flags.MaxPromptTokens = None,
    max_target_tokens: flags.MaxTargetTokens = None,
    eval_data: flags.EvalData = None,
    eval_every: flags.EvalEvery = 500,
    eval_limit: flags.EvalLimit = 512,
    accumulate: flags.Accumulate = 1,
    optimizer: flags.Optimizer = "adamw",
    warmup_steps: flags.WarmupSteps = 0,
    schedule: flags.Schedule = "cosine",
    clip: flags.Clip = 1.0,
    weight_decay: flags.WeightDecay = 0.0,
    dtype: flags.Dtype = "float32",
    rematerialise: flags.Rematerialise = False,
    max_shapes: flags.MaxShapes = None,
    seed: flags.Seed = 0,
    save_every: flags.SaveEvery = 500,
    log_every: flags.LogEvery = 10,
    keep: flags.Keep = 2,
    resume: flags.Resume = False,
) -> None:
    """Fine-tune for a SkipDecode schedule, or several.

    With --speedup-range each batch draws one schedule of the range, so that one checkpoint serves all of them.
    """
    given = dict(locals())
    from skipjax import training

    from .build import start

    training.check_depth_flags(speedup, max_depth, min_depth, speedup_range)
    # Each shape is compiled once per schedule.
    given["max_shapes"] = (8 if speedup_range is None else 4) if max_shapes is None else max_shapes
    start(
        given,
        lambda config, longest: training.skipdecode_depths(
            config.num_layers,
            speedup=speedup,
            max_depth=max_depth,
            min_depth=min_depth,
            speedup_range=speedup_range,
            warmup_layers=warmup_layers,
            horizon=longest if horizon is None else horizon,
            shape=shape,
        ),
    )

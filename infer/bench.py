"""Times decoding methods against full depth, on a model or on random weights of a published shape.

skipjax bench --shape opt-125m --speedup 2,4 --batch-size 1,8
skipjax bench --shape t5-large --method free --shallow-layers 6 --threshold -1,1
skipjax bench --model M --speedup 2 --json
"""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from skipjax.flag_groups import with_flags
from skipjax.flags import MethodFlags, ModelFlags

SPEEDUPS = ["2,4"]


@with_flags()
def bench(
    *,
    model: ModelFlags,
    shape: Annotated[
        str | None,
        typer.Option(
            help="Instead of --model, random weights: smollm2-135m, opt-125m, opt-1.3b, llama-3.2-1b, t5-small, "
            "t5-large, t5-3b or flan-t5-base.",
            show_default=False,
        ),
    ] = None,
    methods: MethodFlags,
    batch_size: Annotated[
        list[str] | None, typer.Option(help="Batch sizes: 1,8, or the flag several times.", show_default="1,8")
    ] = None,
    prompt_length: Annotated[int, typer.Option(help="Tokens of each prompt, or source.")] = 64,
    max_new_tokens: Annotated[int, typer.Option(help="Tokens to generate, all of them.")] = 64,
    repeats: Annotated[int, typer.Option(help="Timed runs of each setting.")] = 5,
    json_output: Annotated[bool, typer.Option("--json", help="Print a JSON list instead of a table.")] = False,
) -> None:
    """Time decoding methods against full depth.

    Full depth is always run as the yardstick. Without flags of a method, and for skipdecode without depths, the target
    speed-ups are 2 and 4. Prompts are random tokens, of which only a trained model can be sure: with --shape, a
    --threshold of -1 lets every token leave and 1 none.
    """
    import json

    from skipjax import bench, flags, settings, shapes

    if shape is not None:
        for flag in ("model", "heads"):
            if getattr(model, flag) is not None:
                raise ValueError(f"give either --{flag} or --shape, not both")
    if methods.candidates() in ([], ["skipdecode"]) and not methods.given().keys() & {"speedup", "max_depth"}:
        methods = dataclasses.replace(methods, method=["skipdecode"], speedup=SPEEDUPS)
    sizes = settings.numbers("--batch-size", batch_size or ["1,8"], int)
    workload = bench.Workload(sizes, prompt_length, max_new_tokens, repeats)
    if shape is not None:
        config = shapes.shape_config(shape)
        asked = methods.settings(config)
        workload.check(config)
        lm = shapes.random_model(config, dtype=model.dtype, execution=model.execution)
    else:
        lm = model.load(methods)
        asked = methods.settings(lm.config, flags.recorded_method(lm))
    measurements = bench.measure(lm, asked, workload, progress=True)
    environment = {"model": shape or model.model or methods.embedded(), **bench.environment(lm)}
    if json_output:
        typer.echo(json.dumps([{**environment, **measurement.to_json()} for measurement in measurements], indent=2))
        return
    typer.echo(", ".join(f"{name} {value}" for name, value in environment.items()))
    typer.echo(f"prompt {prompt_length}, {max_new_tokens} new tokens, median of {repeats} runs\n")
    typer.echo(bench.table(measurements))

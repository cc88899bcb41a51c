"""Times decoding methods against full depth, on a model or on random weights of a published shape.

skipjax bench --shape opt-125m --speedup 2,4 --batch-size 1,8
skipjax bench --model M --speedup 2 --json
"""

from __future__ import annotations

from typing import Annotated

import typer

SPEEDUPS = [2.0, 4.0]  # without --speedup


def bench(
    model: Annotated[
        str | None,
        typer.Option(help="Hugging Face directory or hub id, or a skipjax directory.", show_default="the embedded one"),
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(
            help="Instead of --model, random weights: smollm2-135m, opt-125m, opt-1.3b or llama-3.2-1b.",
            show_default=False,
        ),
    ] = None,
    method: Annotated[str, typer.Option(help="full or skipdecode.")] = "skipdecode",
    speedup: Annotated[
        list[str] | None, typer.Option(help="Target speed-ups: 2,4, or the flag several times.", show_default="2,4")
    ] = None,
    batch_size: Annotated[
        list[str] | None, typer.Option(help="Batch sizes: 1,8, or the flag several times.", show_default="1,8")
    ] = None,
    prompt_length: Annotated[int, typer.Option(help="Tokens of each prompt.")] = 64,
    max_new_tokens: Annotated[int, typer.Option(help="Tokens to generate, all of them.")] = 64,
    repeats: Annotated[int, typer.Option(help="Timed runs of each setting.")] = 5,
    dtype: Annotated[str, typer.Option(help="Of the weights: float32, bfloat16, float16 or auto.")] = "auto",
    execution: Annotated[str, typer.Option(help="How layers are run: unrolled, scanned or auto.")] = "auto",
    json_output: Annotated[bool, typer.Option("--json", help="Print a JSON list instead of a table.")] = False,
) -> None:
    """Time decoding methods against full depth.

    Full depth is always run as the yardstick.
    """
    import json

    import skipjax
    from skipjax import bench, flags, settings, shapes

    if model is not None and shape is not None:
        raise ValueError("give either --model or --shape, not both")
    speedups = settings.numbers("--speedup", speedup or [], float)
    if not speedups and method != "full":
        speedups = SPEEDUPS
    sizes = settings.numbers("--batch-size", batch_size or ["1,8"], int)
    workload = bench.Workload(sizes, prompt_length, max_new_tokens, repeats)
    if shape is not None:
        config = shapes.shape_config(shape)
        asked = settings.settings_from_flags(method, speedups, num_layers=config.num_layers)
        workload.check(config)
        lm = shapes.random_model(config, dtype=dtype, execution=execution)
    else:
        lm = skipjax.load(model, dtype=dtype, execution=execution)
        recorded = flags.recorded_method(lm)
        asked = settings.settings_from_flags(method, speedups, num_layers=lm.config.num_layers, recorded=recorded)
    measurements = bench.measure(lm, asked, workload, progress=True)
    environment = {"model": shape or model or "embedded", **bench.environment(lm)}
    if json_output:
        typer.echo(json.dumps([{**environment, **measurement.to_json()} for measurement in measurements], indent=2))
        return
    typer.echo(", ".join(f"{name} {value}" for name, value in environment.items()))
    typer.echo(f"prompt {prompt_length}, {max_new_tokens} new tokens, median of {repeats} runs\n")
    typer.echo(bench.table(measurements))

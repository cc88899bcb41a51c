"""Times decoding methods against full depth, on a model or on random weights of a published shape.

skipjax bench --shape opt-125m --speedup 2,4 --batch-size 1,8
skipjax bench --shape t5-large --method free --shallow-layers 6 --threshold -1,1
skipjax bench --model M --speedup 2 --prompt-length 64,256 --against transformers --plot bench.png
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
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
            help="Instead of --model, random weights: smollm2-135m, smollm2-360m, smollm2-1.7b, llama-3.2-1b, "
            "llama-3.2-3b, llama-3.1-8b, opt-125m, opt-1.3b, opt-2.7b, opt-6.7b, t5-small, t5-base, t5-large, t5-3b, "
            "flan-t5-base or flan-t5-large.",
            show_default=False,
        ),
    ] = None,
    methods: MethodFlags,
    batch_size: Annotated[
        list[str] | None, typer.Option(help="Batch sizes: 1,8, or the flag several times.", show_default="1,8")
    ] = None,
    prompt_length: Annotated[
        list[str] | None, typer.Option(help="Tokens of each prompt, or source; several: 64,256.", show_default="64")
    ] = None,
    max_new_tokens: Annotated[
        list[str] | None, typer.Option(help="Tokens to generate, all of them; several: 64,128.", show_default="64")
    ] = None,
    repeats: Annotated[int, typer.Option(help="Timed runs of each setting.")] = 5,
    against: Annotated[
        str | None,
        typer.Option(
            help="transformers: the same weights and prompts there too, in the same rounds; at batch size 1 also with "
            "tokens drafted by prompt lookup and, for Llama, by its first layers (those of free or static-exit, else "
            "half).",
            show_default=False,
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Picture of the times and speed-ups, such as bench.png.", show_default=False)
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print a JSON list instead of tables.")] = False,
) -> None:
    """Time decoding methods against full depth, against memory, and against transformers.

    Full depth is always run as the yardstick. The column "of bound" holds the time that it takes to read the weights
    and keys that a step needs, at the memory bandwidth measured in the same run, as a share of the step's time. Without
    flags of a method, and for skipdecode without depths, the target speed-ups are 2 and 4. Prompts are random tokens,
    of which only a trained model can be sure: with --shape, a --threshold of -1 lets every token leave and 1 none.
    """
    import json

    from skipjax import bench, bench_report, checks, flags, rivals, settings, shapes

    if shape is not None:
        for flag in ("model", "heads"):
            if getattr(model, flag) is not None:
                raise ValueError(f"give either --{flag} or --shape, not both")
    if methods.candidates() in ([], ["skipdecode"]) and not methods.given().keys() & {"speedup", "max_depth"}:
        methods = dataclasses.replace(methods, method=["skipdecode"], speedup=SPEEDUPS)
    workloads = bench.workloads(
        settings.numbers("--batch-size", batch_size or ["1,8"], int),
        settings.numbers("--prompt-length", prompt_length or ["64"], int),
        settings.numbers("--max-new-tokens", max_new_tokens or ["64"], int),
    )
    checks.integer("--repeats", repeats, 1)
    if against is not None:
        checks.choice("--against", against, ("transformers",))
        rivals.check_installed()
    if plot is not None:
        bench_report.plot([], plot)  # a picture that cannot be written shows before the run
    if shape is not None:
        config = shapes.shape_config(shape)
        asked = methods.settings(config)
        for workload in workloads:
            workload.check(config)
        lm = shapes.random_model(config, dtype=model.dtype, execution=model.execution)
    else:
        lm = model.load(methods)
        asked = methods.settings(lm.config, *flags.recorded_methods(lm))
        for workload in workloads:
            workload.check(lm.config)
    opponent = None if against is None else rivals.Transformers(lm)
    measurements = bench.measure(lm, asked, workloads, repeats=repeats, against=opponent, progress=True)
    environment = {"model": shape or model.model or methods.embedded(), **bench.environment(lm)}
    if opponent is not None:
        environment |= opponent.environment()
    if plot is not None:
        bench_report.plot(measurements, plot)
    if json_output:
        typer.echo(json.dumps([{**environment, **measurement.to_json()} for measurement in measurements], indent=2))
        return
    typer.echo(", ".join(f"{name} {value}" for name, value in environment.items()))
    typer.echo(f"median of {repeats} runs" + _columns_explained(opponent is not None) + "\n")
    typer.echo(bench_report.report(measurements))


def _columns_explained(compared: bool) -> str:
    if not compared:
        return ""
    return "; vs: times as fast as ordinary decoding by transformers; same: tokens that are those of full depth"

"""Compiles generation for a TPU on a machine without one, and says what memory and traffic it takes.

skipjax compile --shape llama-3.1-8b --topology v5e:2x2 --batch-size 8 --speedup 2
skipjax compile --shape t5-large --method free --shallow-layers 6 --json
skipjax compile --shape opt-1.3b --speedup 2 --training --rematerialise
"""

from __future__ import annotations

from typing import Annotated

import typer

from skipjax.flag_groups import with_flags
from skipjax.flags import MethodFlags


@with_flags()
def compile_programs(
    *,
    shape: Annotated[str, typer.Option(help="Shape of a published model, as in skipjax bench; no weights are made.")],
    topology: Annotated[str, typer.Option(help="TPU topology; the programs are for one of its devices.")] = "v5e:2x2",
    methods: MethodFlags,
    batch_size: Annotated[int, typer.Option(help="Rows of a batch.")] = 8,
    prompt_length: Annotated[int, typer.Option(help="Tokens of each prompt, or source.")] = 384,
    max_new_tokens: Annotated[int, typer.Option(help="Tokens to generate, or of each target.")] = 128,
    dtype: Annotated[str, typer.Option(help="Of the weights, in training of the arithmetic.")] = "bfloat16",
    training: Annotated[bool, typer.Option("--training", help="Compile an update of fine-tuning instead.")] = False,
    rematerialise: Annotated[
        bool, typer.Option("--rematerialise", help="With --training: recompute activations in the backward pass.")
    ] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print a JSON list instead of tables.")] = False,
) -> None:
    """Compile for a TPU without one, and print what the programs take.

    Needs libtpu (pip install 'skipjax[tpu]'). Without flags of a method it is full depth.
    """
    import dataclasses
    import json

    import jax

    jax.config.update("jax_platforms", "cpu")  # no TPU is looked for
    jax.config.update("jax_enable_compilation_cache", False)  # compile seconds are of compiling

    from skipjax import ahead_of_time, shapes, tables
    from skipjax.loading import resolve_dtype

    if rematerialise and not training:
        raise ValueError("--rematerialise goes with --training")
    config = shapes.shape_config(shape)
    settings = methods.settings(config)
    sizes = ahead_of_time.Sizes(
        dtype=resolve_dtype(dtype),
        batch_size=batch_size,
        prompt_length=prompt_length,
        max_new_tokens=max_new_tokens,
    )
    device = ahead_of_time.tpu(topology)
    printed = []
    for setting in settings:
        about = {"shape": shape, "topology": topology, **setting.to_json(), **dataclasses.asdict(sizes)}
        about["dtype"] = sizes.dtype.name
        compiled: list[ahead_of_time.CompiledProgram] = []
        segments: tuple[ahead_of_time.SegmentTraffic, ...] = ()
        if training:
            compiled.append(
                ahead_of_time.compile_training(config, setting.method, device, sizes, rematerialise=rematerialise)
            )
            needs = f"parameters and optimizer {_mb(compiled[0].needed)} MB"
        else:
            generation = ahead_of_time.compile_generation(config, setting.method, device, sizes)
            compiled, segments = [generation.prefill, generation.decode], generation.segments
            about |= {"weights": generation.weights, "cache": generation.cache}
            needs = f"weights {_mb(generation.weights)} MB, cache of the plan {_mb(generation.cache)} MB"
        about["programs"] = [{**dataclasses.asdict(one), "ratio": one.ratio} for one in compiled]
        about["segments"] = [{**dataclasses.asdict(one), "ratio": one.ratio} for one in segments]
        printed.append(about)
        if json_output:
            continue
        typer.echo(f"{setting.label} of {shape} on {topology}, {about['dtype']}, batch {batch_size}: {needs}\n")
        header = ["program", "compile s", "arguments MB", "temporaries", "outputs", "aliased", "args + temps / needed"]
        rows = [
            [
                one.name,
                f"{one.compile_seconds:.1f}",
                *(_mb(size) for size in (one.arguments, one.temporaries, one.outputs, one.aliased)),
                f"{one.ratio:.3f}",
            ]
            for one in compiled
        ]
        typer.echo(tables.markdown(header, rows) + "\n")
        if segments:
            rows = [
                [
                    f"{one.first_step}-{one.last_step - 1}",
                    str(one.depth),
                    _mb(one.counted),
                    _mb(one.ideal),
                    f"{one.ratio:.3f}",
                ]
                for one in segments
            ]
            typer.echo(tables.markdown(["steps", "depth", "MB a step", "ideal", "of ideal"], rows) + "\n")
    if json_output:
        typer.echo(json.dumps(printed, indent=2))


def _mb(size: float) -> str:
    return f"{size / 1e6:.1f}"

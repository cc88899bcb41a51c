"""Scores a model's texts on a data set, at full depth and with fewer layers.

    skipjax evaluate --model M --data testset_w_refs.csv --prompt-template "{mr} ->" --target-column ref \\
        --speedup 2,3,5 --out results
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def evaluate(
    data: Annotated[
        str,
        typer.Option(help="A .csv, .tsv, .json, .jsonl or .parquet file (also .gz), or the name of a hub data set."),
    ],
    prompt_template: Annotated[str, typer.Option(help='Prompt with {column} fields, for example "{mr} ->".')],
    target_column: Annotated[
        str, typer.Option(help="Column with the reference; rows with the same prompt are references of one input.")
    ],
    model: Annotated[
        str | None,
        typer.Option(help="Hugging Face directory or hub id, or a skipjax directory.", show_default="the embedded one"),
    ] = None,
    split: Annotated[str, typer.Option(help="Split of a hub data set.")] = "test",
    limit: Annotated[int | None, typer.Option(help="Use only the first different prompts.", show_default="all")] = None,
    method: Annotated[
        str | None, typer.Option(help="full or skipdecode.", show_default="the one the model was trained for")
    ] = None,
    speedup: Annotated[
        list[str] | None, typer.Option(help="Target speed-ups: 2,3,5, or the flag several times.", show_default=False)
    ] = None,
    max_depth: Annotated[int | None, typer.Option(help="Layers of the first decode step.", show_default=False)] = None,
    min_depth: Annotated[int | None, typer.Option(help="Layers of the last decode steps.", show_default=False)] = None,
    warmup_layers: Annotated[int | None, typer.Option(help="Bottom layers always run.", show_default=False)] = None,
    horizon: Annotated[
        int | None,
        typer.Option(
            help="Decode steps over which the depth falls.", show_default="the checkpoint's, or --max-new-tokens"
        ),
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Prompts per batch.")] = 16,
    max_new_tokens: Annotated[int, typer.Option(help="Tokens to generate at most.")] = 64,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Keep the most probable tokens up to this sum; 1 keeps all.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Keep this many tokens; 0 keeps all.")] = 0,
    seed: Annotated[int, typer.Option(help="Of the sampling.")] = 0,
    dtype: Annotated[str, typer.Option(help="Of the weights: float32, bfloat16, float16 or auto.")] = "auto",
    out: Annotated[
        Path | None,
        typer.Option(help="Directory for results.json, table.md and samples.jsonl.", show_default="only print"),
    ] = None,
) -> None:
    """Quality (ROUGE-L, BLEU) and cost, with fewer layers.

    Full depth is always run as the yardstick.
    """
    import skipjax
    from skipjax import evaluation, flags, settings

    speedups = settings.numbers("--speedup", speedup or [], float)
    sampling = skipjax.Sampling(temperature, top_p, top_k, seed)
    if out is not None and out.exists() and not out.is_dir():
        raise ValueError(f"--out must be a directory, got the file {str(out)!r}")
    inputs = evaluation.read_inputs(data, prompt_template, target_column, split=split, limit=limit)
    lm = skipjax.load(model, dtype=dtype)
    asked = settings.settings_from_flags(
        method,
        speedups,
        num_layers=lm.config.num_layers,
        recorded=flags.recorded_method(lm),
        max_depth=max_depth,
        min_depth=min_depth,
        warmup_layers=warmup_layers,
        horizon=horizon,
    )
    evaluated = evaluation.evaluate(
        lm,
        inputs,
        asked,
        batch_size=batch_size,
        max_new_tokens=max_new_tokens,
        sampling=sampling,
        progress=True,
    )
    references = sum(len(entry.references) for entry in inputs)
    typer.echo(f"{len(inputs)} inputs, {references} references")
    typer.echo(evaluated.table())
    if out is not None:
        evaluated.write(out)
        typer.echo(f"wrote results.json, table.md and samples.jsonl to {out}")

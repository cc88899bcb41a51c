"""Scores a model's texts on a data set, at full depth and with fewer layers.

    skipjax evaluate --model M --data testset_w_refs.csv --prompt-template "{mr} ->" --target-column ref \\
        --speedup 2,3,5 --out results
    skipjax evaluate --model M --data testset_w_refs.csv --prompt-template "{mr} ->" --target-column ref \\
        --method free,calm --shallow-layers 3 --threshold 0.3,0.5,0.9 --adaptive
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from skipjax.flag_groups import Data, Split, with_flags
from skipjax.flags import MethodFlags, ModelFlags, SamplingFlags


@with_flags()
def evaluate(
    *,
    data: Data,
    prompt_template: Annotated[
        str, typer.Option(help='Prompt, or source, with {column} fields, for example "{mr} ->".')
    ],
    target_column: Annotated[
        str, typer.Option(help="Column with the reference; rows with the same prompt are references of one input.")
    ],
    model: ModelFlags,
    split: Split = "test",
    limit: Annotated[int | None, typer.Option(help="Use only the first different prompts.", show_default="all")] = None,
    methods: MethodFlags,
    batch_size: Annotated[int, typer.Option(help="Prompts per batch.")] = 16,
    max_new_tokens: Annotated[int, typer.Option(help="Tokens to generate at most.")] = 64,
    sampling: SamplingFlags,
    out: Annotated[
        Path | None,
        typer.Option(help="Directory for results.json, table.md and samples.jsonl.", show_default="only print"),
    ] = None,
) -> None:
    """Quality (ROUGE-L, BLEU) and cost, with fewer layers.

    Full depth is always run as the yardstick.
    """
    from skipjax import evaluation, flags

    chosen_sampling = sampling.sampling()
    if out is not None and out.exists() and not out.is_dir():
        raise ValueError(f"--out must be a directory, got the file {str(out)!r}")
    methods.candidates()  # a mistake in the flags shows before anything is read
    inputs = evaluation.read_inputs(data, prompt_template, target_column, split=split, limit=limit)
    lm = model.load(methods)
    evaluated = evaluation.evaluate(
        lm,
        inputs,
        methods.settings(lm.config, flags.recorded_method(lm)),
        batch_size=batch_size,
        max_new_tokens=max_new_tokens,
        sampling=chosen_sampling,
        progress=True,
    )
    references = sum(len(entry.references) for entry in inputs)
    typer.echo(f"{len(inputs)} inputs, {references} references")
    typer.echo(evaluated.table())
    if out is not None:
        evaluated.write(out)
        typer.echo(f"wrote results.json, table.md and samples.jsonl to {out}")

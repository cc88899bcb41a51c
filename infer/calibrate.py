"""Says at which confidence an exit can be trusted: thresholds, and how many tokens then leave.

    skipjax calibrate --model M --heads heads --layers 8,16 --data dev.csv \\
        --prompt-template "{mr} ->" --target-column ref

A token counts as right where the exit chooses what the last layer chooses, with the data's own text before it.
"""

from __future__ import annotations

from typing import Annotated

import typer

from skipjax.flag_groups import Data, Limit, PromptTemplate, Split, TargetColumn


def calibrate(
    data: Data,
    prompt_template: PromptTemplate,
    target_column: TargetColumn,
    layers: Annotated[list[str], typer.Option(help="After how many layers: 4,8, or the flag several times.")],
    model: Annotated[
        str,
        typer.Option(help="Hugging Face directory or hub id, or a skipjax directory."),
    ] = "embedded-t5",
    heads: Annotated[str | None, typer.Option(help="Directory from skipjax train heads.", show_default=False)] = None,
    confidence: Annotated[
        list[str] | None, typer.Option(help="Measures: margin,top1, or the flag several times.", show_default="margin")
    ] = None,
    agreement: Annotated[float, typer.Option(help="Share of the tokens that leave which must agree.")] = 0.99,
    split: Split = "test",
    limit: Limit = None,
    batch_size: Annotated[int, typer.Option(help="Rows per batch.")] = 8,
    dtype: Annotated[str, typer.Option(help="Of the weights: float32, bfloat16, float16 or auto.")] = "auto",
) -> None:
    """At which confidence can an exit be trusted?"""
    import skipjax
    from skipjax import calibration, checks, settings, training

    checks.real("--agreement", agreement, 0.0, 1.0)
    after = settings.numbers("--layers", layers, int)
    names = settings.words(confidence or ["margin"])
    rows = training.load_rows(data, split=split, limit=limit)
    lm = skipjax.load(model, dtype=dtype, execution="scanned", heads=heads)
    if lm.tokenizer is None:
        raise ValueError("calibration needs a tokenizer, and this checkpoint has none")
    examples = training.tokenize(
        rows, lm.tokenizer, lm.config, prompt_template=prompt_template, target_column=target_column
    )
    curves = calibration.exit_curves(lm, examples, after, names, batch_size=batch_size)
    typer.echo(f"{len(examples)} texts, {len(curves[0].agreements)} tokens; agreement wanted {agreement:.1%}")
    typer.echo(calibration.table(curves, agreement))

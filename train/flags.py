"""Flags of the training programs, and how those that all have are declared once."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from skipjax.flag_groups import Data, Limit, PromptTemplate, Split, TargetColumn


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunFlags:
    """What every training program takes, in the order of --help."""

    data: Data
    prompt_template: PromptTemplate
    target_column: TargetColumn
    steps: Annotated[int, typer.Option(help="Updates in all.")]
    batch_size: Annotated[int, typer.Option(help="Examples per forward pass.")]
    learning_rate: Annotated[float, typer.Option(help="Highest learning rate.")]
    out: Annotated[Path, typer.Option(help="New directory for checkpoints and metrics.jsonl.")]
    model: Annotated[
        str | None, typer.Option(help="Hugging Face directory or hub id, or a skipjax directory.", show_default=False)
    ] = None
    init: Annotated[
        Path | None, typer.Option(help="Instead of --model: a config.json, for random weights.", show_default=False)
    ] = None
    tokenizer: Annotated[
        Path | None, typer.Option(help="With --init: directory with a tokenizer.json.", show_default=False)
    ] = None
    split: Split = "train"
    limit: Limit = None
    max_prompt_tokens: Annotated[
        int | None, typer.Option(help="Leave out longer prompts.", show_default="no limit")
    ] = None
    max_target_tokens: Annotated[
        int | None, typer.Option(help="Leave out longer targets.", show_default="no limit")
    ] = None
    eval_data: Annotated[str | None, typer.Option(help="Data for the validation loss.", show_default=False)] = None
    eval_every: Annotated[int, typer.Option(help="Steps between validations.")] = 500
    eval_limit: Annotated[int, typer.Option(help="Rows of --eval-data to use.")] = 512
    accumulate: Annotated[int, typer.Option(help="Forward passes per update.")] = 1
    optimizer: Annotated[str, typer.Option(help="adamw or adafactor.")] = "adamw"
    warmup_steps: Annotated[int, typer.Option(help="Updates over which the learning rate rises.")] = 0
    schedule: Annotated[str, typer.Option(help="How the learning rate falls: cosine, linear or constant.")] = "cosine"
    clip: Annotated[float, typer.Option(help="Largest global gradient norm; 0 for none.")] = 1.0
    weight_decay: Annotated[float, typer.Option(help="Decoupled weight decay; not on norms and biases.")] = 0.0
    dtype: Annotated[str, typer.Option(help="To compute in: float32 or bfloat16. Parameters stay float32.")] = "float32"
    rematerialise: Annotated[bool, typer.Option("--rematerialise", help="Less memory for about a third more work.")] = (
        False
    )
    max_shapes: Annotated[int | None, typer.Option(help="Padded batch shapes: more pad less and compile longer.")] = 8
    seed: Annotated[int, typer.Option(help="Of the order of examples, drawn schedules and fresh weights.")] = 0
    save_every: Annotated[int, typer.Option(help="Steps between checkpoints.")] = 500
    log_every: Annotated[int, typer.Option(help="Steps between lines of metrics.jsonl.")] = 10
    keep: Annotated[int, typer.Option(help="Newest checkpoints to keep, besides the best.")] = 2
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint in --out.")] = False

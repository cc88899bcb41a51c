"""Flags that the training programs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Data = Annotated[
    str, typer.Option(help="A .csv, .tsv, .json, .jsonl or .parquet file (also .gz), or the name of a hub data set.")
]
PromptTemplate = Annotated[str, typer.Option(help='Prompt with {column} fields, for example "{mr} ->".')]
TargetColumn = Annotated[str, typer.Option(help="Column with the text to generate.")]
Split = Annotated[str, typer.Option(help="Split of a hub data set.")]
Limit = Annotated[int | None, typer.Option(help="Use only the first rows.", show_default="all")]
Out = Annotated[Path, typer.Option(help="New directory for checkpoints and metrics.jsonl.")]

Model = Annotated[
    str | None, typer.Option(help="Hugging Face directory or hub id, or a skipjax directory.", show_default=False)
]
Init = Annotated[
    Path | None, typer.Option(help="Instead of --model: a config.json, for random weights.", show_default=False)
]
TokenizerFiles = Annotated[
    Path | None, typer.Option("--tokenizer", help="With --init: directory with a tokenizer.json.", show_default=False)
]
MaxPromptTokens = Annotated[int | None, typer.Option(help="Leave out longer prompts.", show_default="no limit")]
MaxTargetTokens = Annotated[int | None, typer.Option(help="Leave out longer targets.", show_default="no limit")]
EvalData = Annotated[str | None, typer.Option(help="Data for the validation loss.", show_default=False)]
EvalEvery = Annotated[int, typer.Option(help="Steps between validations.")]
EvalLimit = Annotated[int, typer.Option(help="Rows of --eval-data to use.")]

Steps = Annotated[int, typer.Option(help="Updates in all.")]
BatchSize = Annotated[int, typer.Option(help="Examples per forward pass.")]
Accumulate = Annotated[int, typer.Option(help="Forward passes per update.")]
LearningRate = Annotated[float, typer.Option(help="Highest learning rate.")]
Optimizer = Annotated[str, typer.Option(help="adamw or adafactor.")]
WarmupSteps = Annotated[int, typer.Option(help="Updates over which the learning rate rises.")]
Schedule = Annotated[str, typer.Option(help="How the learning rate falls: cosine, linear or constant.")]
Clip = Annotated[float, typer.Option(help="Largest global gradient norm; 0 for none.")]
WeightDecay = Annotated[float, typer.Option(help="Decoupled weight decay; not on norms and biases.")]
Dtype = Annotated[str, typer.Option(help="To compute in: float32 or bfloat16. Parameters stay float32.")]
Rematerialise = Annotated[bool, typer.Option("--rematerialise", help="Less memory for about a third more work.")]
MaxShapes = Annotated[
    int | None, typer.Option(help="Padded batch shapes: more pad less and compile longer.", show_default="8, or 4")
]
Seed = Annotated[int, typer.Option(help="Of the order of examples, drawn schedules and fresh weights.")]
SaveEvery = Annotated[int, typer.Option(help="Steps between checkpoints.")]
LogEvery = Annotated[int, typer.Option(help="Steps between lines of metrics.jsonl.")]
Keep = Annotated[int, typer.Option(help="Newest checkpoints to keep, besides the best.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint in --out.")]

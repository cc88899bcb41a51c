"""Trains a byte-level BPE tokenizer on the prompts and targets of a data set, for models trained from scratch.

skipjax train tokenizer --data train.csv --prompt-template "{mr} ->" --target-column ref --vocab-size 2048 --out DIR
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import flags


def tokenizer(
    data: flags.Data,
    prompt_template: flags.PromptTemplate,
    target_column: flags.TargetColumn,
    vocab_size: Annotated[int, typer.Option(help="Tokens in all, at least 259.")],
    out: Annotated[Path, typer.Option(help="New directory for tokenizer.json and tokenizer_config.json.")],
    split: flags.Split = "train",
    limit: flags.Limit = None,
) -> None:
    """Train a tokenizer."""
    from skipjax import training

    rows = training.load_rows(data, split=split, limit=limit)
    prompts, targets = training.prompts_and_targets(rows, prompt_template, target_column)
    size = training.train_tokenizer([*prompts, *targets], vocab_size, out)
    typer.echo(f"{out}: {size} tokens")

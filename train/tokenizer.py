"""Trains a byte-level BPE tokenizer on the prompts and targets of a data set, for models trained from scratch.

skipjax train tokenizer --data train.csv --prompt-template "{mr} ->" --target-column ref --vocab-size 2048 --out DIR
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from skipjax.flag_groups import Data, Limit, PromptTemplate, Split, TargetColumn


def tokenizer(
    data: Data,
    prompt_template: PromptTemplate,
    target_column: TargetColumn,
    vocab_size: Annotated[int, typer.Option(help="Tokens in all, at least 259.")],
    out: Annotated[Path, typer.Option(help="New directory for tokenizer.json and tokenizer_config.json.")],
    split: Split = "train",
    limit: Limit = None,
) -> None:
    """Train a tokenizer."""
    from skipjax import training

    rows = training.load_rows(data, split=split, limit=limit)
    prompts, targets = training.prompts_and_targets(rows, prompt_template, target_column)
    size = training.train_tokenizer([*prompts, *targets], vocab_size, out)
    typer.echo(f"{out}: {size} tokens")

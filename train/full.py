"""Ordinary fine-tuning: every layer for every token.

skipjax train full --model M --data train.csv --prompt-template "{mr} ->" --target-column ref \
    --steps 1000 --batch-size 16 --learning-rate 3e-4 --out DIR
"""

from __future__ import annotations

from skipjax.flag_groups import with_flags

from . import flags


@with_flags()
def full(run: flags.RunFlags) -> None:
    """Fine-tune with every layer for every token."""
    from skipjax import training

    from .build import start

    start(run, lambda config, longest: training.full_depth())

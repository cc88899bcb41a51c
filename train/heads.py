"""Trains exits of a model's own while the model stays as it is: norms, low-rank adapters and confidence classifiers.

skipjax train heads --layers 6,12 --norm --classifier --model M --data train.csv --prompt-template "{mr} ->" \
    --target-column ref --steps 1000 --batch-size 16 --learning-rate 1e-3 --out DIR

DIR holds the exits only, and says which model they belong to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from skipjax.flag_groups import with_flags

from . import flags

if TYPE_CHECKING:
    from skipjax.language_model import LanguageModel


@with_flags(without=("init", "tokenizer"))  # exits are trained for the weights of --model, which stay as they are
def heads(
    run: flags.RunFlags,
    layers: Annotated[
        list[str], typer.Option(help="After how many layers the exits are: 6,12, or the flag several times.")
    ],
    norm: Annotated[bool, typer.Option("--norm", help="A final norm for each exit.")] = False,
    adapter_rank: Annotated[int, typer.Option(help="Rank of an adapter between norm and LM head; 0 for none.")] = 0,
    classifier: Annotated[
        bool, typer.Option("--classifier", help="A classifier for each exit, a confidence to exit by.")
    ] = False,
) -> None:
    """Train exits of a model that stays as it is.

    Each learns the targets and the model's own predictions, and its classifier when the two exits agree.
    """
    from skipjax import exit_heads, settings, training

    from .build import start

    chosen = settings.numbers("--layers", layers, int)
    base = run.model
    if base is None:
        raise ValueError("--model must be given: exits are trained for its weights, which stay as they are")
    training.check_exit_kinds(norm, adapter_rank, classifier)  # before data and model are read

    def prepare(lm: LanguageModel) -> LanguageModel:
        return training.with_exit_heads(
            lm, chosen, norm=norm, adapter_rank=adapter_rank, classifier=classifier, seed=run.seed
        )

    start(
        run,
        lambda config, longest: training.heads(config),
        prepare=prepare,
        describe=lambda lm, directory, known: exit_heads.describe(lm, directory, base, known),
    )

"""Fine-tuning for FREE: two exits, after the shallow layers and after all, and distillation between them.

skipjax train free --shallow-layers 6 --model M --data train.csv --prompt-template "{mr} ->" --target-column ref \
    --steps 10000 --batch-size 8 --out DIR

The defaults are the paper's recipe (FREE, arXiv 2310.05424): Adafactor, learning rate 1e-4, linear decay, no warm-up.
"""

from __future__ import annotations

from typing import Annotated

import typer

from skipjax.flag_groups import with_flags

from . import flags


@with_flags(optimizer="adafactor", learning_rate=1e-4, schedule="linear")
def free(
    run: flags.RunFlags,
    shallow_layers: Annotated[int, typer.Option(help="Layers below the early exit; published: a fourth to a third.")],
    distillation: Annotated[str, typer.Option(help="From deep to shallow layers: dyna, unif, last or none.")] = "dyna",
    distillation_weight: Annotated[float, typer.Option(help="Of the distillation in the loss.")] = 0.5,
) -> None:
    """Fine-tune for FREE: an early exit beside the last.

    Both are trained together, with layer-wise distillation into the layers below the early one.
    """
    from skipjax import training

    from .build import start

    training.FreeLoss(shallow_layers, distillation, distillation_weight)  # says what is wrong before data is read
    start(
        run,
        lambda config, longest: training.free(
            config,
            shallow_layers=shallow_layers,
            distillation=distillation,
            distillation_weight=distillation_weight,
        ),
    )

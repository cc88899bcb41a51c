"""Fine-tuning with a loss after every layer, for exits anywhere; the baseline that FREE and CALM are compared with.

skipjax train multi-exit --model M --data train.csv --prompt-template "{mr} ->" --target-column ref \
    --steps 1000 --batch-size 16 --learning-rate 3e-4 --out DIR
"""

from __future__ import annotations

from skipjax.flag_groups import with_flags

from . import flags


@with_flags()
def multi_exit(run: flags.RunFlags) -> None:
    """Fine-tune with a loss after every layer.

    The deeper the layer, the more its loss counts.
    """
    from skipjax import training

    from .build import start

    start(run, lambda config, longest: training.multi_exit(config))

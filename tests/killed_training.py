"""Trains a tiny model and kills its own process on the way: python killed_training.py DIR MOMENT STEP."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tiny_training import LLAMA, random_examples, tiny_model

from skipjax import checkpoint
from skipjax.training import OptimizerSettings, RunSettings, choose_shapes, skipdecode, train
from skipjax.training.metrics import MetricsFile

STEPS = 12


def run(
    directory: Path, *, resume: bool, steps: int = STEPS, report: Callable[[str], None] = print, **changes: Any
) -> None:
    """Draws schedules, validates, and logs at other steps than it saves at."""
    examples = random_examples(20)
    train(
        tiny_model(),
        examples,
        choose_shapes(examples, 4, 1),
        skipdecode(LLAMA, speedup_range=(1, 2), warmup_layers=0, horizon=9),
        OptimizerSettings(1e-2, steps, warmup_steps=2, schedule="constant", weight_decay=0.01),
        RunSettings(**{"batch_size": 4, "save_every": 3, "log_every": 2, "eval_every": 6, **changes}),
        directory,
        validation=random_examples(6, seed=9),
        sources={"data": "random numbers"},
        resume=resume,
        report=report,
    )


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_while_saving(step: int) -> None:
    save_step = checkpoint.save_step

    def save_and_die(manager, saved, *arguments, **more):
        save_step(manager, saved, *arguments, **more)  # goes on in threads
        if saved == step:
            die()

    setattr(checkpoint, "save_step", save_and_die)  # noqa: B010 (mypy minds plain assignment)


def die_while_writing(step: int) -> None:
    write = MetricsFile.write

    def write_and_die(self, line):
        if line["step"] == step:
            self._file.write('{"step": ')
            self._file.flush()
            die()
        write(self, line)

    setattr(MetricsFile, "write", write_and_die)  # noqa: B010


if __name__ == "__main__":
    {"saving": die_while_saving, "writing": die_while_writing}[sys.argv[2]](int(sys.argv[3]))
    run(Path(sys.argv[1]), resume=True)

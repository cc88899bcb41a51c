"""From flags to a training run: what the programs have in common."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from skipjax import checks, training
from skipjax.config import ModelConfig
from skipjax.fingerprint import fingerprint
from skipjax.language_model import LanguageModel

from .flags import RunFlags

SOURCES = (
    *("model", "init", "tokenizer", "data", "split", "limit", "prompt_template", "target_column"),
    *("max_prompt_tokens", "max_target_tokens", "max_shapes"),
)
OPTIMIZER = ("learning_rate", "steps", "warmup_steps", "schedule", "clip", "weight_decay")
RUN = (
    *("batch_size", "accumulate", "seed", "dtype", "rematerialise"),
    *("save_every", "log_every", "eval_every", "keep"),
)
COLUMNS = ("prompt_template", "target_column", "max_prompt_tokens", "max_target_tokens")


def start(
    flags: RunFlags,
    curriculum_of: Callable[[ModelConfig, int], training.Curriculum],
    *,
    prepare: Callable[[LanguageModel], LanguageModel] = lambda lm: lm,
    describe: Callable[[LanguageModel, Path, str], None] | None = None,
) -> None:
    """Runs training. `curriculum_of(config, tokens of the longest target)` says what for, and `prepare` changes the
    model before it starts. Where only a part is trained, `describe` is that of `training.train` and also takes the
    fingerprint of the rest."""

    def chosen(names: tuple[str, ...]) -> dict[str, Any]:
        return {name: getattr(flags, name) for name in names}

    quiet()
    optimizer = training.OptimizerSettings(name=flags.optimizer, **chosen(OPTIMIZER))  # type: ignore[arg-type]
    run = training.RunSettings(**chosen(RUN))
    max_shapes = checks.integer("max_shapes", flags.max_shapes, 1)
    training.check_directory(flags.out, flags.resume)
    rows = training.load_rows(flags.data, split=flags.split, limit=flags.limit)
    eval_rows = None
    if flags.eval_data is not None:
        eval_rows = training.load_rows(flags.eval_data, split=flags.split, limit=flags.eval_limit)
    lm = prepare(training.starting_point(flags.model, flags.init, flags.tokenizer, flags.seed))
    assert lm.tokenizer is not None, "starting_point gives one"
    columns = chosen(COLUMNS)
    examples = training.tokenize(rows, lm.tokenizer, lm.config, **columns)
    validation = None if eval_rows is None else training.tokenize(eval_rows, lm.tokenizer, lm.config, **columns)
    shapes = training.choose_shapes(examples, run.batch_size * run.accumulate, max_shapes)
    curriculum = curriculum_of(lm.config, shapes.longest_target)
    report_data(examples, shapes, curriculum)
    sources = {name: str(value) if isinstance(value, Path) else value for name, value in chosen(SOURCES).items()}
    of_part: Callable[[LanguageModel, Path], None] | None = None
    if describe is not None:
        known = fingerprint(lm)
        sources["base_fingerprint"] = known  # a resumed run takes the rest from the same model again
        of_part = lambda lm, directory: describe(lm, directory, known)  # noqa: E731
    training.train(
        lm,
        examples,
        shapes,
        curriculum,
        optimizer,
        run,
        flags.out,
        validation=validation,
        sources=sources,
        resume=flags.resume,
        describe=of_part,
        report=typer.echo,
    )


def report_data(examples: training.Examples, shapes: Any, curriculum: training.Curriculum) -> None:
    typer.echo(f"{len(examples)} examples" + "".join(f", {n} left out: {why}" for why, n in examples.dropped.items()))
    pairs = ", ".join(f"{prompt}+{target}" for prompt, target in shapes.shapes)
    typer.echo(f"padded to prompt+target tokens {pairs}: padding {training.padding_share(examples, shapes):.1%}")
    for objective, speedup in zip(curriculum.objectives, curriculum.speedups, strict=True):
        typer.echo(f"trains {objective}" + (f" (target speed-up {speedup:.2f})" if speedup > 1 else ""))


def quiet() -> None:
    """Keeps messages of libraries that are no news to whoever trains out of the terminal."""
    logging.getLogger("absl").setLevel(logging.ERROR)
    logging.getLogger("jax").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"(orbax|jax|flax)\..*")

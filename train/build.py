"""From flags to a training run: what `full` and `skipdecode` have in common."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from skipjax import checks, training
from skipjax.config import ModelConfig

SOURCES = (
    *("model", "init", "tokenizer", "data", "split", "limit", "prompt_template", "target_column"),
    *("max_prompt_tokens", "max_target_tokens", "max_shapes"),
)


def start(flags: dict[str, Any], depths_of: Callable[[ModelConfig, int], training.Depths]) -> None:
    """Runs training. `depths_of(config, tokens of the longest target)` makes the schedules."""
    quiet()
    optimizer = training.OptimizerSettings(
        name=flags["optimizer"],
        **{
            name: flags[name] for name in ("learning_rate", "steps", "warmup_steps", "schedule", "clip", "weight_decay")
        },
    )
    run = training.RunSettings(
        **{
            name: flags[name]
            for name in (
                *("batch_size", "accumulate", "seed", "dtype", "rematerialise"),
                *("save_every", "log_every", "eval_every", "keep"),
            )
        }
    )
    training.check_directory(flags["out"], flags["resume"])
    rows = training.load_rows(flags["data"], split=flags["split"], limit=flags["limit"])
    eval_rows = None
    if flags["eval_data"] is not None:
        eval_rows = training.load_rows(flags["eval_data"], split=flags["split"], limit=flags["eval_limit"])
    lm = training.starting_point(flags["model"], flags["init"], flags["tokenizer"], flags["seed"])
    assert lm.tokenizer is not None, "starting_point gives one"
    columns = {
        name: flags[name] for name in ("prompt_template", "target_column", "max_prompt_tokens", "max_target_tokens")
    }
    examples = training.tokenize(rows, lm.tokenizer, lm.config, **columns)
    validation = None if eval_rows is None else training.tokenize(eval_rows, lm.tokenizer, lm.config, **columns)
    checks.integer("max_shapes", flags["max_shapes"], 1)
    shapes = training.choose_shapes(examples, run.batch_size * run.accumulate, flags["max_shapes"])
    depths = depths_of(lm.config, shapes.longest_target)
    report_data(examples, shapes, depths, lm.config.num_layers)
    sources = {name: str(flags[name]) if isinstance(flags[name], Path) else flags[name] for name in SOURCES}
    training.train(
        lm,
        examples,
        shapes,
        depths,
        optimizer,
        run,
        flags["out"],
        validation=validation,
        sources=sources,
        resume=flags["resume"],
        report=typer.echo,
    )


def report_data(examples: training.Examples, shapes: Any, depths: training.Depths, num_layers: int) -> None:
    typer.echo(f"{len(examples)} examples" + "".join(f", {n} left out: {why}" for why, n in examples.dropped.items()))
    pairs = ", ".join(f"{prompt}+{target}" for prompt, target in shapes.shapes)
    typer.echo(f"padded to prompt+target tokens {pairs}: padding {training.padding_share(examples, shapes):.1%}")
    for method in depths.methods:
        typer.echo(f"trains {method} (target speed-up {method.target_speedup(num_layers):.2f})")


def quiet() -> None:
    """Keeps messages of libraries that are no news to whoever trains out of the terminal."""
    logging.getLogger("absl").setLevel(logging.ERROR)
    logging.getLogger("jax").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"(orbax|jax|flax)\..*")

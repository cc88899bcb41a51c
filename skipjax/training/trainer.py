"""The training loop: batches in, updates, and what is kept of them: metrics, validation, checkpoints."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from tqdm import tqdm

from skipjax import checkpoint, checks
from skipjax.decoder import abstract_params, stack_layers
from skipjax.json_files import read_json, write_json
from skipjax.language_model import LanguageModel
from skipjax.training.batches import Batch, Shapes, batch_order, bucket_sizes, make_batch
from skipjax.training.curriculum import Curriculum, speedup_label
from skipjax.training.data import Examples
from skipjax.training.loss import Objective
from skipjax.training.metrics import MetricsFile
from skipjax.training.optimizer import OptimizerSettings, learning_rate_at
from skipjax.training.step import StepOptions, TrainState, initial_state, loss_step, parted, train_step

SETTINGS = "training.json"
MAY_CHANGE = ("steps", "save_every", "log_every", "eval_every", "keep")  # settings that a resumed run may change


@dataclasses.dataclass(frozen=True)
class RunSettings:
    """How a run goes about its steps.

    Attributes:
      batch_size: examples per forward pass; an update sees batch_size * accumulate.
      accumulate: forward passes per update.
      seed: of the order of examples and of the drawn schedules.
      dtype: "float32" or "bfloat16", to compute in. Parameters and updates are float32.
      rematerialise: recompute activations in the backward pass: less memory, about a third more work.
      save_every, log_every, eval_every: in updates.
      keep: newest checkpoints to keep; the best one by validation loss is kept besides.
    """

    batch_size: int
    accumulate: int = 1
    seed: int = 0
    dtype: str = "float32"
    rematerialise: bool = False
    save_every: int = 500
    log_every: int = 10
    eval_every: int = 500
    keep: int = 2

    def __post_init__(self) -> None:
        for name in ("batch_size", "accumulate", "save_every", "log_every", "eval_every", "keep"):
            checks.integer(name, getattr(self, name), 1)
        checks.integer("seed", self.seed, 0, 2**32 - 1)
        checks.choice("dtype", self.dtype, ("float32", "bfloat16"))


@dataclasses.dataclass
class Progress:
    """What a resumed run must know besides the arrays; kept as JSON in each checkpoint.

    Attributes:
      step: updates done, which is also the number of batches consumed: the position in the data and, with the seed,
        the state of every random draw.
      window: of each update since the last log line, its loss, target speed-up, input columns and how many of them are
        not padding.
      best: lowest validation loss so far, or None.
    """

    step: int = 0
    window: list[list[Any]] = dataclasses.field(default_factory=list)
    best: float | None = None


def check_directory(directory: Path, resume: bool) -> None:
    """Raises ValueError if training must not write there."""
    if directory.exists() and not directory.is_dir():
        raise ValueError(f"out must be a directory, {str(directory)!r} is a file")
    entries = [entry.name for entry in directory.iterdir()] if directory.exists() else []
    entries = [name for name in entries if not name.endswith(".tmp")]
    if entries and not resume:
        raise ValueError(f"out must be a new or empty directory, or be resumed with --resume, got {str(directory)!r}")
    if entries and SETTINGS not in entries:
        raise ValueError(f"out {str(directory)!r} cannot be resumed: it holds files but no {SETTINGS}")


def check_settings(directory: Path, settings: dict[str, Any]) -> None:
    """Raises ValueError if a run in `directory` was started with other settings that matter, naming the first."""
    path = directory / SETTINGS
    if not path.exists():
        return
    before = read_json(path)
    for name in sorted(before.keys() | settings.keys()):
        if name not in MAY_CHANGE and before.get(name) != settings.get(name):
            raise ValueError(
                f"{name} must stay {before.get(name)!r} to resume {str(directory)!r}, got {settings.get(name)!r}"
            )


def train(
    lm: LanguageModel,
    examples: Examples,
    shapes: Shapes,
    curriculum: Curriculum,
    optimizer: OptimizerSettings,
    run: RunSettings,
    directory: str | Path,
    *,
    validation: Examples | None = None,
    sources: dict[str, Any] | None = None,
    resume: bool = False,
    describe: Callable[[LanguageModel, Path], None] | None = None,
    report: Callable[[str], None] = print,
) -> None:
    """Trains `lm` until `optimizer.steps` updates are done; `skipjax.load(directory)` opens the result.

    A run that was killed at any moment and resumed gives exactly the losses and weights of an undisturbed one.

    Args:
      lm: the weights to start from (resuming takes those of the newest checkpoint). Its arrays are donated: it cannot
        be used afterwards.
      examples, shapes: from `tokenize` and `choose_shapes`.
      curriculum: what is trained.
      validation: examples whose losses, `curriculum.validated`, are computed every `run.eval_every` updates.
      sources: where model and data come from, as JSON; a resumed run must have the same.
      describe: writes skipjax.json for the model (with what it is trained for as `recorded`) into the directory; by
        default that of a whole model, `checkpoint.write_description`. Where only a part is trained, checkpoints hold
        only that part.
      report: takes lines for the user.
    Raises:
      ValueError: the directory is taken, settings differ from those of the run to resume, or the loss is not finite.
    """
    directory = Path(directory).absolute()
    settings = _settings(lm, curriculum, optimizer, run, examples, sources or {})
    check_directory(directory, resume)
    check_settings(directory, settings)
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / SETTINGS, settings)
    described = dataclasses.replace(lm, recorded=curriculum.recorded)
    if describe is None:
        checkpoint.write_description(described, directory, "float32")
    else:
        describe(described, directory)
    with checkpoint.open_manager(directory, keep=run.keep, use="train") as manager:
        trainer = _Trainer(lm, examples, shapes, curriculum, optimizer, run, manager, report)
        if trainer.progress.step >= optimizer.steps:
            report(f"{directory} has already reached step {trainer.progress.step} of {optimizer.steps}: nothing to do")
            return
        trainer.metrics = MetricsFile(directory, trainer.progress.step)
        try:
            trainer.run_steps(validation)
        finally:
            trainer.metrics.close()


def _settings(
    lm: LanguageModel,
    curriculum: Curriculum,
    optimizer: OptimizerSettings,
    run: RunSettings,
    examples: Examples,
    sources: dict[str, Any],
) -> dict[str, Any]:
    renamed = {"name": "optimizer"}
    return {
        **sources,
        "data_sha256": _digest(examples),
        "config": _as_json(lm.config.to_json()),
        "method": _as_json(curriculum.recorded.to_json()),
        **_as_json(dict(curriculum.settings)),
        "execution": lm.execution,
        **{renamed.get(name, name): value for name, value in dataclasses.asdict(optimizer).items()},
        **dataclasses.asdict(run),
    }


def _digest(examples: Examples) -> str:
    """Of all tokens: a file with the same name and other rows is other data."""
    digest = hashlib.sha256()
    for tokens in (*examples.prompts, *examples.targets):
        digest.update(len(tokens).to_bytes(4, "little") + tokens.tobytes())
    return digest.hexdigest()


def _as_json(value: Any) -> Any:
    """As it comes back from a JSON file: tuples become lists."""
    if isinstance(value, dict):
        return {name: _as_json(one) for name, one in value.items()}
    return [_as_json(one) for one in value] if isinstance(value, (list, tuple)) else value


class _Trainer:
    """One run: the state that changes while it goes on, and what it is made of."""

    metrics: MetricsFile

    def __init__(
        self,
        lm: LanguageModel,
        examples: Examples,
        shapes: Shapes,
        curriculum: Curriculum,
        optimizer: OptimizerSettings,
        run: RunSettings,
        manager: ocp.CheckpointManager,
        report: Callable[[str], None],
    ):
        self.config, self.examples, self.shapes, self.curriculum = lm.config, examples, shapes, curriculum
        self.optimizer, self.run, self.manager, self.report = optimizer, run, manager, report
        self.pad_id = lm.config.pad_id or 0
        self.progress = Progress()
        self.compiled: set[Any] = set()
        step = manager.latest_step()
        self.state = self._start(lm) if step is None else self._resume(lm, step)
        self._begin_window()

    def _start(self, lm: LanguageModel) -> TrainState:
        params = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), lm.params)
        return initial_state(params, self.optimizer, self.curriculum.trained)

    def _resume(self, lm: LanguageModel, step: int) -> TrainState:
        replaced, frozen = parted(lm.params, self.curriculum.trained)
        jax.tree.map(lambda leaf: leaf.delete(), replaced)  # no room for them beside those of the checkpoint
        stored, _ = parted(abstract_params(self.config), self.curriculum.trained)
        shapes, _ = parted(abstract_params(self.config, execution=lm.execution), self.curriculum.trained)
        state = jax.eval_shape(lambda params: initial_state(params, self.optimizer), shapes)
        items = checkpoint.restore_step(
            self.manager, step, {"params": stored, "optimizer": state.optimizer, "progress": None}
        )
        try:
            self.progress = Progress(**items["progress"])
        except TypeError as error:
            raise ValueError(f"checkpoint {str(self.manager.directory / str(step))!r} is damaged ({error})") from None
        params = items["params"]
        if "layers" in params and lm.execution == "scanned":
            params = stack_layers(params)
        return TrainState(params, items["optimizer"], frozen)

    def _begin_window(self) -> None:
        self.timed_tokens = 0
        self.not_timed = 0.0  # seconds of the window spent on compiling, validation and saving
        self.window_start = time.perf_counter()

    def run_steps(self, validation: Examples | None) -> None:
        progress, last = self.progress, self.optimizer.steps
        update_size = self.run.batch_size * self.run.accumulate
        order = batch_order(self.shapes, update_size, self.run.seed)
        for _ in range(progress.step):
            next(order)
        with tqdm(total=last, initial=progress.step, unit="step", disable=None, mininterval=0.5) as bar:
            while progress.step < last:
                shape, indices = next(order)
                batch = make_batch(self.examples, indices, self.shapes.shapes[shape], update_size, self.pad_id)
                objective, speedup = self.curriculum.draw(self.run.seed, progress.step)
                results = self._update(batch, objective)
                progress.step += 1
                progress.window.append([results["loss"], speedup, batch.columns, batch.real_tokens])
                self._after_update(results, validation, bar)
                bar.update()
        self._untimed(self.manager.wait_until_finished)

    def _options(self, objective: Objective, accumulate: int) -> StepOptions:
        return StepOptions(self.config, objective, self.run.dtype, self.run.rematerialise, accumulate)

    def _update(self, batch: Batch, objective: Objective) -> dict[str, jax.Array]:
        options = self._options(objective, self.run.accumulate)
        program = (options, batch.prompts.shape, batch.targets.shape)

        def update():
            self.state, results = train_step(self.state, batch, options, self.optimizer)
            return results

        if program in self.compiled:
            self.timed_tokens += batch.real_tokens
            return update()
        self.compiled.add(program)
        jax.block_until_ready(self.state)  # earlier steps are not to be counted as compiling
        return self._untimed(lambda: jax.block_until_ready(update()))

    def _untimed(self, work: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        result = work()
        self.not_timed += time.perf_counter() - start
        return result

    def _after_update(self, results: dict[str, jax.Array], validation: Examples | None, bar: Any) -> None:
        step, final = self.progress.step, self.progress.step == self.optimizer.steps
        rated, better = {}, False
        if validation is not None and (final or step % self.run.eval_every == 0):
            jax.block_until_ready(self.state)
            rated = self._untimed(lambda: self._validate(validation))
            better = self.progress.best is None or rated["validation_loss"] < self.progress.best
            if better:
                self.progress.best = rated["validation_loss"]
        if rated or final or step % self.run.log_every == 0:
            self._log(results, rated, bar)
        if better or final or step % self.run.save_every == 0:
            self._untimed(lambda: self._save(rated.get("validation_loss")))

    def _log(self, results: dict[str, jax.Array], rated: dict[str, Any], bar: Any) -> None:
        on_device, speedups, columns, real_tokens = zip(*self.progress.window, strict=True)
        losses = [float(loss) for loss in on_device]
        loss = sum(losses) / len(losses)
        step = self.progress.step
        if not math.isfinite(loss):
            raise ValueError(
                f"learning_rate must be lower: with {self.optimizer.learning_rate:g} the loss at step {step} is {loss}"
            )
        seconds = time.perf_counter() - self.window_start - self.not_timed
        rate = self.timed_tokens / seconds if self.timed_tokens else None
        line: dict[str, Any] = {
            "step": step,
            "loss": loss,
            "learning_rate": float(learning_rate_at(self.optimizer, step - 1)),
            "gradient_norm": float(results["gradient_norm"]),
            "tokens_per_second": rate,
            "padding": 1 - sum(real_tokens) / sum(columns),
        }
        if len(self.curriculum.objectives) > 1:
            line["speedup"] = speedups[-1]
            by_speedup: dict[float, list[float]] = {}
            for one, speedup in zip(losses, speedups, strict=True):
                by_speedup.setdefault(speedup, []).append(one)
            line["losses"] = {speedup_label(key): sum(of) / len(of) for key, of in sorted(by_speedup.items())}
        line |= rated
        self.metrics.write(line)
        shown = {"loss": f"{loss:.4f}", "tokens/s": "compiling" if rate is None else f"{rate:.0f}"}
        bar.set_postfix(shown, refresh=False)
        if bar.disable:  # no terminal: a plain line instead of a bar
            extra = f", validation {rated['validation_losses']}" if rated else ""
            self.report(f"step {step}/{self.optimizer.steps}: loss {loss:.4f}, {shown['tokens/s']} tokens/s{extra}")
        self.progress.window = []
        self._begin_window()

    def _validate(self, validation: Examples) -> dict[str, Any]:
        """Mean losses per target token by label, and the one loss that checkpoints are compared by."""
        shape = (
            bucket_sizes([len(prompt) for prompt in validation.prompts], 1)[0],
            bucket_sizes([len(target) for target in validation.targets], 1)[0],
        )
        losses = {}
        for label, objective in self.curriculum.validated.items():
            options, sums = self._options(objective, 1), []
            for first in range(0, len(validation), self.run.batch_size):
                indices = range(first, min(first + self.run.batch_size, len(validation)))
                batch = make_batch(validation, indices, shape, self.run.batch_size, self.pad_id)
                sums.append(loss_step(self.state.model, batch, options))
            losses[label] = sum(float(total) for total, _ in sums) / sum(float(tokens) for _, tokens in sums)
        rated = sum(weight * losses[label] for label, weight in self.curriculum.rated.items())
        return {"validation_loss": rated, "validation_losses": losses}

    def _save(self, validation_loss: float | None) -> None:
        self.progress.window = [[float(loss), *counts] for loss, *counts in self.progress.window]
        params = self.state.params
        checkpoint.save_step(
            self.manager,
            self.progress.step,
            checkpoint.unrolled(params) if "layers" in params else params,
            self.state.optimizer,
            dataclasses.asdict(self.progress),
            validation_loss,
        )

"""Speed and memory of decoding methods, measured in turn in one process and set against full depth."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from skipjax import checks
from skipjax.account import Exits, exit_columns, seconds_per_step
from skipjax.adaptive import AdaptiveThreshold
from skipjax.config import ModelConfig
from skipjax.generation import Generation, generate
from skipjax.language_model import LanguageModel
from skipjax.settings import Setting, against_full
from skipjax.tables import markdown


@dataclasses.dataclass(frozen=True)
class Workload:
    """What is run with every setting.

    Attributes:
      batch_sizes: one after the other.
      prompt_length: tokens of every prompt (of every source, for an encoder-decoder model).
      max_new_tokens: tokens to generate, all of them; at least 2, since the first needs no decode step.
      repeats: timed runs of each setting at each batch size.
    """

    batch_sizes: Sequence[int] = (1, 8)
    prompt_length: int = 64
    max_new_tokens: int = 64
    repeats: int = 5

    def __post_init__(self) -> None:
        if not self.batch_sizes:
            raise ValueError("batch_sizes must hold at least one number, got none")
        for size in self.batch_sizes:
            checks.integer("batch_size", size, 1)
        checks.integer("prompt_length", self.prompt_length, 1)
        checks.integer("max_new_tokens", self.max_new_tokens, 2)
        checks.integer("repeats", self.repeats, 1)

    def check(self, config: ModelConfig) -> None:
        """Raises ValueError if it does not fit a model; no weights need to exist."""
        longest = config.max_positions
        if longest is not None and self.prompt_length + self.max_new_tokens > longest:
            raise ValueError(
                f"prompt_length + max_new_tokens must be at most the model's {longest} positions,"
                f" got {self.prompt_length} + {self.max_new_tokens}"
            )


@dataclasses.dataclass(frozen=True)
class Spread:
    """A quantity over the repeats."""

    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One setting at one batch size, generating the full length.

    Attributes:
      setting: method and the speed-up asked for.
      num_layers: of the model's decoder.
      max_depth, min_depth: most and fewest layers of a decode step: of a schedule, or all and those that always run.
      batch_size, prompt_length, max_new_tokens: of each run; prompts all have the same length.
      prompt_ms, step_ms: milliseconds of the prompt pass and of one decode step (mean over the steps of a run; steps
        whose tokens were taken back count in the time only).
      tokens_per_second: generated tokens of all rows over the time of prompt pass and decode steps.
      measured_speedup: `step_ms` of full depth over that of this setting, round by round.
      target_speedup: layers / mean depth the method aims at.
      realised_speedup: layers / `mean_depth`.
      mean_depth: layers per generated token, token 0 included.
      exits: how tokens left before the last layer; in JSON its attributes stand beside those of the measurement.
      kv_cache_bytes: of the plan's cache, for the batch as padded to its bucket.
      kv_cache_share: of the bytes that a cache of all layers and positions takes.
      compile_seconds: spent compiling before the first run.
    """

    setting: Setting
    num_layers: int
    max_depth: int
    min_depth: int
    batch_size: int
    prompt_length: int
    max_new_tokens: int
    prompt_ms: Spread
    step_ms: Spread
    tokens_per_second: Spread
    measured_speedup: Spread
    target_speedup: float
    realised_speedup: float
    mean_depth: float
    exits: Exits
    kv_cache_bytes: int
    kv_cache_share: float
    compile_seconds: float

    def to_json(self) -> dict[str, Any]:
        """A flat object: medians under the attributes' names, [lowest, highest] under those names with "_range"."""
        flat: dict[str, Any] = self.setting.to_json()
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Spread):
                flat |= {field.name: value.median, f"{field.name}_range": [value.lowest, value.highest]}
            elif isinstance(value, Exits):
                flat |= value.to_json()
            elif field.name != "setting":
                flat[field.name] = value
        return flat


def measure(
    lm: LanguageModel, settings: Sequence[Setting], workload: Workload, *, progress: bool = False
) -> list[Measurement]:
    """Times full depth and each of `settings` on random prompts or sources, greedily and to the full length.

    For each batch size every setting first runs once, which compiles it and is not counted; then come `repeats` rounds
    of all settings in turn, so that whatever else the machine does meets all of them alike. An adaptive threshold
    learns from the first run, and all rounds start from what it learnt.

    Args:
      progress: show a bar with the time left, if standard error is a terminal.
    Returns:
      One measurement per batch size and setting, full depth first within each batch size.
    Raises:
      ValueError: a workload or method that does not fit the model.
    """
    from tqdm import tqdm

    workload.check(lm.config)
    settings = against_full(settings)
    for setting in settings:
        setting.method.check(lm.config)
    # Nobody reads the texts, so weights that were never trained to skip are as good as others.
    lm.warned.update(setting.method.resolve(workload.max_new_tokens).static() for setting in settings)
    measurements: list[Measurement] = []
    total = len(workload.batch_sizes) * len(settings) * (workload.repeats + 1)
    with tqdm(total=total, unit="run", disable=None if progress else True) as bar:
        for size in workload.batch_sizes:
            ids = np.random.default_rng(0).integers(0, lm.config.vocab_size, (size, workload.prompt_length))
            prompts = ids.tolist()

            def run(
                setting: Setting, estimator: AdaptiveThreshold | None = None, prompts: list[list[int]] = prompts
            ) -> Generation:
                out = generate(
                    *(lm, prompts, setting.method),
                    max_new_tokens=workload.max_new_tokens,
                    stop_at_eos=False,
                    adaptive_threshold=estimator,
                )
                bar.update()
                return out

            first = [run(setting) for setting in settings]
            rounds = [
                [run(setting, out.adaptive_threshold) for setting, out in zip(settings, first, strict=True)]
                for _ in range(workload.repeats)
            ]
            for index, setting in enumerate(settings):
                outs = [of_round[index] for of_round in rounds]
                full_outs = [of_round[0] for of_round in rounds]
                measurements.append(_measurement(lm, setting, workload, first[index], outs, full_outs))
    return measurements


def _measurement(
    lm: LanguageModel,
    setting: Setting,
    workload: Workload,
    first: Generation,
    outs: Sequence[Generation],
    full_outs: Sequence[Generation],
) -> Measurement:
    """Of one setting at one batch size, from its runs and those of full depth in the same rounds."""
    max_depth, min_depth = setting.depths(lm.config.num_layers)
    stats = [out.stats for out in outs]
    steps, full_steps = _step_seconds(lm, outs), _step_seconds(lm, full_outs)
    return Measurement(
        setting=setting,
        num_layers=lm.config.num_layers,
        max_depth=max_depth,
        min_depth=min_depth,
        batch_size=len(outs[0].lengths),
        prompt_length=workload.prompt_length,
        max_new_tokens=workload.max_new_tokens,
        prompt_ms=Spread.of([1000 * one.prompt_seconds for one in stats]),
        step_ms=Spread.of([1000 * seconds for seconds in steps]),
        tokens_per_second=Spread.of([one.tokens_per_second for one in stats]),
        measured_speedup=Spread.of([full / own for full, own in zip(full_steps, steps, strict=True)]),
        target_speedup=stats[0].target_speedup,
        realised_speedup=stats[0].realised_speedup,
        mean_depth=stats[0].mean_depth,
        exits=Exits.of(setting.method, outs[:1]),  # the others generated the same
        kv_cache_bytes=stats[0].kv_cache_bytes,
        kv_cache_share=stats[0].kv_cache_bytes / stats[0].full_kv_cache_bytes,
        compile_seconds=first.stats.compile_seconds,
    )


def _step_seconds(lm: LanguageModel, outs: Sequence[Generation]) -> list[float]:
    seconds = [seconds_per_step(out, lm.config) for out in outs]
    return [one for one in seconds if one is not None]  # at least two tokens are generated, so it is all of them


def environment(lm: LanguageModel) -> dict[str, Any]:
    """What the numbers depend on besides the request: the model's size and form, the device, the version of JAX."""
    device = jax.devices()[0]
    return {
        "num_layers": lm.config.num_layers,
        "num_parameters": lm.num_parameters,
        "dtype": lm.dtype.name,
        "execution": lm.execution,
        "platform": device.platform,
        "device": device.device_kind,
        "jax": jax.__version__,
    }


def table(measurements: Sequence[Measurement]) -> str:
    """Measurements as a Markdown table: medians, and lowest to highest of the quantities that speed-ups rest on; with
    columns about exits if any setting has them."""
    header = ["method", "batch", "depths", "prompt ms", "step ms", "(range)", "tokens/s", "target", "realised"]
    about_exits, exit_cells = exit_columns([m.exits for m in measurements])
    rows = []
    for m, cells in zip(measurements, exit_cells, strict=True):
        rows.append(
            [
                m.setting.label,
                str(m.batch_size),
                m.setting.depths_label(m.num_layers),
                f"{m.prompt_ms.median:.1f}",
                f"{m.step_ms.median:.2f}",
                f"{m.step_ms.lowest:.2f}-{m.step_ms.highest:.2f}",
                f"{m.tokens_per_second.median:.0f}",
                f"{m.target_speedup:.2f}x",
                f"{m.realised_speedup:.2f}x",
                f"{m.measured_speedup.median:.2f}x",
                f"{m.measured_speedup.lowest:.2f}-{m.measured_speedup.highest:.2f}",
                *cells,
                f"{m.kv_cache_bytes / 1e6:.2f}",
                f"{m.kv_cache_share:.0%}",
                f"{m.compile_seconds:.1f}",
            ]
        )
    return markdown([*header, "measured", "(range)", *about_exits, "KV MB", "of full", "compile s"], rows)

"""Speed and memory of decoding methods, measured in turn in one process and set against full depth."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from skipjax import checks
from skipjax.config import ModelConfig
from skipjax.generation import Stats, generate
from skipjax.language_model import LanguageModel
from skipjax.settings import Setting, against_full
from skipjax.tables import markdown


@dataclasses.dataclass(frozen=True)
class Workload:
    """What is run with every setting.

    Attributes:
      batch_sizes: one after the other.
      prompt_length: tokens of every prompt.
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
        if self.prompt_length + self.max_new_tokens > config.max_positions:
            raise ValueError(
                f"prompt_length + max_new_tokens must be at most the model's {config.max_positions} positions,"
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
      max_depth, min_depth: layers at the first decode step and at the end of the schedule.
      batch_size, prompt_length, max_new_tokens: of each run; prompts all have the same length.
      prompt_ms, step_ms: milliseconds of the prompt pass and of one decode step (mean over the steps of a run).
      tokens_per_second: generated tokens of all rows over the time of prompt pass and decode steps.
      measured_speedup: `step_ms` of full depth over that of this setting, round by round.
      target_speedup: layers / mean depth the method aims at.
      realised_speedup: layers / `mean_depth`.
      mean_depth: layers per generated token, token 0 included.
      kv_cache_bytes: of the plan's cache, for the batch as padded to its bucket.
      kv_cache_share: of the bytes that a cache of all layers and positions takes.
      compile_seconds: spent compiling before the first run.
    """

    setting: Setting
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
    kv_cache_bytes: int
    kv_cache_share: float
    compile_seconds: float

    def to_json(self) -> dict[str, Any]:
        """A flat object: medians under the attributes' names, [lowest, highest] under those names with "_range"."""
        flat: dict[str, Any] = {"method": self.setting.name, "speedup": self.setting.speedup}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Spread):
                flat |= {field.name: value.median, f"{field.name}_range": [value.lowest, value.highest]}
            elif field.name != "setting":
                flat[field.name] = value
        return flat


def measure(
    lm: LanguageModel, settings: Sequence[Setting], workload: Workload, *, progress: bool = False
) -> list[Measurement]:
    """Times full depth and each of `settings` on random prompts, greedily and to the full length.

    For each batch size every setting first runs once, which compiles it and is not counted; then come `repeats` rounds
    of all settings in turn, so that whatever else the machine does meets all of them alike.

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
    lm.warned.update(setting.method.resolve(workload.max_new_tokens) for setting in settings)
    measurements: list[Measurement] = []
    total = len(workload.batch_sizes) * len(settings) * (workload.repeats + 1)
    with tqdm(total=total, unit="run", disable=None if progress else True) as bar:
        for size in workload.batch_sizes:
            ids = np.random.default_rng(0).integers(0, lm.config.vocab_size, (size, workload.prompt_length))
            prompts = ids.tolist()

            def run(setting: Setting, prompts: list[list[int]] = prompts) -> Stats:
                out = generate(lm, prompts, setting.method, max_new_tokens=workload.max_new_tokens, stop_at_eos=False)
                bar.update()
                return out.stats

            first = [run(setting) for setting in settings]
            rounds = [[run(setting) for setting in settings] for _ in range(workload.repeats)]
            full_steps = [stats[0].decode_seconds for stats in rounds]
            for index, setting in enumerate(settings):
                own = [stats[index] for stats in rounds]
                max_depth, min_depth = setting.depths(lm.config.num_layers)
                ratios = [full / stats.decode_seconds for full, stats in zip(full_steps, own, strict=True)]
                measurements.append(
                    Measurement(
                        setting=setting,
                        max_depth=max_depth,
                        min_depth=min_depth,
                        batch_size=size,
                        prompt_length=workload.prompt_length,
                        max_new_tokens=workload.max_new_tokens,
                        prompt_ms=Spread.of([1000 * stats.prompt_seconds for stats in own]),
                        step_ms=Spread.of([1000 * stats.decode_seconds / stats.decode_steps for stats in own]),
                        tokens_per_second=Spread.of([stats.tokens_per_second for stats in own]),
                        measured_speedup=Spread.of(ratios),
                        target_speedup=own[0].target_speedup,
                        realised_speedup=own[0].realised_speedup,
                        mean_depth=own[0].mean_depth,
                        kv_cache_bytes=own[0].kv_cache_bytes,
                        kv_cache_share=own[0].kv_cache_bytes / own[0].full_kv_cache_bytes,
                        compile_seconds=first[index].compile_seconds,
                    )
                )
    return measurements


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
    """Measurements as a Markdown table: medians, and lowest to highest of the quantities that speed-ups rest on."""
    header = ["method", "batch", "depths", "prompt ms", "step ms", "(range)", "tokens/s", "target", "realised"]
    rows = []
    for m in measurements:
        rows.append(
            [
                m.setting.label,
                str(m.batch_size),
                f"{m.max_depth}/{m.min_depth}",
                f"{m.prompt_ms.median:.1f}",
                f"{m.step_ms.median:.2f}",
                f"{m.step_ms.lowest:.2f}-{m.step_ms.highest:.2f}",
                f"{m.tokens_per_second.median:.0f}",
                f"{m.target_speedup:.2f}x",
                f"{m.realised_speedup:.2f}x",
                f"{m.measured_speedup.median:.2f}x",
                f"{m.measured_speedup.lowest:.2f}-{m.measured_speedup.highest:.2f}",
                f"{m.kv_cache_bytes / 1e6:.2f}",
                f"{m.kv_cache_share:.0%}",
                f"{m.compile_seconds:.1f}",
            ]
        )
    return markdown([*header, "measured", "(range)", "KV MB", "of full", "compile s"], rows)

"""Speed and memory of decoding methods, measured in turn in one process and set against full depth, against what the
memory allows, and against transformers."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from skipjax import checks
from skipjax.account import Exits, seconds_per_step
from skipjax.bandwidth import Bandwidth
from skipjax.config import ModelConfig
from skipjax.generation import Generation, generate
from skipjax.language_model import LanguageModel
from skipjax.methods import Free, Full, StaticExit
from skipjax.rivals import ORDINARY, Rival, Transformers
from skipjax.settings import Setting, against_full
from skipjax.traffic import DecodeTraffic, Traffic


@dataclasses.dataclass(frozen=True)
class Workload:
    """What every method runs.

    Attributes:
      batch_size: prompts at a time.
      prompt_length: tokens of every prompt (of every source, for an encoder-decoder model).
      max_new_tokens: tokens to generate, all of them; at least 2, since the first needs no decode step.
    """

    batch_size: int = 1
    prompt_length: int = 64
    max_new_tokens: int = 64

    def __post_init__(self) -> None:
        checks.integer("batch_size", self.batch_size, 1)
        checks.integer("prompt_length", self.prompt_length, 1)
        checks.integer("max_new_tokens", self.max_new_tokens, 2)

    def check(self, config: ModelConfig) -> None:
        """Raises ValueError if it does not fit a model; no weights need to exist."""
        longest = config.max_positions
        if longest is not None and self.prompt_length + self.max_new_tokens > longest:
            raise ValueError(
                f"prompt_length + max_new_tokens must be at most the model's {longest} positions,"
                f" got {self.prompt_length} + {self.max_new_tokens}"
            )

    def prompts(self, config: ModelConfig) -> np.ndarray:
        """Random tokens, int64 [B, P]."""
        size = (self.batch_size, self.prompt_length)
        return np.random.default_rng(0).integers(0, config.vocab_size, size)


def workloads(
    batch_sizes: Sequence[int], prompt_lengths: Sequence[int], max_new_tokens: Sequence[int]
) -> list[Workload]:
    """Every combination. Raises ValueError for a number that is too small."""
    return [
        Workload(batch, prompt, tokens)
        for prompt in prompt_lengths
        for tokens in max_new_tokens
        for batch in batch_sizes
    ]


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
class Depths:
    """What only skipjax's own methods have to tell.

    Attributes:
      max_depth, min_depth: most and fewest layers of a decode step: of a schedule, or all and those that always run.
      mean_depth: layers per generated token, token 0 included.
      target_speedup: layers / mean depth the method aims at.
      realised_speedup: layers / `mean_depth`.
      exits: how tokens left before the last layer; in JSON its attributes stand beside the others.
      kv_cache_bytes: of the plan's cache, for the batch as padded to its bucket.
      kv_cache_share: of the bytes that a cache of all layers and positions takes.
      compile_seconds: spent compiling before the first run.
    """

    max_depth: int
    min_depth: int
    mean_depth: float
    target_speedup: float
    realised_speedup: float
    exits: Exits
    kv_cache_bytes: int
    kv_cache_share: float
    compile_seconds: float


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One method at one workload, generating the full length. Ratios are taken round by round.

    Attributes:
      setting: method and the speed-up asked for, or how transformers generates.
      workload: what was run.
      num_layers: of the model's decoder.
      prompt_ms, step_ms: milliseconds of the prompt pass and of one decode step (mean over the steps of a run; steps
        whose tokens were taken back count in the time only).
      tokens_per_second: generated tokens of all rows over the time of prompt pass and decode steps.
      measured_speedup: `step_ms` of full depth over that of this method.
      weight_bytes_per_step, cache_bytes_per_step: what a decode step must read, mean over the steps; None for drafts
        by transformers.
      bandwidth: bytes per second that memory was read at in the same rounds.
      bound_share: the time that reading those bytes from memory takes, of the time the steps took; None where they are.
        A model that fits into the caches can take less.
      same_tokens: share of the tokens that are those of full depth.
      prompt_against, step_against, throughput_against: how many times as fast as ordinary decoding by transformers;
        None if that was not run.
      depths: None for transformers; in JSON its attributes stand beside those of the measurement.
    """

    setting: Setting | Rival
    workload: Workload
    num_layers: int
    prompt_ms: Spread
    step_ms: Spread
    tokens_per_second: Spread
    measured_speedup: Spread
    weight_bytes_per_step: int | None
    cache_bytes_per_step: int | None
    bandwidth: Spread
    bound_share: Spread | None
    same_tokens: float
    prompt_against: Spread | None
    step_against: Spread | None
    throughput_against: Spread | None
    depths: Depths | None

    def to_json(self) -> dict[str, Any]:
        """A flat object: medians under the attributes' names, [lowest, highest] under those names with "_range" where
        there are any."""
        flat: dict[str, Any] = {**self.setting.to_json(), **dataclasses.asdict(self.workload)}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in ("setting", "workload", "depths"):
                continue
            if isinstance(value, Spread):
                flat |= {field.name: value.median, f"{field.name}_range": [value.lowest, value.highest]}
            else:
                flat[field.name] = value
        for field in dataclasses.fields(Depths):
            if field.name != "exits":
                flat[field.name] = None if self.depths is None else getattr(self.depths, field.name)
        exits = Exits(None, None, None, None, None) if self.depths is None else self.depths.exits
        return flat | exits.to_json()


class _Run(NamedTuple):
    """One timed generation: tokens int32 [B, T], seconds, and of our own methods the result."""

    tokens: np.ndarray
    prompt_seconds: float
    decode_seconds: float
    step_seconds: float
    generation: Generation | None

    @property
    def seconds(self) -> float:
        return self.prompt_seconds + self.decode_seconds


def measure(
    lm: LanguageModel,
    settings: Sequence[Setting],
    workloads: Sequence[Workload],
    *,
    repeats: int = 5,
    against: Transformers | None = None,
    progress: bool = False,
) -> list[Measurement]:
    """Times full depth and each of `settings` on random prompts or sources, greedily and to the full length.

    For each workload every method first runs once, which compiles it and is not counted; then come `repeats` rounds of
    all in turn, and of reading memory, so that whatever else the machine does meets all of them alike. An adaptive
    threshold learns from the first run, and all rounds start from what it learnt. The model is left as it was, but for
    the programs compiled for it.

    Args:
      against: the same model in transformers, to be timed in the same rounds.
      progress: show a bar with the time left, if standard error is a terminal.
    Returns:
      One measurement per workload and method, full depth first and transformers last within each workload.
    Raises:
      ValueError: a workload or method that does not fit the model.
    """
    from tqdm import tqdm

    checks.integer("repeats", repeats, 1)
    if not workloads:
        raise ValueError("workloads must hold at least one, got none")
    for workload in workloads:
        workload.check(lm.config)
    settings = against_full(settings)
    for setting in settings:
        setting.method.check(lm.config)
    # Nobody reads the texts, so weights that were never trained to skip are as good as others.
    known = {setting.method.resolve(one.max_new_tokens).static() for setting in settings for one in workloads}
    lm = dataclasses.replace(lm, warned=lm.warned | known)
    bandwidth = Bandwidth(lm.dtype)
    draft_layers = _draft_layers(settings, lm.config.num_layers)
    measurements: list[Measurement] = []
    contenders: dict[Workload, list[Setting | Rival]] = {
        workload: [*settings, *(() if against is None else against.rivals(workload.batch_size, draft_layers))]
        # A program with room for more tokens would serve a smaller budget too, with a larger cache than its plan's.
        for workload in sorted(workloads, key=lambda one: one.max_new_tokens)
    }
    total = sum(map(len, contenders.values())) * (repeats + 1)
    with tqdm(total=total, unit="run", disable=None if progress else True) as bar:
        for workload, these in contenders.items():

            def run(contender: Setting | Rival, after: Generation | None = None, workload: Workload = workload) -> _Run:
                bar.update()
                if isinstance(contender, Setting):
                    return _run_own(lm, contender, workload, after)
                assert against is not None, "rivals come from there"
                return _run_rival(against, contender, workload, workload.prompts(lm.config))

            first = [run(contender) for contender in these]
            rounds, speeds = [], []
            for _ in range(repeats):
                speeds.append(bandwidth.measure())
                rounds.append([run(one, before.generation) for one, before in zip(these, first, strict=True)])
            columns = list(zip(*rounds, strict=True))
            ordinary = columns[these.index(ORDINARY)] if ORDINARY in these else None
            for contender, before, runs in zip(these, first, columns, strict=True):
                measurements.append(_measurement(lm, contender, workload, before, runs, columns[0], ordinary, speeds))
    return sorted(measurements, key=lambda one: list(workloads).index(one.workload))


def _draft_layers(settings: Sequence[Setting], num_layers: int) -> int | None:
    """After how many layers the first method with a single exit leaves: transformers can draft with the same."""
    single = [setting.method for setting in settings if isinstance(setting.method, Free | StaticExit)]
    return next((layers[0] for method in single if (layers := method.exit_layers(num_layers))), None)


def _run_own(lm: LanguageModel, setting: Setting, workload: Workload, after: Generation | None) -> _Run:
    out = generate(
        *(lm, workload.prompts(lm.config).tolist(), setting.method),
        max_new_tokens=workload.max_new_tokens,
        stop_at_eos=False,
        adaptive_threshold=None if after is None else after.adaptive_threshold,
    )
    seconds = seconds_per_step(out, lm.config)
    assert seconds is not None, "at least two tokens take a step"
    return _Run(out.tokens, out.stats.prompt_seconds, out.stats.decode_seconds, seconds, out)


def _run_rival(against: Transformers, rival: Rival, workload: Workload, prompts: np.ndarray) -> _Run:
    """Its prompt pass is timed as a generation of one token, and the steps as what a whole one takes longer."""
    _, prompt_seconds = against.generate(ORDINARY, prompts, 1)
    tokens, seconds = against.generate(rival, prompts, workload.max_new_tokens)
    rest = max(seconds - prompt_seconds, 1e-9)  # both are measured, so of a tiny model it may come out negative
    return _Run(tokens, prompt_seconds, rest, rest / (workload.max_new_tokens - 1), None)


def _measurement(
    lm: LanguageModel,
    contender: Setting | Rival,
    workload: Workload,
    first: _Run,
    runs: Sequence[_Run],
    full: Sequence[_Run],
    ordinary: Sequence[_Run] | None,
    speeds: Sequence[float],
) -> Measurement:
    """Of one method at one workload, from its runs, those of full depth and of transformers in the same rounds, and the
    bytes per second at which memory was read there."""
    traffic, share = _traffic(lm, contender, workload, runs[0]), None
    steps = runs[0].decode_seconds / runs[0].step_seconds
    if traffic is not None:
        least = [traffic.total / speed for speed in speeds]
        share = Spread.of([seconds / run.decode_seconds for seconds, run in zip(least, runs, strict=True)])
    depths = None
    if isinstance(contender, Setting) and first.generation is not None and runs[0].generation is not None:
        depths = _depths(lm, contender, first.generation, runs[0].generation)
    return Measurement(
        setting=contender,
        workload=workload,
        num_layers=lm.config.num_layers,
        prompt_ms=Spread.of([1000 * one.prompt_seconds for one in runs]),
        step_ms=Spread.of([1000 * one.step_seconds for one in runs]),
        tokens_per_second=Spread.of([one.tokens.size / one.seconds for one in runs]),
        measured_speedup=_times_as_fast("step_seconds", runs, full),
        weight_bytes_per_step=None if traffic is None else round(traffic.weights / steps),
        cache_bytes_per_step=None if traffic is None else round(traffic.cache / steps),
        bandwidth=Spread.of(speeds),
        bound_share=share,
        same_tokens=float(np.mean(runs[0].tokens == full[0].tokens)),
        prompt_against=None if ordinary is None else _times_as_fast("prompt_seconds", runs, ordinary),
        step_against=None if ordinary is None else _times_as_fast("step_seconds", runs, ordinary),
        throughput_against=None if ordinary is None else _times_as_fast("seconds", runs, ordinary),
        depths=depths,
    )


def _times_as_fast(seconds: str, runs: Sequence[_Run], others: Sequence[_Run]) -> Spread:
    """The seconds of a kind that others took over those of the runs in the same rounds."""
    return Spread.of([getattr(other, seconds) / getattr(run, seconds) for run, other in zip(runs, others, strict=True)])


def _traffic(lm: LanguageModel, contender: Setting | Rival, workload: Workload, run: _Run) -> Traffic | None:
    """What the decode steps of a run must read."""
    reads = DecodeTraffic(lm.config, lm.dtype, workload.batch_size, workload.prompt_length)
    if run.generation is not None and isinstance(contender, Setting):
        return reads.realised(contender.method, run.generation)
    if contender != ORDINARY:
        return None
    return reads.plan(Full().plan(lm.config.num_layers, workload.max_new_tokens - 1))


def _depths(lm: LanguageModel, setting: Setting, first: Generation, out: Generation) -> Depths:
    max_depth, min_depth = setting.depths(lm.config.num_layers)
    stats = out.stats
    return Depths(
        max_depth=max_depth,
        min_depth=min_depth,
        mean_depth=stats.mean_depth,
        target_speedup=stats.target_speedup,
        realised_speedup=stats.realised_speedup,
        exits=Exits.of(setting.method, [out]),  # the other rounds generated the same
        kv_cache_bytes=stats.kv_cache_bytes,
        kv_cache_share=stats.kv_cache_bytes / stats.full_kv_cache_bytes,
        compile_seconds=first.stats.compile_seconds,
    )


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

"""Generation from the user's side: prompts in, texts and an account of the cost out."""

from __future__ import annotations

import collections
import dataclasses
import time
import warnings
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from skipjax import checks, programs
from skipjax.config import ModelConfig
from skipjax.language_model import LanguageModel, checked_model
from skipjax.methods import Full, Method, checked
from skipjax.plan import Plan
from skipjax.prompts import Prompt, encode_prompts, pad_left, pad_token
from skipjax.sampling import Sampling, SamplingNumbers


@dataclasses.dataclass(frozen=True)
class Stats:
    """What a generation cost. Speed-ups are kept apart: target (asked for), realised (layers of the tokens actually
    generated) and measured (divide `decode_seconds` of two runs of the same length).

    Attributes:
      num_layers: layers of the decoder.
      target_speedup: layers / midpoint of the schedule's two depths.
      mean_depth: layers per generated token, pads excluded, token 0 (from the full-depth prompt pass) included.
      realised_speedup: num_layers / mean_depth.
      compile_seconds: spent compiling in this call; 0 if everything had been compiled before.
      prompt_seconds, decode_seconds: wall-clock time of the prompt pass and of all decode steps.
      decode_steps: steps run, of the whole batch.
      tokens_per_second: generated tokens of all rows / (prompt_seconds + decode_seconds).
      kv_cache_bytes: of the plan's cache, for the batch as padded to its bucket.
      full_kv_cache_bytes: what a cache of all layers and positions would take for the same batch and length.
    """

    num_layers: int
    target_speedup: float
    mean_depth: float
    realised_speedup: float
    compile_seconds: float
    prompt_seconds: float
    decode_seconds: float
    decode_steps: int
    tokens_per_second: float
    kv_cache_bytes: int
    full_kv_cache_bytes: int


@dataclasses.dataclass(frozen=True)
class Generation:
    """The result of `generate`; arrays are numpy.

    Attributes:
      tokens: int32 [B, T], without the prompt; the end-of-sequence token kept once, then pads. T is `max_new_tokens`.
      lengths: int32 [B], tokens of each row, the end-of-sequence token counted.
      depths: int32 [B, T], decoder layers run to produce each token; 0 on pads.
      confidences: float32 [B, T], shallow confidence of each token; NaN where the method has none.
      texts: decoded tokens without special ones; None without a tokenizer.
      finish_reasons: "eos" or "length" per row.
      stats: what it cost.
    """

    tokens: np.ndarray
    lengths: np.ndarray
    depths: np.ndarray
    confidences: np.ndarray
    texts: list[str] | None
    finish_reasons: list[str]
    stats: Stats


def generate(
    lm: LanguageModel,
    prompts: Sequence[Prompt],
    method: Method | None = None,
    *,
    max_new_tokens: int = 64,
    sampling: Sampling | None = None,
    stop_at_eos: bool = True,
) -> Generation:
    """Continues a batch of prompts.

    The first call for a (batch bucket, prompt bucket, method) compiles; later ones with other prompts, sampling
    numbers, seeds or smaller token budgets do not (for a SkipDecode without a horizon a new budget is a new schedule).

    Args:
      lm: from `load`.
      prompts: texts, or lists of token ids (then no tokenizer is needed), of any lengths.
      method: how deep to decode; `Full()` if left out.
      max_new_tokens: tokens to generate at most.
      sampling: greedy if left out.
      stop_at_eos: False generates the full length (for benchmarks).
    Raises:
      ValueError: for a bad argument, a prompt without tokens (a tokenizer that begins every text makes "" one), or
        prompt + max_new_tokens beyond the model's positions.
    """
    job = _Job.prepare(lm, prompts, method, max_new_tokens, sampling, stop_at_eos)
    started = time.perf_counter()
    state = jax.block_until_ready(job.prefill())
    prompt_seconds = time.perf_counter() - started
    started = time.perf_counter()
    state = jax.block_until_ready(job.decode(state, max_new_tokens - 1))
    decode_seconds = time.perf_counter() - started
    return job.result(state, prompt_seconds, decode_seconds)


def stream(
    lm: LanguageModel,
    prompt: Prompt,
    method: Method | None = None,
    *,
    max_new_tokens: int = 64,
    sampling: Sampling | None = None,
    stop_at_eos: bool = True,
) -> Iterator[str]:
    """Yields the text of one prompt's continuation in pieces as they are generated; joined they are `generate`'s text.

    Arguments and errors as in `generate`; the programs are shared with it. Needs a tokenizer.
    """
    tokenizer = checked_model(lm).tokenizer
    if tokenizer is None:
        raise ValueError("stream needs a tokenizer, and this checkpoint has none: use generate with token ids")
    job = _Job.prepare(lm, [prompt], method, max_new_tokens, sampling, stop_at_eos)
    return _pieces(job, tokenizer.stream())


def _pieces(job: _Job, text: Any) -> Iterator[str]:
    state = job.prefill()
    for step in range(job.max_new_tokens):
        if piece := text.push(int(state.tokens[0, step])):
            yield piece
        if bool(state.finished[0]) or step == job.max_new_tokens - 1:
            break
        state = job.decode(state, step + 1)
    if piece := text.flush():
        yield piece


@dataclasses.dataclass(frozen=True)
class _Job:
    """A checked request with its programs compiled: static plan, padded arrays, and how to read the outcome."""

    lm: LanguageModel
    method: Method
    plan: Plan
    rows: int
    prompts: np.ndarray  # int32 [B, P], left-padded, B and P rounded up to their buckets
    request: programs.Request
    max_new_tokens: int
    compile_seconds: float
    run_prefill: Any
    run_decode: Any

    @classmethod
    def prepare(
        cls,
        lm: LanguageModel,
        prompts: Sequence[Prompt],
        method: Method | None,
        max_new_tokens: int,
        sampling: Sampling | None,
        stop_at_eos: bool,
    ) -> _Job:
        config = checked_model(lm).config
        method = checked(method, config.num_layers)
        sampling = Sampling() if sampling is None else sampling
        max_new_tokens = checks.integer("max_new_tokens", max_new_tokens, 1)
        if not isinstance(sampling, Sampling):
            raise ValueError(f"sampling must be a Sampling(...), got {sampling!r}")
        rows = encode_prompts(lm, prompts, max_new_tokens)
        resolved = method.resolve(max_new_tokens)
        warn_if_untrained(lm, resolved)
        padded, padding = pad_left(rows, pad_token(config))
        request = _request(config, rows, padding, sampling, stop_at_eos)
        plan, compiled, compile_seconds = _programs(lm, resolved, max_new_tokens, padded, request)
        return cls(lm, resolved, plan, len(rows), padded, request, max_new_tokens, compile_seconds, *compiled)

    def prefill(self) -> programs.DecodeState:
        return self.run_prefill(self.lm.params, self.prompts, self.request)

    def decode(self, state: programs.DecodeState, stop: int) -> programs.DecodeState:
        return self.run_decode(self.lm.params, state, self.request, np.int32(stop))

    def result(self, state: programs.DecodeState, prompt_seconds: float, decode_seconds: float) -> Generation:
        """Arrays of exactly `rows` rows and `max_new_tokens` columns, depths from the plan, and the account."""
        config = self.lm.config
        tokens = np.asarray(state.tokens)[: self.rows, : self.max_new_tokens]
        ended = np.isin(tokens, np.asarray(self.request.eos_ids))
        lengths = np.where(ended.any(axis=1), ended.argmax(axis=1) + 1, self.max_new_tokens).astype(np.int32)
        depth_of_column = np.array([config.num_layers, *self.plan.depths], np.int32)[: self.max_new_tokens]
        real = np.arange(self.max_new_tokens) < lengths[:, None]
        depths = np.where(real, depth_of_column, 0).astype(np.int32)
        mean_depth = float(depths.sum() / real.sum())
        seconds = prompt_seconds + decode_seconds
        batch, length = self.prompts.shape
        position_bytes = 2 * batch * config.num_kv_heads * config.head_size * self.lm.dtype.itemsize
        stats = Stats(
            num_layers=config.num_layers,
            target_speedup=self.method.target_speedup(config.num_layers),
            mean_depth=mean_depth,
            realised_speedup=config.num_layers / mean_depth,
            compile_seconds=self.compile_seconds,
            prompt_seconds=prompt_seconds,
            decode_seconds=decode_seconds,
            decode_steps=int(state.step),
            tokens_per_second=float(real.sum() / seconds),
            kv_cache_bytes=sum(self.plan.cache_lengths(length)) * position_bytes,
            full_kv_cache_bytes=config.num_layers * (length + self.plan.steps) * position_bytes,
        )
        texts = None
        if self.lm.tokenizer is not None:
            texts = [self.lm.tokenizer.decode(row[:n].tolist()) for row, n in zip(tokens, lengths, strict=True)]
        reasons = ["eos" if row.any() else "length" for row in ended]
        confidences = np.full(tokens.shape, np.nan, np.float32)
        return Generation(tokens, lengths, depths, confidences, texts, reasons, stats)


def _request(
    config: ModelConfig, rows: list[list[int]], padding: np.ndarray, sampling: Sampling, stop_at_eos: bool
) -> programs.Request:
    fill = len(padding) - len(rows)
    seen: collections.Counter[int] = collections.Counter()
    hashes, occurrences = [], []
    for row in rows:
        hashes.append(zlib.crc32(np.asarray(row, np.int32).tobytes()))
        occurrences.append(seen[hashes[-1]])
        seen[hashes[-1]] += 1
    numbers = SamplingNumbers(
        temperature=_dynamic(sampling.temperature, np.float32),
        top_p=_dynamic(sampling.top_p, np.float32),
        top_k=_dynamic(sampling.top_k, np.int32),
        seed=_dynamic(sampling.seed, np.uint32),
        prompt_hashes=_dynamic(hashes + [0] * fill, np.uint32),
        occurrences=_dynamic(occurrences + [0] * fill, np.uint32),
    )
    ends = config.eos_ids if config.eos_ids else (-1,)
    return programs.Request(
        padding=_dynamic(padding, np.int32),
        rows=_dynamic(len(rows), np.int32),
        numbers=numbers,
        eos_ids=_dynamic(ends if stop_at_eos else [-1] * len(ends), np.int32),
        pad_id=_dynamic(pad_token(config), np.int32),
    )


def _dynamic(value: Any, dtype: Any) -> Any:
    """A program's argument as numpy: making it with jax.numpy would dispatch an operation, and first compile it."""
    return np.asarray(value, dtype)


def _programs(
    lm: LanguageModel, method: Method, max_new_tokens: int, prompts: np.ndarray, request: programs.Request
) -> tuple[Plan, tuple[Any, Any], float]:
    """Plan and programs for at least `max_new_tokens`, compiled now if no earlier call's are large enough."""
    same = (method, prompts.shape, request.eos_ids.shape)
    fitting = [key for key in lm.programs if key[:-1] == same and key[-1] >= max_new_tokens]
    if fitting:
        return (*lm.programs[min(fitting, key=lambda key: key[-1])], 0.0)
    started = time.perf_counter()
    plan = method.plan(lm.config.num_layers, max_new_tokens - 1)
    prefill = programs.prefill.lower(lm.config, plan, lm.params, prompts, request)
    state = prefill.out_info
    decode = programs.decode.lower(lm.config, plan, prompts.shape[1], lm.params, state, request, np.int32(plan.steps))
    compiled = (prefill.compile(), decode.compile())
    lm.programs[(*same, max_new_tokens)] = (plan, compiled)
    return plan, compiled, time.perf_counter() - started


def warn_if_untrained(lm: LanguageModel, method: Method) -> None:
    """Warns, once per model and method, when weights were not trained for the depths they are about to run at."""
    if isinstance(method, Full) or method in lm.warned:
        return
    if lm.recorded is not None and lm.recorded.covers(method, lm.config.num_layers):
        return
    lm.warned.add(method)
    known = "records no schedule" if lm.recorded is None else f"was trained for {lm.recorded.describe()}"
    warnings.warn(
        f"this checkpoint {known}, not for {method}: skipping layers that were never trained to be skipped usually"
        f" ruins the text. Fine-tune it first (skipjax train skipdecode).",
        UserWarning,
        stacklevel=4,
    )

"""Generation from the user's side: prompts in, texts and an account of the cost out."""

from __future__ import annotations

import dataclasses
import time
import warnings
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from skipjax import checks, programs
from skipjax.adaptive import AdaptiveThreshold
from skipjax.config import ModelConfig
from skipjax.decoding.cached_decoder import Source
from skipjax.decoding.request import Outcome, Request
from skipjax.decoding.strategy import Strategy
from skipjax.language_model import LanguageModel, checked_model
from skipjax.methods import Free, Full, Method, SkipDecode, checked
from skipjax.prompts import Part, Prompt, encode_prompts, occurrences_of, pad_left, pad_token
from skipjax.sampling import Sampling, SamplingNumbers


@dataclasses.dataclass(frozen=True)
class Stats:
    """What a generation cost. Speed-ups are kept apart: target (asked for), realised (layers of the tokens actually
    generated) and measured (divide `decode_seconds` of two runs of the same length).

    Attributes:
      num_layers: layers of the decoder.
      target_speedup: layers / midpoint of the schedule's two depths, or / shallow layers where confidence decides.
      mean_depth: layers per generated token, pads excluded; a decoder-only model's token 0 comes from the full-depth
        prompt pass and counts. With `Free` it is the sequential depth: the deep layers of exited tokens run as well,
        but many at once.
      realised_speedup: num_layers / mean_depth.
      compile_seconds: spent compiling in this call; 0 if everything had been compiled before.
      prompt_seconds, decode_seconds: wall-clock time of the prompt pass and of all decode steps.
      decode_steps: steps run, of the whole batch (with `Free` shallow ones).
      tokens_per_second: generated tokens of all rows / (prompt_seconds + decode_seconds).
      kv_cache_bytes: of the plan's cache, for the batch as padded to its bucket.
      full_kv_cache_bytes: what a cache of all layers and positions would take for the same batch and length. Both count
        what an encoder-decoder model keeps of the source.
      exits: int [B], tokens of each row that left before the last layer.
      exit_share: of all generated tokens.
      deep_passes: with `Free`, runs of the deep layers over buffered positions; else None.
      tokens_per_deep_pass: positions of a row computed by such a pass, mean over rows and passes; None without any.
      acceptance_rate: share of exited tokens that stood when they were checked (`Free` with verify or rollback; there
        with those never checked); None where none was to be.
      threshold: the confidence threshold used; None for methods without.
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
    exits: np.ndarray
    exit_share: float
    deep_passes: int | None
    tokens_per_deep_pass: float | None
    acceptance_rate: float | None
    threshold: float | None


@dataclasses.dataclass(frozen=True)
class Generation:
    """The result of `generate`; arrays are numpy.

    Attributes:
      tokens: int32 [B, T], without the prompt; the end-of-sequence token kept once, then pads. T is `max_new_tokens`.
      lengths: int32 [B], tokens of each row, the end-of-sequence token counted.
      depths: int32 [B, T], decoder layers run to produce each token; 0 on pads.
      confidences: float32 [B, T], confidence at the exit (a `Free` without exit has one too); NaN where there is none.
      texts: decoded tokens without special ones; None without a tokenizer.
      finish_reasons: "eos" or "length" per row.
      stats: what it cost.
      adaptive_threshold: of a method with `adaptive=True`, the estimator after these texts, for the next call; None
        for others.
    """

    tokens: np.ndarray
    lengths: np.ndarray
    depths: np.ndarray
    confidences: np.ndarray
    texts: list[str] | None
    finish_reasons: list[str]
    stats: Stats
    adaptive_threshold: AdaptiveThreshold | None = None


def generate(
    lm: LanguageModel,
    prompts: Sequence[Prompt],
    method: Method | None = None,
    *,
    max_new_tokens: int = 64,
    sampling: Sampling | None = None,
    stop_at_eos: bool = True,
    adaptive_threshold: AdaptiveThreshold | None = None,
    part: Part | None = None,
) -> Generation:
    """Continues a batch of prompts; for an encoder-decoder model, generates from a batch of sources.

    The first call for a (batch bucket, prompt bucket, method) compiles; later ones with other prompts, sampling
    numbers, seeds, thresholds or smaller token budgets do not (for a SkipDecode without a horizon a new budget is a new
    schedule).

    Args:
      lm: from `load`.
      prompts: texts, or lists of token ids (then no tokenizer is needed), of any lengths.
      method: how deep to decode; `Full()` if left out.
      max_new_tokens: tokens to generate at most.
      sampling: greedy if left out.
      stop_at_eos: False generates the full length (for benchmarks).
      adaptive_threshold: for a method with `adaptive=True`, the estimator to start from; a fresh one if left out. It
        sets the threshold of the whole batch, and then learns from its rows one by one, in order; the result's
        `adaptive_threshold` goes into the next call.
      part: where these prompts are a part of more, what the batch needs to know of the others.
    Raises:
      ValueError: for a bad argument, a prompt without tokens (a tokenizer that begins every text makes "" one), or
        prompt + max_new_tokens beyond the model's positions.
    """
    method, estimator = _with_threshold(method, adaptive_threshold)
    job = _Job.prepare(lm, prompts, method, max_new_tokens, sampling, stop_at_eos, part)
    started = time.perf_counter()
    source, state = jax.block_until_ready(job.prefill())
    prompt_seconds = time.perf_counter() - started
    started = time.perf_counter()
    state = jax.block_until_ready(job.decode(source, state, job.max_new_tokens))
    decode_seconds = time.perf_counter() - started
    return job.result(state, prompt_seconds, decode_seconds, estimator)


def stream(
    lm: LanguageModel,
    prompt: Prompt,
    method: Method | None = None,
    *,
    max_new_tokens: int = 64,
    sampling: Sampling | None = None,
    stop_at_eos: bool = True,
    adaptive_threshold: AdaptiveThreshold | None = None,
) -> Iterator[str]:
    """Yields the text of one prompt's continuation in pieces as they are generated; joined they are `generate`'s text.

    Arguments and errors as in `generate`; the programs are shared with it. Needs a tokenizer. An `adaptive_threshold`
    is used but learns nothing, since there is no result to return it with. Tokens that a `Free` with verify or rollback
    may still take back are held until they are certain.
    """
    tokenizer = checked_model(lm).tokenizer
    if tokenizer is None:
        raise ValueError("stream needs a tokenizer, and this checkpoint has none: use generate with token ids")
    method, _ = _with_threshold(method, adaptive_threshold)
    job = _Job.prepare(lm, [prompt], method, max_new_tokens, sampling, stop_at_eos)
    return _pieces(job, tokenizer.stream())


def _pieces(job: _Job, text: Any) -> Iterator[str]:
    source, state = job.prefill()
    shown, done = 0, False
    while not done:
        settled = min(int(job.strategy.settled(state)[0]), job.max_new_tokens)
        done = bool(state.finished[0]) or settled == job.max_new_tokens
        tokens = np.asarray(state.tokens[0, shown:settled])
        ends = np.flatnonzero(np.isin(tokens, np.asarray(job.request.eos_ids)))
        for token in tokens[: ends[0] + 1] if len(ends) else tokens:
            if piece := text.push(int(token)):
                yield piece
        shown = settled
        if not done:
            state = job.decode(source, state, shown + 1)
    if piece := text.flush():
        yield piece


def _with_threshold(
    method: Method | None, estimator: AdaptiveThreshold | None
) -> tuple[Method | None, AdaptiveThreshold | None]:
    """The method with the estimator's threshold, and the estimator, a fresh one where an adaptive method got none."""
    if estimator is not None and not isinstance(estimator, AdaptiveThreshold):
        raise ValueError(f"adaptive_threshold must be an AdaptiveThreshold, got {estimator!r:.80}")
    if not isinstance(method, Free) or not method.adaptive:
        if estimator is not None:
            raise ValueError(f"adaptive_threshold goes with a Free(..., adaptive=True), got {method!r}")
        return method, None
    estimator = AdaptiveThreshold() if estimator is None else estimator
    return dataclasses.replace(method, threshold=estimator.threshold), estimator


@dataclasses.dataclass(frozen=True)
class _Job:
    """A checked request with its programs compiled: static strategy, padded arrays, and how to read the outcome."""

    lm: LanguageModel
    method: Method
    strategy: Strategy
    rows: int
    prompts: np.ndarray  # int32 [B, P], left-padded, B and P rounded up to their buckets
    request: Request
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
        part: Part | None = None,
    ) -> _Job:
        config = checked_model(lm).config
        method = checked(method, config)
        sampling = Sampling() if sampling is None else sampling
        max_new_tokens = checks.integer("max_new_tokens", max_new_tokens, 1)
        if not isinstance(sampling, Sampling):
            raise ValueError(f"sampling must be a Sampling(...), got {sampling!r}")
        rows = encode_prompts(lm, prompts, max_new_tokens)
        resolved = method.resolve(max_new_tokens)
        warn_if_untrained(lm, resolved)
        part = Part(occurrences_of(rows)) if part is None else part
        padded, padding = pad_left(rows, pad_token(config), (part.rows, part.columns))
        request = make_request(
            *(config, rows, padding, sampling, resolved, max_new_tokens, stop_at_eos, part.occurrences)
        )
        strategy, compiled, compile_seconds = _programs(lm, resolved, max_new_tokens, padded, request)
        return cls(lm, resolved, strategy, len(rows), padded, request, max_new_tokens, compile_seconds, *compiled)

    def prefill(self) -> tuple[Source | None, Any]:
        return self.run_prefill(self.lm.params, self.prompts, self.request)

    def decode(self, source: Source | None, state: Any, stop: int) -> Any:
        """Until `stop` tokens of every row are certain."""
        return self.run_decode(self.lm.params, source, state, self.request, np.int32(stop))

    def result(
        self, state: Any, prompt_seconds: float, decode_seconds: float, estimator: AdaptiveThreshold | None
    ) -> Generation:
        """Arrays of exactly `rows` rows and `max_new_tokens` columns, and the account."""
        has_encoder = self.lm.config.encoder_layers is not None
        outcome = self.strategy.outcome(state, self.rows, has_encoder=has_encoder)
        tokens = np.asarray(state.tokens)[: self.rows, : self.max_new_tokens]
        ended = np.isin(tokens, np.asarray(self.request.eos_ids))
        lengths = np.where(ended.any(axis=1), ended.argmax(axis=1) + 1, self.max_new_tokens).astype(np.int32)
        real = np.arange(self.max_new_tokens) < lengths[:, None]
        depths = np.where(real, outcome.depths[:, : self.max_new_tokens], 0).astype(np.int32)
        confidences = np.where(real, outcome.confidences[:, : self.max_new_tokens], np.nan).astype(np.float32)
        if estimator is not None:
            assert outcome.agreements is not None, "an adaptive strategy compares"
            known = real & (outcome.agreements[:, : self.max_new_tokens] >= 0)
            estimator = estimator.after_batch(
                [
                    (confidences[row][known[row]], outcome.agreements[row, : self.max_new_tokens][known[row]] == 1)
                    for row in range(self.rows)
                ]
            )
        texts = None
        if self.lm.tokenizer is not None:
            texts = [self.lm.tokenizer.decode(row[:n].tolist()) for row, n in zip(tokens, lengths, strict=True)]
        reasons = ["eos" if row.any() else "length" for row in ended]
        stats = self._stats(outcome, depths, lengths, prompt_seconds, decode_seconds)
        return Generation(tokens, lengths, depths, confidences, texts, reasons, stats, estimator)

    def _stats(
        self, outcome: Outcome, depths: np.ndarray, lengths: np.ndarray, prompt_seconds: float, decode_seconds: float
    ) -> Stats:
        config = self.lm.config
        total = int(lengths.sum())
        mean_depth = float(depths.sum() / total)
        # SkipDecode skips layers, but no token leaves before the last.
        leaves = bool(self.method.exit_layers(config.num_layers))
        exits = (leaves & (depths > 0) & (depths < config.num_layers)).sum(axis=1)
        batch, length = self.prompts.shape
        has_encoder = config.encoder_layers is not None
        source, prompt = (length, 1) if has_encoder else (0, length)
        kept = self.strategy.cache_lengths(prompt)
        slots = sum(kept) + source * sum(n > 0 for n in kept)
        position_bytes = 2 * batch * config.num_kv_heads * config.head_size * self.lm.dtype.itemsize
        acceptance = None
        if outcome.drafted is not None:
            acceptance = float(exits.sum() / outcome.drafted) if outcome.drafted else None
        per_pass = None
        if outcome.row_passes is not None and outcome.deep_positions is not None and outcome.row_passes.sum():
            per_pass = float(outcome.deep_positions.sum() / outcome.row_passes.sum())
        return Stats(
            num_layers=config.num_layers,
            target_speedup=self.method.target_speedup(config.num_layers),
            mean_depth=mean_depth,
            realised_speedup=config.num_layers / mean_depth,
            compile_seconds=self.compile_seconds,
            prompt_seconds=prompt_seconds,
            decode_seconds=decode_seconds,
            decode_steps=outcome.steps,
            tokens_per_second=total / (prompt_seconds + decode_seconds),
            kv_cache_bytes=slots * position_bytes,
            full_kv_cache_bytes=config.num_layers * (prompt + self.strategy.room - 1 + source) * position_bytes,
            exits=exits,
            exit_share=float(exits.sum() / total),
            deep_passes=outcome.deep_passes,
            tokens_per_deep_pass=per_pass,
            acceptance_rate=acceptance,
            threshold=getattr(self.method, "threshold", None),
        )


def make_request(
    config: ModelConfig,
    rows: list[list[int]],
    padding: np.ndarray,
    sampling: Sampling,
    method: Method,
    max_new_tokens: int,
    stop_at_eos: bool,
    occurrences: Sequence[int] | None = None,
) -> Request:
    fill = len(padding) - len(rows)
    occurrences = occurrences_of(rows) if occurrences is None else occurrences
    hashes = [zlib.crc32(np.asarray(row, np.int32).tobytes()) for row in rows]
    numbers = SamplingNumbers(
        temperature=_dynamic(sampling.temperature, np.float32),
        top_p=_dynamic(sampling.top_p, np.float32),
        top_k=_dynamic(sampling.top_k, np.int32),
        seed=_dynamic(sampling.seed, np.uint32),
        prompt_hashes=_dynamic(hashes + [0] * fill, np.uint32),
        occurrences=_dynamic([*occurrences, *[0] * fill], np.uint32),
    )
    ends = config.eos_ids if config.eos_ids else (-1,)
    return Request(
        padding=_dynamic(padding, np.int32),
        rows=_dynamic(len(rows), np.int32),
        numbers=numbers,
        method=method.numbers(),
        eos_ids=_dynamic(ends if stop_at_eos else [-1] * len(ends), np.int32),
        pad_id=_dynamic(pad_token(config), np.int32),
        limit=_dynamic(max_new_tokens, np.int32),
    )


def _dynamic(value: Any, dtype: Any) -> Any:
    """A program's argument as numpy: making it with jax.numpy would dispatch an operation, and first compile it."""
    return np.asarray(value, dtype)


def _programs(
    lm: LanguageModel, method: Method, max_new_tokens: int, prompts: np.ndarray, request: Request
) -> tuple[Strategy, tuple[Any, Any], float]:
    """Strategy and programs for at least `max_new_tokens`, compiled now if no earlier call's are large enough."""
    same = (method.static(), prompts.shape, request.eos_ids.shape)
    fitting = [key for key in lm.programs if key[:-1] == same and key[-1] >= max_new_tokens]
    if fitting:
        return (*lm.programs[min(fitting, key=lambda key: key[-1])], 0.0)
    started = time.perf_counter()
    strategy = method.strategy(lm.config.num_layers, max_new_tokens)
    prefill = programs.prefill.lower(lm.config, strategy, lm.params, prompts, request)
    decode = programs.decode.lower(
        *(lm.config, strategy, prompts.shape[1], lm.params, *prefill.out_info, request, np.int32(max_new_tokens))
    )
    compiled = (prefill.compile(), decode.compile())
    lm.programs[(*same, max_new_tokens)] = (strategy, compiled)
    return strategy, compiled, time.perf_counter() - started


def warn_if_untrained(lm: LanguageModel, method: Method) -> None:
    """Warns, once per model and method, when weights were not trained for the depths they are about to run at."""
    key = method.static()
    if isinstance(method, Full) or key in lm.warned or (isinstance(method, Free) and method.verify == "exact"):
        return
    if isinstance(method, SkipDecode):
        if lm.recorded is not None and lm.recorded.covers(method, lm.config.num_layers):
            return
        known = "records no schedule" if lm.recorded is None else f"was trained for {lm.recorded.describe()}"
        message = (
            f"this checkpoint {known}, not for {method}: skipping layers that were never trained to be skipped usually"
            f" ruins the text. Fine-tune it first (skipjax train skipdecode)."
        )
    else:
        trained = lm.trained_exits
        exits = [layer for layer in method.exit_layers(lm.config.num_layers) if layer not in trained]
        if not exits:
            return
        known = f"trained exits after layers {', '.join(map(str, trained))} only" if trained else "no trained exits"
        message = (
            f"this checkpoint records {known}, and {method} lets tokens leave after others: what such an exit says, and"
            f" how sure it seems, may be far from the full model. Train it first (skipjax train free, or heads)."
        )
    lm.warned.add(key)
    warnings.warn(message, UserWarning, stacklevel=4)

"""Quality and cost of decoding methods on a data set, set against full depth in the same run."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from skipjax import checks, metrics, perplexity, training
from skipjax.account import Exits, seconds_per_step
from skipjax.adaptive import AdaptiveThreshold
from skipjax.display import token_pieces
from skipjax.evaluation_log import Entry, EvaluationLog, request
from skipjax.generation import Generation, generate, warn_if_untrained
from skipjax.language_model import LanguageModel
from skipjax.metrics import Interval, Score
from skipjax.perplexity import References
from skipjax.prompts import encode_prompts
from skipjax.sampling import Sampling
from skipjax.settings import Setting, against_full
from skipjax.training.data import Template

SHADED = 20  # so many first inputs keep the depths of their tokens for reading

ALWAYS = ("rougeL", "bleu")
"""Metrics that every result has, whatever else was asked for: ROUGE-L is what the share of full quality is of."""


@dataclasses.dataclass(frozen=True)
class Input:
    """A prompt and every text that would be a right answer to it, at least one."""

    prompt: str
    references: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Positions:
    """By the position of a token in its text, from 0 to the longest - 1.

    Attributes:
      tokens: number of texts that are so long.
      mean_depth: layers per token.
      exit_share: of the tokens, how many left before the last layer; None for methods without exits.
      confidence: mean over the tokens that have one, None where none has; None for methods without.
    """

    tokens: list[int]
    mean_depth: list[float]
    exit_share: list[float] | None
    confidence: list[float | None] | None

    @classmethod
    def of(cls, outs: Sequence[Generation], *, exits: bool) -> Positions:
        """Of batches that one method generated; `exits` says whether its tokens can leave early."""
        longest = max(int(out.lengths.max()) for out in outs)
        depths = np.concatenate([out.depths[:, :longest] for out in outs])
        sure = np.concatenate([out.confidences[:, :longest] for out in outs]).astype(np.float64)
        real = depths > 0  # pads have depth 0
        tokens, known = real.sum(axis=0), (~np.isnan(sure)).sum(axis=0)
        sums = np.nansum(sure, axis=0)
        early = (real & (depths < outs[0].stats.num_layers)).sum(axis=0)
        means = [float(total / count) if count else None for total, count in zip(sums, known, strict=True)]
        return cls(
            tokens=tokens.tolist(),
            mean_depth=(depths.sum(axis=0) / tokens).tolist(),
            exit_share=(early / tokens).tolist() if exits else None,
            confidence=means if known.any() else None,
        )


@dataclasses.dataclass(frozen=True)
class Result:
    """One setting on all inputs.

    Attributes:
      setting: method and the speed-up asked for.
      num_layers: of the model's decoder.
      max_depth, min_depth: most and fewest layers of a decode step: of a schedule, or all and those that always run.
      scores: metrics by name; in JSON their values, and their intervals under the name with "_interval".
      target_speedup: layers / mean depth the method aims at.
      realised_speedup: layers / mean depth of all generated tokens, token 0 included.
      measured_speedup: seconds per decode step of full depth over this setting's, median over the batches, in each of
        which all settings run in turn; without batches that were interrupted between the two. None if no batch is left
        that needed a decode step.
      mean_depth: layers per generated token.
      positions: depths, exits and confidences by position.
      exits: how tokens left before the last layer; in JSON its attributes stand beside those of the result.
      share_of_full: ROUGE-L over that of full depth; None if full depth has none.
      share_of_full_interval: 95 % bootstrap interval over inputs, each with both of its texts; None if there is none.
      same_texts: share of inputs whose text is exactly that of full depth.
      inputs: number of prompts.
      tokens_per_second: generated tokens over `seconds`.
      seconds: of the prompt passes and decode steps of all batches, without compilation.
      compile_seconds: spent compiling.
    """

    setting: Setting
    num_layers: int
    max_depth: int
    min_depth: int
    scores: dict[str, Score]
    target_speedup: float
    realised_speedup: float
    measured_speedup: float | None
    mean_depth: float
    positions: Positions
    exits: Exits
    share_of_full: float | None
    share_of_full_interval: Interval | None
    same_texts: float
    inputs: int
    tokens_per_second: float
    seconds: float
    compile_seconds: float

    @property
    def speedup(self) -> float:
        """The measured speed-up; the realised one where there was nothing to measure."""
        return self.realised_speedup if self.measured_speedup is None else self.measured_speedup

    def to_json(self) -> dict[str, Any]:
        """A flat object, but for "arguments" of the method and "positions"."""
        flat: dict[str, Any] = {"label": self.setting.label, **self.setting.to_json()}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name == "scores":
                for name, score in self.scores.items():
                    flat |= {name: score.value, f"{name}_interval": score.interval and list(score.interval)}
            elif field.name == "exits":
                flat |= self.exits.to_json()
            elif field.name == "positions":
                flat["positions"] = dataclasses.asdict(self.positions)
            elif field.name != "setting":
                flat[field.name] = list(value) if isinstance(value, tuple) else value
        return flat


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """All settings on all inputs.

    Attributes:
      inputs: in the order of the data.
      metrics: names of those asked for.
      results: one per setting, full depth first.
      texts: per setting, the generated text of each input.
      shaded: per setting, for the first `SHADED` inputs the pieces of text and depths of their tokens.
    """

    inputs: list[Input]
    metrics: tuple[str, ...]
    results: list[Result]
    texts: list[list[str]]
    shaded: list[list[dict[str, Any]]]

    def samples(self) -> list[dict[str, Any]]:
        """One object per input: prompt, references, "texts" with that of each setting under its label, and for the
        first inputs "tokens" with {"pieces", "depths"} under each label."""
        labels = [result.setting.label for result in self.results]
        samples: list[dict[str, Any]] = [
            {
                "prompt": entry.prompt,
                "references": list(entry.references),
                "texts": dict(zip(labels, texts, strict=True)),
            }
            for entry, *texts in zip(self.inputs, *self.texts, strict=True)
        ]
        for sample, *tokens in zip(samples, *self.shaded, strict=False):
            sample["tokens"] = dict(zip(labels, tokens, strict=True))
        return samples

    def fastest(self, share: float) -> Result:
        """The result with the largest speed-up whose share of full quality is at least `share`.

        Raises ValueError if full depth has no quality to take a share of.
        """
        keeping = [one for one in self.results if one.share_of_full is not None and one.share_of_full >= share]
        if not keeping:
            raise ValueError("recommend: full depth has a ROUGE-L of 0 on these inputs, there is nothing to keep")
        return max(keeping, key=lambda one: one.speedup)


def group(prompts: Sequence[str], targets: Sequence[str], limit: int | None = None) -> list[Input]:
    """Inputs in order of first appearance: pairs with the same prompt give one input with several references.

    Empty targets are no references, and prompts with no others are left out.
    Args:
      limit: keep the first `limit` inputs, each with all its references.
    Raises:
      ValueError: no target has any text.
    """
    grouped: dict[str, list[str]] = {}
    for prompt, target in zip(prompts, targets, strict=True):
        if target.strip():
            grouped.setdefault(prompt, []).append(target)
    if not grouped:
        raise ValueError("data must have at least one row with a text to generate, all targets are empty")
    return [Input(prompt, tuple(references)) for prompt, references in grouped.items()][:limit]


def read_inputs(
    data: str | Path, prompt_template: str, target_column: str, *, split: str = "test", limit: int | None = None
) -> list[Input]:
    """Inputs from a file or hub data set.

    Args:
      data, split: as in `skipjax.training.load_rows`.
      prompt_template: prompt with {column} fields.
      target_column: column with the references: one text a row, or several as in `skipjax.training.data.targets_of`.
      limit: keep the first `limit` different prompts.
    Raises:
      FileNotFoundError, ValueError: no such data, no rows, no such column, a template without one, a limit below 1.
    """
    if limit is not None:
        checks.integer("limit", limit, 1)
    if not Template.parse(prompt_template).columns:
        raise ValueError(f"prompt_template must hold a {{column}} field, got {prompt_template!r}")
    rows = training.load_rows(data, split=split)
    return group(*training.prompts_and_targets(rows, prompt_template, target_column), limit)


def evaluate(
    lm: LanguageModel,
    inputs: Sequence[Input],
    settings: Sequence[Setting],
    *,
    metric_names: Sequence[str] = metrics.DEFAULT,
    bertscore_model: Path | None = None,
    batch_size: int = 16,
    max_new_tokens: int = 64,
    sampling: Sampling | None = None,
    log: Path | None = None,
    progress: bool = False,
) -> Evaluation:
    """Generates for every input with full depth and with each of `settings`, and scores the texts.

    The inputs are prompts, or the sources of an encoder-decoder model. An adaptive threshold starts fresh and learns
    from batch to batch.

    Prompts of similar length share a batch, so that few programs are compiled. Every batch is run with all settings in
    turn, so that whatever else the machine does meets all of them alike.

    Args:
      metric_names: keys of `skipjax.metrics.TITLES`; the results have those of `ALWAYS` as well.
      bertscore_model: directory of the encoder for "bertscore".
      sampling: greedy if left out.
      log: file that takes what is generated as it comes. What the same evaluation has written there before is not
        generated again; the metrics may be others.
      progress: show a bar with the time left, if standard error is a terminal.
    Raises:
      ValueError: no inputs, no tokenizer, a prompt that does not fit with `max_new_tokens`, a bad number, an unknown
        metric or one that cannot be computed here, a log of another evaluation.
    """
    from tqdm import tqdm

    checks.integer("batch_size", batch_size, 1)
    checks.integer("max_new_tokens", max_new_tokens, 1)
    check_metrics(metric_names, bertscore_model)
    if not inputs:
        raise ValueError("inputs must hold at least one input, got none")
    if lm.tokenizer is None:
        raise ValueError("evaluation needs a tokenizer, and this checkpoint has none")
    settings = against_full(settings)
    for setting in settings:
        setting.method.check(lm.config)
    sampling = Sampling() if sampling is None else sampling
    rows = encode_prompts(lm, [entry.prompt for entry in inputs], max_new_tokens)
    references = None
    if metrics.PERPLEXITY in metric_names:
        references = References(lm, rows, [entry.references for entry in inputs])
    asked = request(
        *(lm, inputs, settings),
        batch_size=batch_size,
        max_new_tokens=max_new_tokens,
        sampling=sampling,
        perplexity=references is not None,
    )
    # Longest first: a batch that is too large for the memory shows at once.
    order = sorted(range(len(rows)), key=lambda index: -len(rows[index]))
    batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    runs = [(batch, place) for batch in batches for place in range(len(settings))]
    accounts = [_Account([""] * len(rows)) for _ in settings]
    with EvaluationLog(log, asked, lm) as written:
        if written.done < len(runs):
            for setting in settings:  # now, not in the middle of the bar
                warn_if_untrained(lm, setting.method.resolve(max_new_tokens))
        known = sum(len(batch) for batch, _ in runs[: written.done])
        with tqdm(
            total=len(rows) * len(settings), initial=known, unit="text", disable=None if progress else True
        ) as bar:
            for batch, place in runs:
                setting, account = settings[place], accounts[place]
                entry = written.take(account.estimator, len(batch))
                if entry is None:
                    out = generate(
                        *(lm, [rows[index] for index in batch], setting.method),
                        max_new_tokens=max_new_tokens,
                        sampling=sampling,
                        adaptive_threshold=account.estimator,
                    )
                    losses = None
                    if references is not None:
                        method = setting.method.resolve(max_new_tokens)
                        losses = references.losses(lm, method, batch, batch_size)
                    # An estimator holds the pairs of all batches before, so only the last one is kept.
                    bare = dataclasses.replace(out, adaptive_threshold=None)
                    entry = Entry(bare, out.adaptive_threshold, losses, written.session)
                    written.append(entry, account.estimator)
                    bar.update(len(batch))
                account.add(batch, entry)
    texts = [account.texts for account in accounts]
    shaded = [account.shaded(lm) for account in accounts]
    results: list[Result] = []
    for setting, account in zip(settings, accounts, strict=True):
        scores = _scores(metric_names, bertscore_model, account, inputs)
        results.append(_result(lm, setting, account, accounts[0], scores, results[0].scores if results else scores))
    return Evaluation(list(inputs), tuple(metric_names), results, texts, shaded)


def check_metrics(names: Sequence[str], bertscore_model: Path | None = None) -> None:
    """Raises ValueError or FileNotFoundError unless all these metrics can be computed here."""
    if not names:
        raise ValueError("metric must name at least one metric, got none")
    for name in names:
        checks.choice("metric", name, metrics.TITLES)
    if "bertscore" in names:
        metrics.check_bertscore(bertscore_model)
    elif bertscore_model is not None:
        raise ValueError("--bertscore-model goes with --metric bertscore")


@dataclasses.dataclass
class _Account:
    """What one setting has generated so far."""

    texts: list[str]
    outs: list[Generation] = dataclasses.field(default_factory=list)
    sessions: list[int] = dataclasses.field(default_factory=list)
    estimator: AdaptiveThreshold | None = None
    losses: dict[int, tuple[float, int]] = dataclasses.field(default_factory=dict)
    tokens: dict[int, tuple[np.ndarray, np.ndarray]] = dataclasses.field(default_factory=dict)

    def add(self, batch: Sequence[int], entry: Entry) -> None:
        out = entry.out
        assert out.texts is not None, "there is a tokenizer"
        for row, index in enumerate(batch):
            self.texts[index] = out.texts[row]
            if index < SHADED:
                length = out.lengths[row]
                self.tokens[index] = out.tokens[row, :length], out.depths[row, :length]
        self.losses |= dict(zip(batch, entry.losses or [], strict=False))
        self.estimator = entry.learnt
        self.outs.append(out)
        self.sessions.append(entry.session)

    def shaded(self, lm: LanguageModel) -> list[dict[str, Any]]:
        """Pieces and depths of the tokens of the first inputs."""
        assert lm.tokenizer is not None
        return [
            {"pieces": token_pieces(lm.tokenizer, tokens), "depths": depths.tolist()}
            for _, (tokens, depths) in sorted(self.tokens.items())
        ]


def _scores(
    names: Sequence[str], bertscore_model: Path | None, account: _Account, inputs: Sequence[Input]
) -> dict[str, Score]:
    wanted = [name for name in dict.fromkeys((*names, *ALWAYS)) if name != metrics.PERPLEXITY]
    references = [entry.references for entry in inputs]
    scores = metrics.score(wanted, account.texts, references, bertscore_model=bertscore_model)
    if metrics.PERPLEXITY in names:
        losses = [account.losses[index] for index in range(len(inputs))] if account.losses else None
        scores[metrics.PERPLEXITY] = perplexity.perplexity(losses)
    return scores


def _result(
    lm: LanguageModel,
    setting: Setting,
    account: _Account,
    full_account: _Account,
    scores: dict[str, Score],
    full_scores: dict[str, Score],
) -> Result:
    num_layers, outs = lm.config.num_layers, account.outs
    quality, full_quality = scores["rougeL"], full_scores["rougeL"]
    assert quality.value is not None
    assert quality.by_input is not None
    assert full_quality.by_input is not None
    max_depth, min_depth = setting.depths(num_layers)
    tokens = sum(int(out.lengths.sum()) for out in outs)
    mean_depth = sum(int(out.depths.sum()) for out in outs) / tokens
    seconds = sum(out.stats.prompt_seconds + out.stats.decode_seconds for out in outs)
    return Result(
        setting=setting,
        num_layers=num_layers,
        max_depth=max_depth,
        min_depth=min_depth,
        scores=scores,
        target_speedup=setting.method.target_speedup(num_layers),
        realised_speedup=num_layers / mean_depth,
        measured_speedup=_measured(lm, full_account, account),
        mean_depth=mean_depth,
        positions=Positions.of(outs, exits=bool(setting.method.exit_layers(num_layers))),
        exits=Exits.of(setting.method, outs),
        share_of_full=quality.value / full_quality.value if full_quality.value else None,
        share_of_full_interval=metrics.bootstrap(metrics.ratio_of_means, quality.by_input, full_quality.by_input),
        same_texts=statistics.fmean(map(str.__eq__, account.texts, full_account.texts)),
        inputs=len(account.texts),
        tokens_per_second=tokens / seconds,
        seconds=seconds,
        compile_seconds=sum(out.stats.compile_seconds for out in outs),
    )


def _measured(lm: LanguageModel, full: _Account, other: _Account) -> float | None:
    ratios = []
    for one, session, two, other_session in zip(full.outs, full.sessions, other.outs, other.sessions, strict=True):
        yardstick, own = seconds_per_step(one, lm.config), seconds_per_step(two, lm.config)
        if session == other_session and yardstick and own:
            ratios.append(yardstick / own)
    return statistics.median(ratios) if ratios else None

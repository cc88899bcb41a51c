"""Quality and cost of decoding methods on a data set, set against full depth in the same run."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from skipjax import checks
from skipjax.account import Exits, exit_columns, seconds_per_step
from skipjax.adaptive import AdaptiveThreshold
from skipjax.generation import Generation, generate, warn_if_untrained
from skipjax.language_model import LanguageModel
from skipjax.prompts import encode_prompts
from skipjax.sampling import Sampling
from skipjax.settings import Setting, against_full
from skipjax.tables import markdown


@dataclasses.dataclass(frozen=True)
class Input:
    """A prompt and every text that would be a right answer to it, at least one."""

    prompt: str
    references: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Result:
    """One setting on all inputs.

    Attributes:
      setting: method and the speed-up asked for.
      num_layers: of the model's decoder.
      max_depth, min_depth: most and fewest layers of a decode step: of a schedule, or all and those that always run.
      rouge_l, bleu: per cent.
      target_speedup: layers / mean depth the method aims at.
      realised_speedup: layers / mean depth of all generated tokens, token 0 included.
      measured_speedup: seconds per decode step of full depth over this setting's, median over the batches, in each of
        which all settings run in turn; None if no batch needed a decode step.
      mean_depth: layers per generated token.
      exits: how tokens left before the last layer; in JSON its attributes stand beside those of the result.
      share_of_full: ROUGE-L over that of full depth; None if full depth has none.
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
    rouge_l: float
    bleu: float
    target_speedup: float
    realised_speedup: float
    measured_speedup: float | None
    mean_depth: float
    exits: Exits
    share_of_full: float | None
    same_texts: float
    inputs: int
    tokens_per_second: float
    seconds: float
    compile_seconds: float

    def to_json(self) -> dict[str, Any]:
        """A flat object; ROUGE-L stands under "rougeL"."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        setting, exits = fields.pop("setting"), fields.pop("exits")
        fields = {"rougeL" if name == "rouge_l" else name: value for name, value in fields.items()}
        return {**setting.to_json(), **fields, **exits.to_json()}


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """All settings on all inputs.

    Attributes:
      inputs: in the order of the data.
      results: one per setting, full depth first.
      texts: per setting, the generated text of each input.
    """

    inputs: list[Input]
    results: list[Result]
    texts: list[list[str]]

    def table(self) -> str:
        """The results as a Markdown table; with columns about exits if any setting has them."""
        header = ["method", "depths", "ROUGE-L", "BLEU", "of full", "same texts", "target", "realised", "measured"]
        about_exits, exit_cells = exit_columns([result.exits for result in self.results])
        rows = []
        for result, cells in zip(self.results, exit_cells, strict=True):
            share, measured = result.share_of_full, result.measured_speedup
            rows.append(
                [
                    result.setting.label,
                    result.setting.depths_label(result.num_layers),
                    f"{result.rouge_l:.1f}",
                    f"{result.bleu:.1f}",
                    "-" if share is None else f"{share:.1%}",
                    f"{result.same_texts:.1%}",
                    f"{result.target_speedup:.2f}x",
                    f"{result.realised_speedup:.2f}x",
                    "-" if measured is None else f"{measured:.2f}x",
                    f"{result.mean_depth:.1f}",
                    *cells,
                    f"{result.tokens_per_second:.0f}",
                    f"{result.seconds:.1f}",
                ]
            )
        return markdown([*header, "mean depth", *about_exits, "tokens/s", "seconds"], rows)

    def write(self, directory: str | Path) -> None:
        """Writes results.json (a list, one object per setting), table.md, and samples.jsonl (one object per input:
        prompt, references, and the text of each setting under its label)."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        results = json.dumps([result.to_json() for result in self.results], indent=2)
        (directory / "results.json").write_text(results + "\n", encoding="utf-8")
        (directory / "table.md").write_text(self.table() + "\n", encoding="utf-8")
        labels = [result.setting.label for result in self.results]
        with (directory / "samples.jsonl").open("w", encoding="utf-8") as file:
            for entry, *texts in zip(self.inputs, *self.texts, strict=True):
                sample = {**dataclasses.asdict(entry), "texts": dict(zip(labels, texts, strict=True))}
                file.write(json.dumps(sample, ensure_ascii=False) + "\n")


def group(prompts: Sequence[str], targets: Sequence[str], limit: int | None = None) -> list[Input]:
    """Inputs in order of first appearance: rows with the same prompt give one input with several references.

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
      target_column: column with the references, one a row.
      limit: keep the first `limit` different prompts.
    Raises:
      FileNotFoundError, ValueError: no such data, no rows, no such column, a limit below 1.
    """
    from skipjax import training  # here, since it brings optax and orbax

    if limit is not None:
        checks.integer("limit", limit, 1)
    rows = training.load_rows(data, split=split)
    return group(*training.prompts_and_targets(rows, prompt_template, target_column), limit)


def evaluate(
    lm: LanguageModel,
    inputs: Sequence[Input],
    settings: Sequence[Setting],
    *,
    batch_size: int = 16,
    max_new_tokens: int = 64,
    sampling: Sampling | None = None,
    progress: bool = False,
) -> Evaluation:
    """Generates for every input with full depth and with each of `settings`, and scores the texts.

    The inputs are prompts, or the sources of an encoder-decoder model. An adaptive threshold starts fresh and learns
    from batch to batch.

    Prompts of similar length share a batch, so that few programs are compiled. Every batch is run with all settings in
    turn, so that whatever else the machine does meets all of them alike.

    Args:
      sampling: greedy if left out.
      progress: show a bar with the time left, if standard error is a terminal.
    Raises:
      ValueError: no inputs, no tokenizer, a prompt that does not fit with `max_new_tokens`, a bad number.
    """
    from tqdm import tqdm

    checks.integer("batch_size", batch_size, 1)
    checks.integer("max_new_tokens", max_new_tokens, 1)
    if not inputs:
        raise ValueError("inputs must hold at least one input, got none")
    if lm.tokenizer is None:
        raise ValueError("evaluation needs a tokenizer, and this checkpoint has none")
    settings = against_full(settings)
    for setting in settings:
        setting.method.check(lm.config)
    rows = encode_prompts(lm, [entry.prompt for entry in inputs], max_new_tokens)
    for setting in settings:  # now, not in the middle of the bar
        warn_if_untrained(lm, setting.method.resolve(max_new_tokens))
    # Longest first: a batch that is too large for the memory shows at once.
    order = sorted(range(len(rows)), key=lambda index: -len(rows[index]))
    batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    accounts = [_Account([""] * len(rows)) for _ in settings]
    with tqdm(total=len(rows) * len(settings), unit="text", disable=None if progress else True) as bar:
        for batch in batches:
            prompts = [rows[index] for index in batch]
            for setting, account in zip(settings, accounts, strict=True):
                out = generate(
                    *(lm, prompts, setting.method),
                    max_new_tokens=max_new_tokens,
                    sampling=sampling,
                    adaptive_threshold=account.estimator,
                )
                account.add(batch, out)
                bar.update(len(batch))
    results: list[Result] = []
    for setting, account in zip(settings, accounts, strict=True):
        results.append(_result(lm, inputs, setting, account, accounts[0], results[0] if results else None))
    return Evaluation(list(inputs), results, [account.texts for account in accounts])


@dataclasses.dataclass
class _Account:
    """What one setting has generated so far."""

    texts: list[str]
    outs: list[Generation] = dataclasses.field(default_factory=list)
    estimator: AdaptiveThreshold | None = None

    def add(self, batch: Sequence[int], out: Generation) -> None:
        assert out.texts is not None, "there is a tokenizer"
        for index, text in zip(batch, out.texts, strict=True):
            self.texts[index] = text
        self.estimator = out.adaptive_threshold
        self.outs.append(dataclasses.replace(out, adaptive_threshold=None))  # each holds the pairs of all before


def _result(
    lm: LanguageModel,
    inputs: Sequence[Input],
    setting: Setting,
    account: _Account,
    full_account: _Account,
    full: Result | None,
) -> Result:
    num_layers, outs = lm.config.num_layers, account.outs
    references = [entry.references for entry in inputs]
    quality = rouge_l(account.texts, references)
    full_quality = quality if full is None else full.rouge_l
    max_depth, min_depth = setting.depths(num_layers)
    tokens = sum(int(out.lengths.sum()) for out in outs)
    mean_depth = sum(int(out.depths.sum()) for out in outs) / tokens
    seconds = sum(out.stats.prompt_seconds + out.stats.decode_seconds for out in outs)
    return Result(
        setting=setting,
        num_layers=num_layers,
        max_depth=max_depth,
        min_depth=min_depth,
        rouge_l=quality,
        bleu=bleu(account.texts, references),
        target_speedup=setting.method.target_speedup(num_layers),
        realised_speedup=num_layers / mean_depth,
        measured_speedup=_measured(lm, full_account, account),
        mean_depth=mean_depth,
        exits=Exits.of(setting.method, outs),
        share_of_full=quality / full_quality if full_quality else None,
        same_texts=statistics.fmean(map(str.__eq__, account.texts, full_account.texts)),
        inputs=len(inputs),
        tokens_per_second=tokens / seconds,
        seconds=seconds,
        compile_seconds=sum(out.stats.compile_seconds for out in outs),
    )


def _measured(lm: LanguageModel, full: _Account, other: _Account) -> float | None:
    steps = ([seconds_per_step(out, lm.config) for out in account.outs] for account in (full, other))
    ratios = [yardstick / own for yardstick, own in zip(*steps, strict=True) if yardstick and own]
    return statistics.median(ratios) if ratios else None


def rouge_l(texts: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """ROUGE-L F1 in per cent: of each text against its best reference, mean over texts; without stemming."""
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rougeL"], use_stemmer=False)
    scores = [
        scorer.score_multi(several, text)["rougeL"].fmeasure for text, several in zip(texts, references, strict=True)
    ]
    return 100 * float(statistics.fmean(scores))


def bleu(texts: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Corpus BLEU of sacrebleu in per cent (13a tokens, exponential smoothing); texts may differ in their number of
    references."""
    import sacrebleu

    most = max(map(len, references))
    streams: Any = [[several[i] if i < len(several) else None for several in references] for i in range(most)]
    # force: no advice about texts that look tokenised; here they are what the model writes.
    return float(sacrebleu.corpus_bleu(list(texts), streams, force=True).score)

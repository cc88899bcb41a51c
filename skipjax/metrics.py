"""How good texts are: scores against references, with confidence intervals.

Libraries compute the scores: rouge-score, sacrebleu, bert-score. Only the rules for answers to questions are here.
"""

from __future__ import annotations

import collections
import dataclasses
import importlib.util
import re
import string
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from skipjax.json_files import read_json

TITLES = {
    "rougeL": "ROUGE-L",
    "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2",
    "bleu": "BLEU",
    "chrf": "chrF",
    "exact_match": "exact match",
    "f1": "F1",
    "bertscore": "BERTScore",
    "perplexity": "perplexity",
}
"""Metrics by name, with their headers in tables."""

DEFAULT = ("rougeL", "rouge1", "rouge2", "bleu", "chrf")

PERPLEXITY = "perplexity"  # the one that is of a model and not of texts, see `skipjax.perplexity`

RESAMPLES = 1000

Interval = tuple[float, float]


@dataclasses.dataclass(frozen=True)
class Score:
    """One metric of one setting.

    Attributes:
      value: per cent, but for perplexity; None where the metric does not apply.
      interval: (low, high), a 95 % bootstrap interval over inputs; None for a single input.
      by_input: float64 [number of inputs] whose mean is `value`; None for metrics of a whole corpus.
    """

    value: float | None
    interval: Interval | None = None
    by_input: np.ndarray | None = dataclasses.field(default=None, compare=False, repr=False)


def score(
    names: Sequence[str],
    texts: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    bertscore_model: Path | None = None,
) -> dict[str, Score]:
    """Scores by name.

    Args:
      names: keys of `TITLES` without "perplexity".
      texts: what a model wrote.
      references: for each text at least one right answer; texts may differ in their number.
      bertscore_model: directory of the encoder for "bertscore", see `check_bertscore`.
    """
    rouge = [name for name in names if name.startswith("rouge")]
    scores = dict(zip(rouge, map(_mean, _rouge(rouge, texts, references)), strict=True)) if rouge else {}
    for name in names:
        if name in ("bleu", "chrf"):
            scores[name] = _corpus(name, texts, references)
        elif name in ("exact_match", "f1"):
            rule = exact_match if name == "exact_match" else token_f1
            scores[name] = _mean(_best(rule, texts, references))
        elif name == "bertscore":
            assert bertscore_model is not None, "checked before the run"
            scores[name] = _mean(_bertscore(bertscore_model, texts, references))
    return {name: scores[name] for name in names}


def _mean(values: Sequence[float]) -> Score:
    by_input = 100 * np.asarray(values, np.float64)
    return Score(float(by_input.mean()), bootstrap(np.mean, by_input), by_input)


def bootstrap(statistic: Callable[..., Any], *samples: ArrayLike) -> Interval | None:
    """A 95 % percentile interval of a statistic of samples whose elements belong together, drawn with a fixed seed.

    Args:
      statistic: of as many arrays as there are samples, along an `axis`.
      samples: each [n].
    Returns:
      None where there is none: for fewer than two elements, and where the statistic of a resample is not finite.
    """
    arrays = [np.asarray(sample, np.float64) for sample in samples]
    if len(arrays[0]) < 2:
        return None
    from scipy import stats

    with np.errstate(divide="ignore", invalid="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)  # what is not finite is looked for below
        drawn = stats.bootstrap(
            arrays,
            statistic,
            n_resamples=RESAMPLES,
            batch=100,  # of a large data set 1000 resamples are much memory
            vectorized=True,
            paired=True,
            confidence_level=0.95,
            method="percentile",
            rng=np.random.default_rng(0),
        )
    if not np.isfinite(drawn.bootstrap_distribution).all():
        return None
    return float(drawn.confidence_interval.low), float(drawn.confidence_interval.high)


def ratio_of_means(numerators: np.ndarray, denominators: np.ndarray, axis: int = -1) -> np.ndarray:
    """For `bootstrap`: mean of one sample over that of another."""
    return np.mean(numerators, axis=axis) / np.mean(denominators, axis=axis)


def _best(rule: Callable[[str, str], float], texts: Sequence[str], references: Sequence[Sequence[str]]) -> list[float]:
    return [max(rule(text, one) for one in several) for text, several in zip(texts, references, strict=True)]


def _rouge(names: Sequence[str], texts: Sequence[str], references: Sequence[Sequence[str]]) -> list[list[float]]:
    """F1 of each text against its best reference, without stemming, for each of the names."""
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(list(names), use_stemmer=False)
    scores = [scorer.score_multi(several, text) for text, several in zip(texts, references, strict=True)]
    return [[one[name].fmeasure for one in scores] for name in names]


def _corpus(name: str, texts: Sequence[str], references: Sequence[Sequence[str]]) -> Score:
    """sacrebleu's BLEU (13a tokens, exponential smoothing) or chrF (6 characters, no words)."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    most = max(map(len, references))
    streams: Any = [[several[i] if i < len(several) else None for several in references] for i in range(most)]
    # force: no advice about texts that look tokenised; here they are what the model writes.
    metric: Any = BLEU(force=True) if name == "bleu" else CHRF()
    # What corpus_score does, with the counts kept. The library's own bootstrap takes its seed from the environment, and
    # fails where some resamples score 0 and others not.
    counts = np.asarray(metric._extract_corpus_statistics(list(texts), streams), np.float64)

    def of_counts(total: np.ndarray) -> float:
        return float(metric._compute_score_from_stats(total.tolist()).score)

    def of_resamples(indices: np.ndarray, axis: int) -> np.ndarray:
        sums = counts[np.moveaxis(indices, axis, -1).astype(int)].sum(axis=-2)
        return np.apply_along_axis(of_counts, -1, sums)

    return Score(of_counts(counts.sum(axis=0)), bootstrap(of_resamples, np.arange(len(texts))))


def exact_match(text: str, reference: str) -> float:
    """1 if the two are equal after `normalise_answer`, else 0."""
    return float(normalise_answer(text) == normalise_answer(reference))


def token_f1(text: str, reference: str) -> float:
    """F1 of the words that two answers share, after `normalise_answer`; 1 if both are empty.

    Worked: "the red house" against "red brick house" has precision 2/2 and recall 2/3, so 0.8.
    """
    words, wanted = normalise_answer(text).split(), normalise_answer(reference).split()
    if not words or not wanted:
        return float(words == wanted)
    shared = sum((collections.Counter(words) & collections.Counter(wanted)).values())
    return 2 * shared / (len(words) + len(wanted))


def normalise_answer(text: str) -> str:
    """As SQuAD compares answers: lower case, no punctuation, no English articles, single spaces."""
    bare = "".join(mark for mark in text.lower() if mark not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())


def check_bertscore(directory: Path | None) -> Path:
    """The directory of an encoder for BERTScore, of Hugging Face's form.

    Raises ValueError if none was given or bert-score is not installed, FileNotFoundError if it holds no model.
    """
    if directory is None:
        raise ValueError("metric bertscore needs a local encoder: give its directory, --bertscore-model DIR")
    if not (directory / "config.json").is_file():
        raise FileNotFoundError(f"--bertscore-model {directory}: not a directory of a Hugging Face model")
    if importlib.util.find_spec("bert_score") is None:
        raise ValueError(
            "metric bertscore needs bert-score, which is not installed: pip install 'skipjax[bertscore]' brings it"
        )
    return directory


def _bertscore(directory: Path, texts: Sequence[str], references: Sequence[Sequence[str]]) -> list[float]:
    """F1 of each text against its best reference, 0 for an empty one: at the layer that bert-score has chosen for an
    encoder of the directory's name (roberta-large, ...), at the last one of others; without rescaling."""
    from bert_score import BERTScorer
    from bert_score.utils import model2layers

    config = read_json(directory / "config.json")
    layer = model2layers.get(directory.resolve().name, config["num_hidden_layers"])
    written = [index for index, text in enumerate(texts) if text.strip()]
    scores = [0.0] * len(texts)
    if written:
        scorer = BERTScorer(model_type=str(directory), num_layers=layer, device="cpu")
        # bert-score cuts texts at a length that tokenizers without one give as a number too large for themselves.
        tokenizer = scorer._tokenizer
        tokenizer.model_max_length = min(tokenizer.model_max_length, config.get("max_position_embeddings", 512) - 2)
        several = [[one for one in references[index] if one.strip()] for index in written]
        _, _, f1 = scorer.score([texts[index] for index in written], several)
        for index, value in zip(written, f1, strict=True):
            scores[index] = float(value)
    return scores

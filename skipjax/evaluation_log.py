"""What an evaluation has generated so far, kept on disk as it comes, so that one that was killed goes on.

A `JsonLog` with one entry per batch and setting, in the order in which they were run.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import jax
import numpy as np

from skipjax.adaptive import AdaptiveThreshold
from skipjax.fingerprint import fingerprint
from skipjax.generation import Generation, Stats
from skipjax.json_log import JsonLog
from skipjax.language_model import LanguageModel
from skipjax.perplexity import Losses
from skipjax.prompts import pad_token
from skipjax.sampling import Sampling
from skipjax.settings import Setting

FORMAT = "skipjax evaluation 1"


def request(
    lm: LanguageModel,
    inputs: Sequence[Any],
    settings: Sequence[Setting],
    *,
    batch_size: int,
    max_new_tokens: int,
    sampling: Sampling,
    perplexity: bool,
) -> dict[str, Any]:
    """What was asked for, as JSON: all that generated texts and their times depend on. `inputs` are dataclasses."""
    written = json.dumps([dataclasses.asdict(entry) for entry in inputs])
    return {
        "format": FORMAT,
        "weights": fingerprint(lm, exits=True),
        "dtype": lm.dtype.name,
        "execution": lm.execution,
        "device": jax.devices()[0].device_kind,
        "number of inputs": len(inputs),
        "inputs": hashlib.sha256(written.encode()).hexdigest(),
        "settings": [setting.label for setting in settings],
        "arguments": [setting.to_json()["arguments"] for setting in settings],
        "sampling": dataclasses.asdict(sampling),
        "batch_size": batch_size,
        "max_new_tokens": max_new_tokens,
        "perplexity": perplexity,
    }


@dataclasses.dataclass(frozen=True)
class Entry:
    """One batch with one setting.

    Attributes:
      out: what was generated, without its adaptive threshold.
      learnt: the adaptive threshold after the batch; None for methods without.
      losses: of the references of the batch; None if they were not asked for, or the method has none.
      session: number of the run that generated it, from 0; times of different runs say nothing about each other.
    """

    out: Generation
    learnt: AdaptiveThreshold | None
    losses: Losses | None
    session: int

    def to_json(self, before: AdaptiveThreshold | None) -> dict[str, Any]:
        """`before` is the adaptive threshold before the batch: only what it learnt since is written."""
        out = self.out
        rows = [(row, slice(int(length))) for row, length in enumerate(out.lengths)]
        confidences = [out.confidences[row, real] for row, real in rows]
        stats = {**dataclasses.asdict(out.stats), "exits": out.stats.exits.tolist()}
        return {
            "texts": out.texts,
            "tokens": [out.tokens[row, real].tolist() for row, real in rows],
            "depths": [out.depths[row, real].tolist() for row, real in rows],
            "confidences": [[None if np.isnan(one) else float(one) for one in row] for row in confidences],
            "finish_reasons": out.finish_reasons,
            "stats": stats,
            "learnt": None if self.learnt is None else _learnt(self.learnt, before),
            "losses": self.losses,
            "session": self.session,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any], columns: int, pad: int, before: AdaptiveThreshold | None) -> Entry:
        """Inverse of `to_json`, with arrays [B, columns] that hold `pad` after the end of a text."""
        sure = [[np.nan if one is None else one for one in row] for row in data["confidences"]]
        out = Generation(
            tokens=_padded(data["tokens"], columns, np.int32, pad),
            lengths=np.array([len(row) for row in data["tokens"]], np.int32),
            depths=_padded(data["depths"], columns, np.int32, 0),
            confidences=_padded(sure, columns, np.float32, np.nan),
            texts=data["texts"],
            finish_reasons=data["finish_reasons"],
            stats=Stats(**{**data["stats"], "exits": np.array(data["stats"]["exits"])}),
        )
        learnt, losses = data["learnt"], data["losses"]
        return cls(
            out,
            None if learnt is None else _relearnt(learnt, before),
            None if losses is None else [(nats, tokens) for nats, tokens in losses],
            int(data["session"]),
        )


def _learnt(after: AdaptiveThreshold, before: AdaptiveThreshold | None) -> dict[str, Any]:
    known = 0 if before is None else len(before.confidences)
    return {
        "confidences": after.confidences[known:].tolist(),
        "agreements": after.agreements[known:].astype(int).tolist(),
        **{name: getattr(after, name) for name in ("fits", "a", "b")},
    }


def _relearnt(data: dict[str, Any], before: AdaptiveThreshold | None) -> AdaptiveThreshold:
    before = AdaptiveThreshold() if before is None else before
    return dataclasses.replace(
        before,
        confidences=np.concatenate([before.confidences, np.array(data["confidences"], np.float32)]),
        agreements=np.concatenate([before.agreements, np.array(data["agreements"], np.bool_)]),
        fits=data["fits"],
        a=tuple(data["a"]),
        b=tuple(data["b"]),
    )


def _padded(rows: Sequence[Sequence[Any]], columns: int, dtype: Any, fill: Any) -> np.ndarray:
    array = np.full((len(rows), columns), fill, dtype)
    for place, row in enumerate(rows):
        array[place, : len(row)] = row
    return array


class EvaluationLog:
    """The entries that earlier runs of the same evaluation wrote, and a place for more. A context manager.

    Args:
      path: of the file, made if there is none, with its directory; None keeps nothing.
      asked: from `request`.
      lm: the model that it is about.
    Attributes:
      session: number of this run, from 0, once all entries of earlier ones were taken.
    Raises:
      ValueError: the file is of an evaluation of something else, or damaged; it is left as it is.
    """

    def __init__(self, path: Path | None, asked: dict[str, Any], lm: LanguageModel):
        self._columns, self._settings, self._pad = asked["max_new_tokens"], len(asked["settings"]), pad_token(lm.config)
        self._path, self._taken, self.session = path, 0, 0
        self._log: JsonLog | None = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._log = JsonLog(path, asked, what="an evaluation", flag="--out")
        self._kept = iter(self._log or ())

    @property
    def done(self) -> int:
        """How many entries earlier runs have written."""
        return len(self._log or ())

    def take(self, before: AdaptiveThreshold | None, rows: int) -> Entry | None:
        """The next entry of earlier runs, of a batch of so many `rows`; None after the last. `before` is the adaptive
        threshold before it."""
        data, place = next(self._kept, None), divmod(self._taken, self._settings)
        if data is None:
            return None
        try:
            if (data["batch"], data["setting"]) != place:
                raise ValueError(f"expected batch {place[0]} with setting {place[1]}")
            if len(data["texts"]) != rows or not all(isinstance(text, str) for text in data["texts"]):
                raise ValueError(f"expected {rows} texts")
            entry = Entry.from_json(data, self._columns, self._pad, before)
            if len(entry.out.lengths) != rows:
                raise ValueError(f"expected the tokens of {rows} texts")
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{self._path}: line {self._taken + 2} is damaged ({error})") from None
        self._taken += 1
        self.session = entry.session + 1
        return entry

    def append(self, entry: Entry, before: AdaptiveThreshold | None) -> None:
        """Writes one entry more, at once, after all of earlier runs were taken."""
        if self._log is not None:
            batch, setting = divmod(self._taken, self._settings)
            self._log.append({"batch": batch, "setting": setting, **entry.to_json(before)})
        self._taken += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._log is not None:
            self._log.close()

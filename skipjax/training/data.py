"""Examples for fine-tuning: rows of text from a file or the hub, turned into prompt and target tokens up front."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import string
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from skipjax import checks
from skipjax.config import ModelConfig
from skipjax.tokenizer import Tokenizer

# Suffix of a local file -> (name of the `datasets` reader, its options). Each may be followed by .gz.
READERS: dict[str, tuple[str, dict[str, Any]]] = {
    # An empty cell stays an empty text and "NA" or "null" stays a word.
    ".csv": ("csv", {"keep_default_na": False}),
    ".tsv": ("csv", {"keep_default_na": False, "sep": "\t"}),
    ".json": ("json", {}),
    ".jsonl": ("json", {}),
    ".parquet": ("parquet", {}),
}

SQUAD_COLUMNS = {"data", "version"}  # of SQuAD's own files, which nest their questions


@dataclasses.dataclass(frozen=True)
class Examples:
    """Tokenised examples.

    Attributes:
      prompts: token ids, one int32 array per example, with whatever the tokenizer puts before a text (BOS).
      targets: token ids of the text to be generated, EOS last.
      dropped: how many rows were left out, by reason.
    """

    prompts: Sequence[np.ndarray]
    targets: Sequence[np.ndarray]
    dropped: dict[str, int]

    def __len__(self) -> int:
        return len(self.prompts)


def load_rows(data: str | Path, *, split: str = "train", limit: int | None = None) -> Any:
    """Rows as a `datasets.Dataset`.

    Args:
      data: a .csv, .tsv, .json, .jsonl or .parquet file, also gzipped, or the name of a data set on the hub. The
        questions of SQuAD's nested .json become rows.
      split: which split of a hub dataset; a file has only "train".
      limit: keep the first `limit` rows.
    Raises:
      FileNotFoundError: no such file, and no such dataset in reach.
      ValueError: a file of another kind, a file that cannot be read, no rows, an unknown split.
    """
    import datasets  # slow to import, and only training needs it

    if limit is not None:
        checks.integer("limit", limit, 1)
    path = Path(data)
    if path.is_dir():
        raise ValueError(f"data must be a file or the name of a dataset on the hub, got the directory {str(data)!r}")
    with _quiet(datasets):
        if path.is_file():
            rows = _from_file(datasets, path)
        elif path.suffix == ".gz" or path.suffix in READERS or str(data).count("/") > 1:
            raise FileNotFoundError(f"data: there is no file {str(data)!r}")
        else:
            rows = _from_hub(datasets, str(data), split)
    if limit is not None:
        rows = rows.select(range(min(limit, len(rows))))
    if len(rows) == 0:
        raise ValueError(f"data must have at least one row, {str(data)!r} has none")
    return rows


def _from_file(datasets: Any, path: Path) -> Any:
    suffix = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    reader, options = READERS.get(suffix, (None, {}))
    if reader is None:
        raise ValueError(f"data must be a {', '.join(READERS)} file (or one of them with .gz), got {str(path)!r}")
    try:
        rows = datasets.load_dataset(reader, data_files=str(path), split="train", **options)
        if set(rows.column_names) != SQUAD_COLUMNS:
            return rows
        return _questions(datasets, datasets.load_dataset(reader, data_files=str(path), split="train", field="data"))
    except Exception as error:  # each reader raises its own kinds
        reason = str(error.__cause__ or error).strip().split("\n")[0]
        if "corresponds to no data" in reason:
            raise ValueError(f"data must have at least one row, {str(path)!r} has none") from None
        raise ValueError(f"data: {str(path)!r} cannot be read as {suffix[1:]} ({reason})") from error


def _questions(datasets: Any, articles: Any) -> Any:
    """The questions of SQuAD's nested file, {"data": [{"title", "paragraphs": [{"context", "qas"}]}], "version"}, one a
    row, with the columns title, context, id, question and answers ({"text": [...], "answer_start": [...]})."""
    return datasets.Dataset.from_list(
        [
            {
                "title": article["title"],
                "context": paragraph["context"],
                "id": question["id"],
                "question": question["question"],
                "answers": {key: [one[key] for one in question["answers"]] for key in ("text", "answer_start")},
            }
            for article in articles
            for paragraph in article["paragraphs"]
            for question in paragraph["qas"]
        ]
    )


def _from_hub(datasets: Any, name: str, split: str) -> Any:
    try:
        return datasets.load_dataset(name, split=split)
    except (OSError, datasets.exceptions.DatasetNotFoundError) as error:  # OSError: being offline, in all its forms
        raise FileNotFoundError(
            f"data must be a file or the name of a dataset on the Hugging Face hub that can be reached, got {name!r}"
            f" ({str(error).splitlines()[0]})"
        ) from error
    except ValueError as error:
        raise ValueError(f"data {name!r} with split {split!r}: {str(error).splitlines()[0]}") from error


@contextlib.contextmanager
def _quiet(datasets: Any) -> Iterator[None]:
    """Nothing of `datasets` in the terminal while a file is read: no bars, no logs of what is raised as well."""
    were_on, verbosity = datasets.is_progress_bar_enabled(), datasets.logging.get_verbosity()
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    try:
        yield
    finally:
        datasets.logging.set_verbosity(verbosity)
        if were_on:
            datasets.enable_progress_bars()


@dataclasses.dataclass(frozen=True)
class Template:
    """A prompt with {column} fields; {{ and }} stand for braces.

    Worked: Template.parse("{mr} -> ").fill({"mr": "name[A]"}) is "name[A] -> ".
    """

    parts: tuple[tuple[str, str | None], ...]  # (text, then the column that follows it or None)

    @classmethod
    def parse(cls, text: str) -> Template:
        """Raises ValueError for unbalanced braces, for a field without a name and for a format after a name."""
        try:
            parsed = list(string.Formatter().parse(text))
        except ValueError as error:
            raise ValueError(f"prompt_template must have balanced braces ({error}), got {text!r}") from None
        for _, name, spec, conversion in parsed:
            if name == "" or spec or conversion:
                raise ValueError(f"prompt_template may hold only plain {{column}} fields, got {text!r}")
        return cls(tuple((before, name) for before, name, _, _ in parsed))

    @property
    def columns(self) -> list[str]:
        return [name for _, name in self.parts if name is not None]

    def fill(self, row: dict[str, Any]) -> str:
        return "".join(before + (as_text(row[name]) if name is not None else "") for before, name in self.parts)


def as_text(value: Any) -> str:
    """A cell as text: nothing for a missing one, the sentences of a list joined by spaces, JSON for others."""
    if value is None:
        return ""
    if isinstance(value, list) and value and all(isinstance(one, str) for one in value):
        return " ".join(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def targets_of(value: Any) -> list[str]:
    """The texts that a target cell holds, each once: itself, the texts of a list, or the "text" of SQuAD's answers,
    {"text": [...]} or [{"text": ...}, ...]; an empty text if there is none."""
    if isinstance(value, dict) and "text" in value:
        value = value["text"]
    several = value if isinstance(value, list) else [value]
    texts = [one["text"] if isinstance(one, dict) and "text" in one else one for one in several]
    if all(isinstance(text, str) for text in texts):
        return list(dict.fromkeys(texts)) or [""]
    return [as_text(value)]


def prompts_and_targets(rows: Any, prompt_template: str, target_column: str) -> tuple[list[str], list[str]]:
    """Texts of all rows, in order; a row whose target cell holds several (`targets_of`) gives one pair for each.

    Raises ValueError for a column the data does not have, naming those it has.
    """
    template = Template.parse(prompt_template)
    columns = list(rows.column_names)
    for argument, name in [("target_column", target_column), *(("prompt_template", name) for name in template.columns)]:
        if name not in columns:
            raise ValueError(f"{argument} names the column {name!r}, but the data has {', '.join(map(repr, columns))}")
    cells = {name: list(rows[name]) for name in {*template.columns, target_column}}
    prompts, targets = [], []
    for index in range(len(rows)):
        several = targets_of(cells[target_column][index])
        prompts += [template.fill({name: cells[name][index] for name in template.columns})] * len(several)
        targets += several
    return prompts, targets


def end_token(config: ModelConfig, tokenizer: Tokenizer) -> int:
    """The id that ends a target: the first of `config.eos_ids`. Raises ValueError if the model has none."""
    if not config.eos_ids:
        raise ValueError("model must have an end-of-text token (eos_token_id in its config), it has none")
    return config.eos_ids[0]


def tokenize(
    rows: Any,
    tokenizer: Tokenizer,
    config: ModelConfig,
    *,
    prompt_template: str,
    target_column: str,
    max_prompt_tokens: int | None = None,
    max_target_tokens: int | None = None,
) -> Examples:
    """Prompt and target tokens of every row that fits.

    Left out and counted: rows with an empty target or prompt, rows longer than `max_prompt_tokens` or
    `max_target_tokens` (EOS counted) where given, and rows longer than the model's positions. Nothing is ever cut.
    Raises ValueError for unknown columns, a tokenizer with ids outside the model's vocabulary, or if no row is left.
    """
    for name, value in (("max_prompt_tokens", max_prompt_tokens), ("max_target_tokens", max_target_tokens)):
        if value is not None:
            checks.integer(name, value, 1, config.max_positions)
    end = end_token(config, tokenizer)
    texts = prompts_and_targets(rows, prompt_template, target_column)
    known: dict[tuple[str, bool], np.ndarray] = {}

    def encode(text: str, special_tokens: bool) -> np.ndarray:
        key = (text, special_tokens)
        if key not in known:  # data sets with many references per prompt repeat their prompts
            known[key] = np.asarray(tokenizer.encode(text, add_special_tokens=special_tokens), np.int32)
        return known[key]

    prompts, targets = [], []
    dropped: dict[str, int] = {}
    for prompt_text, target_text in zip(*texts, strict=True):
        prompt = encode(prompt_text, True)
        target = np.append(encode(target_text, False), np.int32(end))
        if not target_text.strip():
            reason = "empty target"
        elif not len(prompt):
            reason = "empty prompt"
        elif max_prompt_tokens is not None and len(prompt) > max_prompt_tokens:
            reason = f"prompt over {max_prompt_tokens} tokens"
        elif max_target_tokens is not None and len(target) > max_target_tokens:
            reason = f"target over {max_target_tokens} tokens"
        elif config.max_positions is not None and len(prompt) + len(target) - 1 > config.max_positions:
            reason = f"over the model's {config.max_positions} positions"
        else:
            prompts.append(prompt)
            targets.append(target)
            continue
        dropped[reason] = dropped.get(reason, 0) + 1
    if not prompts:
        reasons = ", ".join(f"{count} with {reason}" for reason, count in dropped.items())
        raise ValueError(f"data must have at least one usable row, all were left out: {reasons}")
    highest = max(int(ids.max()) for ids in (*prompts, *targets))
    if highest >= config.vocab_size:
        raise ValueError(
            f"tokenizer must fit the model: it gives token id {highest}, the model's vocabulary has {config.vocab_size}"
        )
    return Examples(prompts, targets, dropped)

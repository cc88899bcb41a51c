"""Prompts on their way to the device: checked, encoded, left-padded into a few static shapes."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from skipjax.config import ModelConfig
from skipjax.language_model import LanguageModel

Prompt = str | Sequence[int]


@dataclasses.dataclass(frozen=True)
class Part:
    """What a batch needs to know where its prompts are a part of more that are continued in several batches.

    Attributes:
      occurrences: for each prompt of the batch, how many equal ones stand before it among all (`occurrences_of` all).
      rows, columns: the batch is padded as one of so many prompts, and of such a length, would be: all batches of one
        shape share a program.
    """

    occurrences: Sequence[int]
    rows: int = 1
    columns: int = 1


def encode_prompts(
    lm: LanguageModel,
    prompts: Sequence[Prompt] | np.ndarray,
    max_new_tokens: int,
    names: Sequence[str] | None = None,
) -> list[list[int]]:
    """Token ids of each prompt, checked: ids in the vocabulary, none empty, all within the model's positions. `names`
    are what errors call the prompts; "prompt 0" and so on if left out."""
    if isinstance(prompts, str | bytes) or not isinstance(prompts, Sequence | np.ndarray):
        raise ValueError(f"prompts must be a list of texts or of token-id lists, got {prompts!r:.80}")
    if len(prompts) == 0:
        raise ValueError("prompts must hold at least one prompt, got an empty list")
    rows = []
    for index, prompt in enumerate(prompts):
        name = f"prompt {index}" if names is None else names[index]
        if isinstance(prompt, str):
            if lm.tokenizer is None:
                raise ValueError(f"{name} is a text, but this checkpoint has no tokenizer: give token ids")
            row = lm.tokenizer.encode(prompt)
        else:
            row = _token_ids(name, prompt, lm.config.vocab_size)
        if not row:
            raise ValueError(f"{name} has no tokens: give at least one")
        longest = lm.config.max_positions
        if longest is not None and len(row) + max_new_tokens > longest:
            raise ValueError(
                f"{name} has {len(row)} tokens; with max_new_tokens={max_new_tokens} that is beyond the model's"
                f" {longest} positions"
            )
        rows.append(row)
    return rows


def _token_ids(name: str, prompt: Any, vocab_size: int) -> list[int]:
    try:
        array = np.asarray(prompt)
    except ValueError:
        array = np.asarray(["ragged"])
    if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
        raise ValueError(f"{name} must be a text or a list of token ids, got {prompt!r:.80}")
    if array.size and (array.min() < 0 or array.max() >= vocab_size):
        wrong = int(array[(array < 0) | (array >= vocab_size)][0])
        raise ValueError(f"{name} has token id {wrong}, outside the vocabulary of {vocab_size}")
    return [int(token) for token in array]


def bucket(size: int, smallest: int) -> int:
    """The next of smallest x (1, 1.5, 2, 3, 4, 6, ...) that is at least `size`: few shapes, at most a third wasted."""
    power = smallest
    while power < size:
        if power >= 2 and power * 3 // 2 >= size:
            return power * 3 // 2
        power *= 2
    return power


def occurrences_of(rows: Sequence[Sequence[int]]) -> list[int]:
    """For each row how many equal ones stand before it."""
    seen: collections.Counter[tuple[int, ...]] = collections.Counter()
    occurrences = []
    for row in map(tuple, rows):
        occurrences.append(seen[row])
        seen[row] += 1
    return occurrences


def pad_left(
    rows: Sequence[Sequence[int]], pad_id: int, least: tuple[int, int] = (1, 1)
) -> tuple[np.ndarray, np.ndarray]:
    """Rows as int32 [B, P] in their buckets (batch 1, 2, 3, 4, 6, 8, ...; prompt 16, 24, 32, 48, ...), B and P being at
    least `least`, and int32 [B] padding. Rows that fill up the batch hold one pad token as their prompt."""
    batch, length = bucket(max(len(rows), least[0]), 1), bucket(max(*map(len, rows), least[1]), 16)
    padded = np.full((batch, length), pad_id, np.int32)
    padding = np.full(batch, length - 1, np.int32)
    for index, row in enumerate(rows):
        padded[index, length - len(row) :] = row
        padding[index] = length - len(row)
    return padded, padding


def pad_token(config: ModelConfig) -> int:
    """The id written after the end of a row: the checkpoint's pad token, else its first end of sequence, else 0."""
    if config.pad_id is not None:
        return config.pad_id
    return config.eos_ids[0] if config.eos_ids else 0

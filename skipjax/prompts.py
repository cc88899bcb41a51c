"""Prompts on their way to the device: checked, encoded, left-padded into a few static shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from skipjax.config import ModelConfig
from skipjax.language_model import LanguageModel

Prompt = str | Sequence[int]


def encode_prompts(lm: LanguageModel, prompts: Sequence[Prompt] | np.ndarray, max_new_tokens: int) -> list[list[int]]:
    """Token ids of each prompt, checked: ids in the vocabulary, none empty, all within the model's positions."""
    if isinstance(prompts, str | bytes) or not isinstance(prompts, Sequence | np.ndarray):
        raise ValueError(f"prompts must be a list of texts or of token-id lists, got {prompts!r:.80}")
    if len(prompts) == 0:
        raise ValueError("prompts must hold at least one prompt, got an empty list")
    rows = []
    for index, prompt in enumerate(prompts):
        if isinstance(prompt, str):
            if lm.tokenizer is None:
                raise ValueError(f"prompt {index} is a text, but this checkpoint has no tokenizer: give token ids")
            row = lm.tokenizer.encode(prompt)
        else:
            row = _token_ids(index, prompt, lm.config.vocab_size)
        if not row:
            raise ValueError(f"prompt {index} has no tokens: give at least one")
        longest = lm.config.max_positions
        if longest is not None and len(row) + max_new_tokens > longest:
            raise ValueError(
                f"prompt {index} has {len(row)} tokens; with max_new_tokens={max_new_tokens} that is beyond the model's"
                f" {longest} positions"
            )
        rows.append(row)
    return rows


def _token_ids(index: int, prompt: Any, vocab_size: int) -> list[int]:
    try:
        array = np.asarray(prompt)
    except ValueError:
        array = np.asarray(["ragged"])
    if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
        raise ValueError(f"prompt {index} must be a text or a list of token ids, got {prompt!r:.80}")
    if array.size and (array.min() < 0 or array.max() >= vocab_size):
        wrong = int(array[(array < 0) | (array >= vocab_size)][0])
        raise ValueError(f"prompt {index} has token id {wrong}, outside the vocabulary of {vocab_size}")
    return [int(token) for token in array]


def bucket(size: int, smallest: int) -> int:
    """The next of smallest x (1, 1.5, 2, 3, 4, 6, ...) that is at least `size`: few shapes, at most a third wasted."""
    power = smallest
    while power < size:
        if power >= 2 and power * 3 // 2 >= size:
            return power * 3 // 2
        power *= 2
    return power


def pad_left(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows as int32 [B, P] in their buckets (batch 1, 2, 3, 4, 6, 8, ...; prompt 16, 24, 32, 48, ...) and int32 [B]
    padding. Rows that fill up the batch hold one pad token as their prompt."""
    batch, length = bucket(len(rows), 1), bucket(max(map(len, rows)), 16)
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

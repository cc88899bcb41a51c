"""Teacher-forced logits: what a model says of given texts, at full depth or at the depths of a schedule."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from skipjax import checks
from skipjax.config import ModelConfig
from skipjax.decoder import Params, ends_of, teacher_forced
from skipjax.language_model import LanguageModel, checked_model
from skipjax.methods import Full, Method, checked
from skipjax.prompts import encode_prompts, pad_token


def forward(
    lm: LanguageModel,
    token_ids: Sequence[Sequence[int]] | np.ndarray,
    method: Method | None = None,
    *,
    prompt_length: int | Sequence[int] | None = None,
) -> np.ndarray:
    """Logits of every position, without a cache. With a method they equal, position by position, what cached decoding
    computes on the same tokens (SkipDecode, section 3, as a mask over columns).

    Args:
      lm: from `load`.
      token_ids: B rows of token ids, ragged or not.
      method: `Full()` if left out. A `SkipDecode` runs columns from `prompt_length` on at falling depth; without a
        horizon of its own it takes the number of those columns + 1, the budget that would have produced the row.
      prompt_length: tokens of each row that are prompt, run at full depth; one number or one per row. Needed with a
        `SkipDecode` only.
    Returns:
      float32 [B, T, V], T the longest row; row b holds logits at its first len(row) positions, zeros after.
    Raises:
      ValueError: as `generate`, and for a prompt_length outside 1..len(row).
    """
    method = checked(method, checked_model(lm).config.num_layers)
    rows = encode_prompts(lm, token_ids, 0)
    lengths = [len(row) for row in rows]
    if prompt_length is None:
        if not isinstance(method, Full):
            raise ValueError(f"prompt_length must say where the generated columns begin, for {method}")
        prompts = lengths
    else:
        array = np.asarray(prompt_length)
        given = array.tolist() if array.ndim else [array.item()] * len(rows)
        if len(given) != len(rows):
            raise ValueError(f"prompt_length must be one number or {len(rows)}, one per row, got {len(given)}")
        prompts = [checks.integer("prompt_length", n, 1, length) for n, length in zip(given, lengths, strict=True)]
    # Rows are aligned where their prompts end, as in a left-padded batch: depth is a function of the column.
    start = max(prompts)
    after = max(length - prompt for length, prompt in zip(lengths, prompts, strict=True))
    tokens = np.full((len(rows), start + after), pad_token(lm.config), np.int32)
    padding = np.array([start - prompt for prompt in prompts], np.int32)
    for row, ids, pad in zip(tokens, rows, padding, strict=True):
        row[pad : pad + len(ids)] = ids
    plan = method.resolve(after + 1).plan(lm.config.num_layers, after)
    columns = tuple(start + kept for kept in plan.kept)
    aligned = np.asarray(_logits(lm.config, columns, lm.params, tokens, padding))
    result = np.zeros((len(rows), max(lengths), aligned.shape[-1]), np.float32)
    for index, (length, pad) in enumerate(zip(lengths, padding, strict=True)):
        result[index, :length] = aligned[index, pad : pad + length]
    return result


@functools.partial(jax.jit, static_argnames=("config", "columns"))
def _logits(
    config: ModelConfig, columns: tuple[int, ...], params: Params, tokens: jax.Array, padding: jax.Array
) -> jax.Array:
    """float32 [B, C, V] for left-padded tokens int32 [B, C]."""
    return ends_of(config, params).logits(teacher_forced(config, params, tokens, padding, columns)).astype(jnp.float32)

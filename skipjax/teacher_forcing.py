"""Teacher-forced logits: what a model says of given texts, at full depth or at the depths of a schedule."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from skipjax import checks
from skipjax.config import ModelConfig
from skipjax.decoder import Params, encode, ends_of, teacher_forced
from skipjax.language_model import LanguageModel, checked_model
from skipjax.methods import Full, Method, SkipDecode, checked
from skipjax.prompts import Prompt, encode_prompts, pad_token


def forward(
    lm: LanguageModel,
    token_ids: Sequence[Sequence[int]] | np.ndarray,
    method: Method | None = None,
    *,
    prompt_length: int | Sequence[int] | None = None,
    sources: Sequence[Prompt] | np.ndarray | None = None,
) -> np.ndarray:
    """Logits of every position, without a cache. With a method they equal, position by position, what cached decoding
    computes on the same tokens (SkipDecode, section 3, as a mask over columns).

    Args:
      lm: from `load`.
      token_ids: B rows of token ids, ragged or not. For an encoder-decoder model they are what the decoder reads, the
        start token (`lm.config.start_id`) first, as Hugging Face's decoder_input_ids.
      method: `Full()` if left out, or a `SkipDecode`; depths of other methods depend on what is decoded. A `SkipDecode`
        runs columns from `prompt_length` on at falling depth; without a horizon of its own it takes the number of those
        columns + 1, the budget that would have produced the row.
      prompt_length: tokens of each row that are prompt, run at full depth; one number or one per row. Needed with a
        `SkipDecode` only; for an encoder-decoder model it is 1 if left out, the start token.
      sources: what the encoder reads, one text or list of token ids per row; needed for an encoder-decoder model only.
    Returns:
      float32 [B, T, V], T the longest row; row b holds logits at its first len(row) positions, zeros after.
    Raises:
      ValueError: as `generate`, and for a prompt_length outside 1..len(row), a method of another kind, and sources that
        are missing, not one per row, or given to a decoder-only model.
    """
    config = checked_model(lm).config
    method = checked(method, config)
    if not isinstance(method, Full | SkipDecode):
        raise ValueError(f"method must be Full() or SkipDecode(...) for teacher-forced logits, got {method!r}")
    rows = encode_prompts(lm, token_ids, 0)
    source = _sources(lm, sources, len(rows))
    lengths = [len(row) for row in rows]
    if prompt_length is None and config.encoder_layers is not None:
        prompt_length = 1
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
    padding = np.array([start - prompt for prompt in prompts], np.int32)
    tokens = _laid_out(rows, padding, start + after, config)
    plan = method.resolve(after + 1).plan(config.num_layers, after)
    columns = tuple(start + kept for kept in plan.kept)
    aligned = np.asarray(_logits(config, columns, lm.params, tokens, padding, source))
    result = np.zeros((len(rows), max(lengths), aligned.shape[-1]), np.float32)
    for index, (length, pad) in enumerate(zip(lengths, padding, strict=True)):
        result[index, :length] = aligned[index, pad : pad + length]
    return result


def _sources(
    lm: LanguageModel, sources: Sequence[Prompt] | np.ndarray | None, count: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """Left-padded sources int32 [B, S] and their padding int32 [B]; None for a decoder-only model."""
    if lm.config.encoder_layers is None:
        if sources is not None:
            raise ValueError("sources are for encoder-decoder models only, and this model has no encoder")
        return None
    if sources is None:
        raise ValueError("sources must say what the encoder reads, one for each row of token_ids")
    if isinstance(sources, str | bytes) or not hasattr(sources, "__len__") or len(sources) != count:
        raise ValueError(f"sources must be a list of {count}, one for each row of token_ids, got {sources!r:.80}")
    rows = encode_prompts(lm, sources, 0)
    longest = max(map(len, rows))
    padding = np.array([longest - len(row) for row in rows], np.int32)
    return _laid_out(rows, padding, longest, lm.config), padding


def _laid_out(rows: list[list[int]], padding: np.ndarray, length: int, config: ModelConfig) -> np.ndarray:
    """int32 [B, length]: each row after its padding, with pad tokens around it."""
    tokens = np.full((len(rows), length), pad_token(config), np.int32)
    for row, ids, pad in zip(tokens, rows, padding, strict=True):
        row[pad : pad + len(ids)] = ids
    return tokens


@functools.partial(jax.jit, static_argnames=("config", "columns"))
def _logits(
    config: ModelConfig,
    columns: tuple[int, ...],
    params: Params,
    tokens: jax.Array,
    padding: jax.Array,
    source: tuple[jax.Array, jax.Array] | None,
) -> jax.Array:
    """float32 [B, C, V] for left-padded tokens int32 [B, C] and what `_sources` gives."""
    memory = None if source is None else encode(config, params, *source)
    h = teacher_forced(config, params, tokens, padding, columns, memory=memory)
    return ends_of(config, params).logits(h).astype(jnp.float32)

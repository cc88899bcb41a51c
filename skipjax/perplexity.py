"""How well a model predicts the references of an evaluation at the depths of a method (teacher forced)."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from skipjax.config import ModelConfig
from skipjax.decoder import Params
from skipjax.language_model import LanguageModel
from skipjax.methods import Full, Method, SkipDecode
from skipjax.metrics import Score, bootstrap, ratio_of_means
from skipjax.prompts import bucket, pad_token
from skipjax.training.batches import MULTIPLE, Batch, make_batch
from skipjax.training.data import Examples, end_token
from skipjax.training.loss import real_targets, target_logits, target_nats

Losses = list[tuple[float, int]]  # of each input: nats and tokens of its references, their ends counted


class References:
    """The references of some inputs, tokenised: each one's text and the end-of-text token.

    Args:
      lm: with a tokenizer.
      prompts: token ids of each input.
      references: texts, at least one for each input.
    Raises:
      ValueError: the model has no end-of-text token, or a reference does not fit into its positions.
    """

    def __init__(self, lm: LanguageModel, prompts: Sequence[Sequence[int]], references: Sequence[Sequence[str]]):
        assert lm.tokenizer is not None, "checked by the evaluation"
        end = end_token(lm.config, lm.tokenizer)
        self._prompts = [np.asarray(prompt, np.int32) for prompt in prompts]
        self._targets = [
            [np.asarray([*lm.tokenizer.encode(text, add_special_tokens=False), end], np.int32) for text in several]
            for several in references
        ]
        self._longest = max(len(target) for several in self._targets for target in several)
        most = lm.config.max_positions
        for index, (prompt, several) in enumerate(zip(self._prompts, self._targets, strict=True)):
            needed = len(prompt) + max(map(len, several)) - 1
            if most is not None and needed > most:
                raise ValueError(
                    f"perplexity: a reference of input {index} needs {needed} positions with its prompt, the model has"
                    f" {most}: leave this metric out"
                )

    def losses(self, lm: LanguageModel, method: Method, inputs: Sequence[int], rows: int) -> Losses | None:
        """What the references of `inputs` cost under a resolved method, `rows` at a time.

        None for methods other than `Full` and `SkipDecode`: the depths of others depend on what is decoded.
        """
        if not isinstance(method, Full | SkipDecode):
            return None
        owners = [place for place, index in enumerate(inputs) for _ in self._targets[index]]
        prompts = [self._prompts[index] for index in inputs for _ in self._targets[index]]
        targets = [target for index in inputs for target in self._targets[index]]
        examples = Examples(prompts, targets, {})
        # Rounded up as prompts are, so that batches of about the same length share a program.
        shape = bucket(max(map(len, prompts)), 16), -(-self._longest // MULTIPLE) * MULTIPLE
        nats, tokens = [0.0] * len(inputs), [0] * len(inputs)
        for first in range(0, len(targets), rows):
            chosen = range(first, min(first + rows, len(targets)))
            batch = make_batch(examples, chosen, shape, rows, pad_token(lm.config))
            for row, value in zip(chosen, np.asarray(_nats(lm.config, method, lm.params, batch)), strict=False):
                nats[owners[row]] += float(value)
                tokens[owners[row]] += len(targets[row])
        return list(zip(nats, tokens, strict=True))


@functools.partial(jax.jit, static_argnames=("config", "method"))
def _nats(config: ModelConfig, method: Full | SkipDecode, params: Params, batch: Batch) -> jax.Array:
    """float32 [B], -log p of each row's target."""
    nats = target_nats(target_logits(config, params, batch, method), batch)
    return jnp.sum(jnp.where(real_targets(batch), nats, 0.0), axis=-1)


def perplexity(losses: Losses | None) -> Score:
    """Of all references together: e to the nats per token. None for None."""
    if losses is None:
        return Score(None)
    nats, tokens = np.asarray(losses, np.float64).T
    interval = bootstrap(ratio_of_means, nats, tokens)
    value = float(np.exp(nats.sum() / tokens.sum()))
    return Score(value, None if interval is None else (float(np.exp(interval[0])), float(np.exp(interval[1]))))

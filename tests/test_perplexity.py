"""Perplexity of references against logits of `forward`."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tiny_training
from test_evaluation import CONFIG, NEW, PROMPTS, SPECIAL, word_tokenizer

from skipjax import decoder
from skipjax.language_model import LanguageModel
from skipjax.methods import Calm, Free, Full, SkipDecode, StaticExit
from skipjax.metrics import Score
from skipjax.perplexity import References, perplexity
from skipjax.prompts import encode_prompts
from skipjax.teacher_forcing import forward

REFERENCES = [["w1 w2 w3 w4 w5 w6 w7 w8", "w9"], ["w2"], ["w3 w4", "w5 w6 w7"]]
SKIP = SkipDecode(3, 2, horizon=NEW)


def expected(lm: LanguageModel, method: Full | SkipDecode) -> list[tuple[float, int]]:
    """One reference at a time, from the logits of `forward`."""
    assert lm.tokenizer is not None
    losses = []
    for prompt, several in zip(encode_prompts(lm, PROMPTS[:3], 0), REFERENCES, strict=True):
        nats, tokens = 0.0, 0
        for text in several:
            target = [*lm.tokenizer.encode(text, add_special_tokens=False), 0]
            if lm.config.encoder_layers is None:
                logits = forward(lm, [prompt + target[:-1]], method, prompt_length=len(prompt))[0, len(prompt) - 1 :]
            else:
                logits = forward(lm, [[lm.config.start_id, *target[:-1]]], method, sources=[prompt])[0]
            logits = logits.astype(np.float64)
            log_p = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
            nats -= float(log_p[np.arange(len(target)), target].sum())
            tokens += len(target)
        losses.append((nats, tokens))
    return losses


@pytest.mark.parametrize("method", [Full(), SKIP], ids=["full", "skipdecode"])
@pytest.mark.parametrize("config", [CONFIG, dataclasses.replace(tiny_training.T5, **SPECIAL)], ids=["llama", "t5"])
def test_losses_are_those_of_forward(config, method):
    lm = LanguageModel(config, decoder.init_params(config, 0), word_tokenizer())
    references = References(lm, encode_prompts(lm, PROMPTS[:3], 0), REFERENCES)
    wanted = expected(lm, method)
    losses = references.losses(lm, method, [2, 0, 1], 2)  # in another order, and in batches that cut through an input
    assert losses is not None
    assert [tokens for _, tokens in losses] == [wanted[index][1] for index in (2, 0, 1)] == [7, 11, 2]
    np.testing.assert_allclose([nats for nats, _ in losses], [wanted[index][0] for index in (2, 0, 1)], rtol=1e-5)


def test_depths_that_depend_on_the_text_have_no_perplexity():
    lm = LanguageModel(CONFIG, {}, word_tokenizer())
    references = References(lm, encode_prompts(lm, PROMPTS[:3], 0), REFERENCES)
    for method in (Free(2), StaticExit(2), Calm(0.5)):
        assert references.losses(lm, method, [0, 1, 2], 2) is None
    assert perplexity(None) == Score(None)


def test_perplexity_is_of_all_tokens_together():
    score = perplexity([(np.log(2.0) * 3, 3), (np.log(8.0) * 1, 1)])
    assert score.value == pytest.approx(2 ** (6 / 4))
    assert score.interval == pytest.approx((2, 8))
    assert perplexity([(0.0, 4)]) == Score(1.0)


def test_references_that_do_not_fit_are_refused_before_anything_runs():
    lm = LanguageModel(dataclasses.replace(CONFIG, max_positions=8), {}, word_tokenizer())
    message = "a reference of input 0 needs 11 positions with its prompt, the model has 8: leave this metric out"
    with pytest.raises(ValueError, match=message):
        References(lm, encode_prompts(lm, PROMPTS[:3], 0), REFERENCES)

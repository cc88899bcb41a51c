"""Greedy tokens of a real checkpoint: set SKIPJAX_CHECKPOINT to the directory of a decoder-only Hugging Face model."""

from __future__ import annotations

import os

import numpy as np
import pytest

import skipjax as sj

PROMPTS = [
    "The capital of France is",
    "Gravity is",
    "The three branches of government are",
    "Once upon a time, in a small village,",
    "def fibonacci(n):",
]


pytestmark = pytest.mark.skipif("SKIPJAX_CHECKPOINT" not in os.environ, reason="needs SKIPJAX_CHECKPOINT, a directory")


def test_forty_greedy_tokens_equal_those_of_transformers():
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    directory = os.environ["SKIPJAX_CHECKPOINT"]
    out = sj.generate(sj.load(directory, dtype="float32"), PROMPTS, max_new_tokens=40)
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    for prompt, tokens, length in zip(PROMPTS, out.tokens, out.lengths, strict=True):
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
        expected = model.generate(ids, max_new_tokens=40, do_sample=False)
        assert tokens[:length].tolist() == expected[0, ids.shape[1] :].tolist()


def test_verified_free_is_full_decoding_at_every_threshold():
    lm = sj.load(os.environ["SKIPJAX_CHECKPOINT"], dtype="float32", execution="scanned")
    full = sj.generate(lm, PROMPTS, max_new_tokens=40)
    shallow = lm.config.num_layers // 3
    rates = []
    for threshold in (0.0, 0.25, 0.5, 0.75, 1.0):
        method = sj.Free(shallow, threshold, buffer_size=4, verify="exact")
        out = sj.generate(lm, PROMPTS, method, max_new_tokens=40)
        np.testing.assert_array_equal(out.tokens, full.tokens)
        rates.append(out.stats.exit_share)
        print(f"threshold {threshold}: acceptance {out.stats.acceptance_rate}, exit share {out.stats.exit_share:.2f}")
    assert rates[-1] == 0

"""Greedy tokens of a real checkpoint against transformers: set SKIPJAX_CHECKPOINT to a Hugging Face directory."""

from __future__ import annotations

import os

import pytest

import skipjax as sj

PROMPTS = [
    "The capital of France is",
    "Gravity is",
    "The three branches of government are",
    "Once upon a time, in a small village,",
    "def fibonacci(n):",
]


@pytest.mark.skipif("SKIPJAX_CHECKPOINT" not in os.environ, reason="needs SKIPJAX_CHECKPOINT, a directory")
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

"""transformers and torch as benchmarks run them."""

import importlib.util

import numpy as np
import pytest
from tiny_models import random_prompts, tiny_lm

from skipjax import rivals
from skipjax.generation import generate
from skipjax.rivals import ORDINARY, Rival, Transformers

LOOKUP = Rival("transformers lookup", {"prompt_lookup_num_tokens": 10})


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("llama", [ORDINARY, LOOKUP, Rival("transformers exit 2", {"assistant_early_exit": 2})]),
        ("opt", [ORDINARY, LOOKUP]),
        ("t5", [ORDINARY, LOOKUP]),  # with more layers in the decoder than in the encoder
    ],
)
def test_the_same_tokens(family: str, expected: list[Rival]) -> None:
    pytest.importorskip("torch")
    lm, prompts = tiny_lm(family, "scanned"), np.array(random_prompts([9, 9]))
    tokens = generate(lm, prompts.tolist(), max_new_tokens=8, stop_at_eos=False).tokens
    against = Transformers(lm)
    assert against.rivals(1, None) == expected
    assert against.rivals(2, None) == [ORDINARY]
    assert against.environment()["torch_threads"] == rivals.cores()
    generated, seconds = against.generate(ORDINARY, prompts, 8)
    np.testing.assert_array_equal(generated, tokens)
    assert seconds > 0
    for rival in expected[1:]:
        np.testing.assert_array_equal(against.generate(rival, prompts[:1], 8)[0], tokens[:1])
    drafts = against.rivals(1, 3)[2:]
    assert drafts == ([Rival("transformers exit 3", {"assistant_early_exit": 3})] if family == "llama" else [])


def test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else find(name))
    with pytest.raises(ValueError, match="--against transformers needs torch, which is not installed"):
        rivals.check_installed()

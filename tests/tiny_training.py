"""What the training tests share: examples made of numbers, and the tiny decoder they are for."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
from tiny_models import tiny_config

from skipjax.decoder import init_params
from skipjax.language_model import LanguageModel
from skipjax.training import Examples
from skipjax.training.batches import Batch, make_batch

SMALL = {"vocab_size": 31, "hidden_size": 16, "num_heads": 2, "embed_size": 16, "ffn_size": 24}
LLAMA = tiny_config("llama", 3, **SMALL, num_kv_heads=1)
OPT = tiny_config("opt", 3, **SMALL, num_kv_heads=2)
EOS, PAD = 2, 1


def random_examples(number: int, seed: int = 0, longest_prompt: int = 7, longest_target: int = 9) -> Examples:
    """Random tokens; targets end with EOS."""
    rng = np.random.default_rng(seed)
    prompts, targets = [], []
    for _ in range(number):
        prompts.append(rng.integers(3, 31, rng.integers(1, longest_prompt + 1)).astype(np.int32))
        target = rng.integers(3, 31, rng.integers(0, longest_target))
        targets.append(np.append(target, EOS).astype(np.int32))
    return Examples(prompts, targets, {})


def random_batch(number: int = 4, shape: tuple[int, int] = (7, 9), seed: int = 0) -> Batch:
    examples = random_examples(number, seed, *shape)
    return make_batch(examples, range(number), shape, number, PAD)


def tiny_model(seed: int = 0) -> LanguageModel:
    return LanguageModel(LLAMA, init_params(LLAMA, seed))


def assert_trees_equal(first: Any, second: Any) -> None:
    """Bit for bit."""
    leaves, others = (jax.tree_util.tree_leaves_with_path(tree) for tree in (first, second))
    assert [path for path, _ in leaves] == [path for path, _ in others]
    for (_, one), (_, other) in zip(leaves, others, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def write_csv(path: Path, rows: int = 12) -> Path:
    """Rows as "count 3" -> "3 3 3"."""
    lines = ["in,out"] + [f"count {i % 5 + 1},{' '.join([str(i % 5 + 1)] * (i % 5 + 1))}" for i in range(rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path

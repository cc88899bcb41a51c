"""What the training tests share: examples made of numbers, and the tiny decoder they are for."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
from tiny_models import tiny_config

from skipjax.config import ModelConfig, RelativePositions
from skipjax.decoder import Params, init_params, stack_layers
from skipjax.language_model import LanguageModel
from skipjax.methods import Method
from skipjax.teacher_forcing import forward
from skipjax.training import Examples
from skipjax.training.batches import Batch, make_batch

SMALL = {"vocab_size": 31, "hidden_size": 16, "num_heads": 2, "embed_size": 16, "ffn_size": 24}
LLAMA = tiny_config("llama", 3, **SMALL, num_kv_heads=1)
OPT = tiny_config("opt", 3, **SMALL, num_kv_heads=2)
T5 = tiny_config(  # two encoder and three decoder layers
    "t5",
    3,
    **SMALL,
    num_kv_heads=2,
    max_positions=None,
    norm="rms",
    **dict.fromkeys(("qkv_bias", "output_bias", "mlp_bias", "scale_attention"), False),
    position_offset=0,
    bos_id=None,
    encoder_layers=2,
    start_id=1,
    relative=RelativePositions(8, 20),
    scale_head=True,
)
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


def wide_params(config: ModelConfig) -> Params:
    """Weights wide enough for what a layer does to a column to show in the loss."""
    params = init_params(config, 0)
    return jax.tree.map(lambda leaf: leaf * 5 if leaf.ndim > 1 and leaf.std() < 0.5 else leaf, params)


def stacked(params: Params) -> Params:
    """In scanned form, which compiles faster; the given ones stay whole."""
    lists: Params = {"layers": list(params["layers"])}
    if "encoder" in params:
        lists["encoder"] = {**params["encoder"], "layers": list(params["encoder"]["layers"])}
    return stack_layers({**params, **lists})


def predicted(config: ModelConfig, params: Params, batch: Batch, method: Method | None = None) -> np.ndarray:
    """Logits [B, T, V] that predict the targets, from `skipjax.forward`; zeros where there is no target."""
    lm = LanguageModel(config, params)
    prompts = [row[padding:].tolist() for row, padding in zip(batch.prompts, batch.padding, strict=True)]
    targets = [row[:length].tolist() for row, length in zip(batch.targets, batch.lengths, strict=True)]
    if config.encoder_layers is None:
        starts = [len(prompt) for prompt in prompts]
        rows = [prompt + target[:-1] for prompt, target in zip(prompts, targets, strict=True)]
        given = forward(lm, rows, method, prompt_length=starts)
    else:
        starts = [1] * len(targets)
        given = forward(lm, [[config.start_id, *target[:-1]] for target in targets], method, sources=prompts)
    logits = np.zeros((*batch.targets.shape, config.vocab_size), np.float32)
    for row, (start, target) in enumerate(zip(starts, targets, strict=True)):
        logits[row, : len(target)] = given[row, start - 1 : start - 1 + len(target)]
    return logits


def cross_entropies(logits: np.ndarray, batch: Batch) -> np.ndarray:
    """float64 [number of real targets]."""
    real = np.arange(batch.targets.shape[1])[None] < batch.lengths[:, None]
    logits = logits.astype(np.float64)
    logits -= np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    return -np.take_along_axis(logits, batch.targets[..., None], axis=-1)[..., 0][real]


def bottom(config: ModelConfig, params: Params, layers: int) -> tuple[ModelConfig, Params]:
    """The model that ends after its first layers."""
    return dataclasses.replace(config, num_layers=layers), {**params, "layers": params["layers"][:layers]}


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

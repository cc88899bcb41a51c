"""What the training tests share: a tiny decoder and examples made of numbers."""

from pathlib import Path

import jax
import numpy as np

from skipjax.config import DecoderConfig, RopeConfig
from skipjax.decoder import init_params
from skipjax.language_model import LanguageModel
from skipjax.training import Examples
from skipjax.training.batches import Batch, make_batch

LLAMA = DecoderConfig(
    family="llama",
    vocab_size=31,
    hidden_size=16,
    num_layers=4,
    num_heads=2,
    num_kv_heads=1,
    head_size=8,
    ffn_size=24,
    embed_size=16,
    max_positions=64,
    norm="rms",
    norm_epsilon=1e-5,
    norm_affine=True,
    norm_before=True,
    final_norm=True,
    activation="silu",
    gated=True,
    qkv_bias=False,
    output_bias=False,
    mlp_bias=False,
    rope=RopeConfig(),
    position_offset=0,
    tied=True,
    bos_id=0,
    eos_ids=(1,),
    pad_id=2,
)
# Learned positions, LayerNorm, biases.
OPT = DecoderConfig(
    **{
        **{name: getattr(LLAMA, name) for name in LLAMA.__dataclass_fields__},
        **{"family": "opt", "num_kv_heads": 2, "norm": "layer", "activation": "relu", "gated": False},
        **{"qkv_bias": True, "output_bias": True, "mlp_bias": True, "rope": None, "position_offset": 2},
    }
)


def random_examples(number: int, seed: int = 0, longest_prompt: int = 7, longest_target: int = 9) -> Examples:
    """Random tokens; targets end with EOS."""
    rng = np.random.default_rng(seed)
    prompts, targets = [], []
    for _ in range(number):
        prompts.append(rng.integers(3, 31, rng.integers(1, longest_prompt + 1)).astype(np.int32))
        target = rng.integers(3, 31, rng.integers(0, longest_target))
        targets.append(np.append(target, 1).astype(np.int32))
    return Examples(prompts, targets, {})


def random_batch(number: int = 4, shape: tuple[int, int] = (7, 9), seed: int = 0) -> Batch:
    examples = random_examples(number, seed, *shape)
    return make_batch(examples, range(number), shape, number, pad_id=2)


def tiny_model(config: DecoderConfig = LLAMA, seed: int = 0) -> LanguageModel:
    return LanguageModel(config, init_params(config, seed))


def assert_trees_equal(first, second) -> None:
    """Bit for bit."""
    assert jax.tree.structure(first) == jax.tree.structure(second)
    for one, other in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def write_csv(path: Path, rows: int = 12) -> Path:
    """Rows as (in, out): "count 3" -> "3 3 3"."""
    lines = ["in,out"] + [f"count {i % 5 + 1},{' '.join([str(i % 5 + 1)] * (i % 5 + 1))}" for i in range(rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path

"""Small random models that tests share, and the slow, obvious way to decode with them."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import jax
import numpy as np

from skipjax.config import ModelConfig, RopeConfig
from skipjax.decoder import Execution, init_params, stack_layers
from skipjax.language_model import LanguageModel
from skipjax.methods import Method
from skipjax.teacher_forcing import forward

GOLDEN_FAMILIES = ("llama", "opt")


def tiny_config(family: str = "llama", num_layers: int = 4, **changes) -> ModelConfig:
    """97 tokens, D 32, 4 heads of 8; "llama" has 2 key/value heads, RoPE, an untied head, "opt" learned positions."""
    llama = family == "llama"
    fields = {
        "family": family,
        "vocab_size": 97,
        "hidden_size": 32,
        "num_layers": num_layers,
        "num_heads": 4,
        "num_kv_heads": 2 if llama else 4,
        "head_size": 8,
        "ffn_size": 48,
        "embed_size": 32,
        "max_positions": 64,
        "norm": "rms" if llama else "layer",
        "norm_epsilon": 1e-6,
        "norm_affine": True,
        "norm_before": True,
        "final_norm": True,
        "activation": "silu" if llama else "relu",
        "gated": llama,
        "qkv_bias": not llama,
        "output_bias": not llama,
        "mlp_bias": not llama,
        "rope": RopeConfig(theta=1000.0) if llama else None,
        "position_offset": 0 if llama else 2,
        "tied": not llama,
        "bos_id": 2,
        "eos_ids": (2,),
        "pad_id": 1,
    }
    return ModelConfig(**{**fields, **changes})


def tiny_lm(family: str = "llama", execution: Execution = "unrolled", num_layers: int = 4) -> LanguageModel:
    """One model per process and kind, so that its compiled programs are shared by tests. Weights are drawn wide enough
    for tokens to differ clearly."""
    return _tiny_lm(family, execution, num_layers)


@functools.cache  # by position: a call with defaults is the same model as one that spells them out
def _tiny_lm(family: str, execution: Execution, num_layers: int) -> LanguageModel:
    config = tiny_config(family, num_layers)
    params = jax.tree.map(lambda leaf: leaf * 8 if leaf.ndim > 1 else leaf, init_params(config, 7))
    return LanguageModel(config, stack_layers(params) if execution == "scanned" else params)


def random_prompts(lengths: list[int], seed: int = 0) -> list[list[int]]:
    """Prompts of these lengths without special tokens."""
    generator = np.random.default_rng(seed)
    return [generator.integers(3, 97, length).tolist() for length in lengths]


def decode_without_cache(lm: LanguageModel, prompts: list[list[int]], method: Method, tokens: int) -> list[list[int]]:
    """Greedy decoding that runs whole sequences again for every token. The columns not decoded yet hold zeros, which
    causal masking hides, so that one program serves all steps."""
    method, rows = method.resolve(tokens), [list(prompt) for prompt in prompts]
    lengths = [len(prompt) for prompt in prompts]
    for step in range(tokens):
        logits = forward(lm, [row + [0] * (tokens - step) for row in rows], method, prompt_length=lengths)
        for row, of_row in zip(rows, logits, strict=True):
            row.append(int(of_row[len(row) - 1].argmax()))
    return [row[length:] for row, length in zip(rows, lengths, strict=True)]


def golden_cases(directory: Path) -> dict:
    """The content of a golden.json."""
    return json.loads((directory / "golden.json").read_text())

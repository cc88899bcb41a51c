"""Small random models that tests share, and the slow, obvious way to decode with them."""

from __future__ import annotations

import functools
import json
import warnings
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from skipjax import decoder, programs
from skipjax.attention import attention, causal
from skipjax.config import ModelConfig, RelativePositions, RopeConfig
from skipjax.decoder import Execution, Params, init_params, stack_layers
from skipjax.decoding.request import Request
from skipjax.language_model import LanguageModel
from skipjax.methods import Method
from skipjax.sampling import SamplingNumbers
from skipjax.teacher_forcing import forward

GOLDEN_FAMILIES = ("llama", "opt", "t5", "t5-v1_1")

_T5 = {
    "max_positions": None,
    "norm": "rms",
    **dict.fromkeys(("qkv_bias", "output_bias", "mlp_bias", "scale_attention"), False),
    "position_offset": 0,
    "bos_id": None,
    "eos_ids": (1,),
    "pad_id": 0,
    "encoder_layers": 2,
    "start_id": 0,
    "relative": RelativePositions(8, 20),
    "scale_head": True,
}


def tiny_config(family: str = "llama", num_layers: int = 4, **changes) -> ModelConfig:
    """97 tokens, D 32, 4 heads of 8; "llama" has 2 key/value heads, RoPE, an untied head, "opt" learned positions, "t5"
    an encoder of 2 layers, relative positions and a tied head."""
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
        **(_T5 if family == "t5" else {}),
    }
    return ModelConfig(**{**fields, **changes})


def tiny_lm(family: str = "llama", execution: Execution = "unrolled", num_layers: int = 4) -> LanguageModel:
    """One model per process and kind, so that its compiled programs are shared by tests. Weights are drawn wide enough
    for tokens to differ clearly."""
    return _tiny_lm(family, execution, num_layers)


@functools.cache  # by position: a call with defaults is the same model as one that spells them out
def _tiny_lm(family: str, execution: Execution, num_layers: int) -> LanguageModel:
    config = tiny_config(family, num_layers)
    if family == "t5":
        params = _varied(init_params(config, 10))
    else:
        params = jax.tree.map(lambda leaf: leaf * 8 if leaf.ndim > 1 else leaf, init_params(config, 7))
    return LanguageModel(config, stack_layers(params) if execution == "scanned" else params)


def _varied(params: Params) -> Params:
    """Fresh T5 weights repeat the token that was read; with smaller embeddings and wider layers texts vary, and with a
    wider final norm confidences range from 0 to nearly 1."""
    params = jax.tree.map(lambda leaf: leaf * 2.5 if leaf.ndim > 1 else leaf, params)
    ends, encoder = params["ends"], params["encoder"]
    ends["tokens"] = ends["tokens"] * 0.1
    ends["final_norm"]["scale"] = ends["final_norm"]["scale"] * 16
    for stack in (ends, encoder["ends"]):
        stack["relative_bias"] = stack["relative_bias"] * 20
    return params


def random_prompts(lengths: list[int], seed: int = 0) -> list[list[int]]:
    """Prompts of these lengths without special tokens."""
    generator = np.random.default_rng(seed)
    return [generator.integers(3, 97, length).tolist() for length in lengths]


def decode_without_cache(lm: LanguageModel, prompts: list[list[int]], method: Method, tokens: int) -> list[list[int]]:
    """Greedy decoding that runs whole sequences again for every token. The columns not decoded yet hold zeros, which
    causal masking hides, so that one program serves all steps."""
    method, sources = method.resolve(tokens), None
    if lm.config.encoder_layers is not None:
        prompts, sources = [[lm.config.start_id]] * len(prompts), prompts
    rows, lengths = [list(prompt) for prompt in prompts], [len(prompt) for prompt in prompts]
    for step in range(tokens):
        padded = [row + [0] * (tokens - step) for row in rows]
        logits = forward(lm, padded, method, prompt_length=lengths, sources=sources)
        for row, of_row in zip(rows, logits, strict=True):
            row.append(int(of_row[len(row) - 1].argmax()))
    return [row[length:] for row, length in zip(rows, lengths, strict=True)]


class Reading(NamedTuple):
    """A whole sequence run at once. Position i is the column that gives generated token i.

    Attributes:
      states: [L + 1, positions, D], after each number of layers; after a position's depth its state stays.
      logits: [L + 1, positions, V], of the exit after each number of layers; those after none are no exit's.
      keys, values: [L, columns, K, H], what each layer keeps of all columns up to the last position.
    """

    states: np.ndarray
    logits: np.ndarray
    keys: np.ndarray
    values: np.ndarray


def read_again(lm: LanguageModel, prompt: list[int], tokens: list[int], depths: list[int] | None = None) -> Reading:
    """Reads a prompt and what was generated after it, without a cache and without a batch, each position at full depth
    or at its own of `depths` [tokens + 1]."""
    config, most = lm.config, 48
    source = None
    if config.encoder_layers is not None:
        source = np.array([[0] * (16 - len(prompt)) + prompt], np.int32), np.array([16 - len(prompt)], np.int32)
        prompt = [config.start_id]
    columns, before = len(prompt) + len(tokens), len(prompt) - 1
    assert columns <= most
    sequence = np.array([[*prompt, *tokens] + [0] * (most - columns)], np.int32)
    of_columns = np.full(most, config.num_layers, np.int32)
    if depths is not None:
        of_columns[before:columns] = depths
    states, logits, keys, values = map(np.asarray, _read_again(config, lm.params, sequence, of_columns, source))
    return Reading(states[:, before:columns], logits[:, before:columns], keys[:, :columns], values[:, :columns])


@functools.partial(jax.jit, static_argnames="config")
def _read_again(
    config: ModelConfig,
    params: Params,
    sequence: jax.Array,
    depths: jax.Array,
    source: tuple[jax.Array, jax.Array] | None,
) -> tuple[jax.Array, ...]:
    length = sequence.shape[1]
    columns = jnp.arange(length, dtype=jnp.int32)[None]
    recall = decoder.recall_from(config, None if source is None else decoder.encode(config, params, *source))
    rotation, allowed = decoder.rotation_at(config, columns), causal(jnp.zeros(1, jnp.int32), length)
    bias = decoder.decoder_bias(config, params, columns, length)

    def attend(query, key, value):
        return attention(query, key, value, allowed, "bskh", scaled=config.scale_attention, bias=bias), None

    h = decoder.ends_of(config, params).embed(sequence, columns)
    states, logits, keys, values = [h], [decoder.ends_of(config, params).logits(h)], [], []
    for layer in range(config.num_layers):
        block = decoder.block_of(config, params, layer)
        key, value = block.keys_and_values(h, rotation)
        ran, _ = block(h, rotation, attend, None if recall is None else recall(layer))
        h = jnp.where((depths > layer)[None, :, None], ran, h)
        for kept, new in ((keys, key), (values, value), (states, h)):
            kept.append(new)
        logits.append(decoder.exit_logits(config, params, h, layer + 1))
    return tuple(jnp.stack(each)[:, 0] for each in (states, logits, keys, values))


def confidence_by_hand(name: str, lm: LanguageModel, reading: Reading, layer: int, position: int) -> float:
    """What `skipjax.confidence` means by a name, after `layer` layers at one position."""
    logits, state = reading.logits[layer, position].astype(np.float64), reading.states[layer, position]
    p = np.exp(logits - logits.max())
    p /= p.sum()
    if name == "margin":
        return np.sort(p)[-1] - np.sort(p)[-2]
    if name == "top1":
        return p.max()
    if name == "entropy":
        return 1 + (p * np.log(p)).sum() / np.log(len(p))
    if name == "cosine":
        previous = reading.states[layer - 1, position]
        return state @ previous / (np.linalg.norm(state) * np.linalg.norm(previous))
    assert name == "classifier"
    classifier = lm.params["exits"][str(layer)]["classifier"]
    return 1 / (1 + np.exp(-(np.asarray(classifier["weight"])[0] @ state + np.asarray(classifier["bias"])[0])))


def assert_decodes_in_place(method: Method, execution: Execution) -> None:
    """Compiles decoding after two prompts of 1024 columns and with room for 256 tokens, and asks XLA for its memory: no
    second copy of the cache, and none of the weights. Nothing is computed, so the model can be of a realistic shape."""
    config = tiny_config(num_layers=6, hidden_size=64, embed_size=64, head_size=64, ffn_size=2048, max_positions=2048)
    strategy = method.resolve(256).strategy(config.num_layers, 256)
    params, numbers = decoder.abstract_params(config, execution=execution), np.zeros(2, np.uint32)
    request = Request(
        padding=np.zeros(2, np.int32),
        rows=np.int32(2),
        numbers=SamplingNumbers(np.float32(0), np.float32(1), np.int32(0), np.uint32(0), numbers, numbers),
        method=method.numbers(),
        eos_ids=np.array([2], np.int32),
        pad_id=np.int32(1),
        limit=np.int32(256),
    )
    prompts = np.zeros((2, 1024), np.int32)
    source, state = jax.eval_shape(functools.partial(programs.prefill, config, strategy), params, prompts, request)
    lowered = programs.decode.lower(config, strategy, 1024, params, source, state, request, np.int32(0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # jax warns where a donated buffer could not be used
        memory = lowered.compile().memory_analysis()

    def size(tree):
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))

    cache, layers = size(state.cache), size(params["layers"])
    assert memory.alias_size_in_bytes >= cache
    # Unrolled, what remains are the scores of one layer and small vectors: a copy of one layer's keys alone would be a
    # twelfth of the cache. Scanned, keys, values and weights of one layer at a time come out of the arrays of all.
    allowed = 0.08 * cache if execution == "unrolled" else 0.3 * cache + layers / 4
    assert memory.temp_size_in_bytes < allowed, (memory.temp_size_in_bytes, cache, layers)


def golden_cases(directory: Path) -> dict:
    """The content of a golden.json."""
    return json.loads((directory / "golden.json").read_text())

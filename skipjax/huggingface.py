"""Loading and writing models as Hugging Face directories: config.json, weights, tokenizer files."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors.numpy import save_file

from skipjax import families
from skipjax.config import ModelConfig
from skipjax.decoder import Execution, Params
from skipjax.json_files import read_json, read_optional_json, write_json
from skipjax.language_model import LanguageModel
from skipjax.recorded import Recorded
from skipjax.tensor_files import StoredTensor, stored_tensors
from skipjax.tokenizer import Tokenizer

RECORD_FILE = "skipjax.json"  # what Hugging Face's files have no place for
SHARD_BYTES = 5_000_000_000  # largest weight file written, as transformers does

_LISTED = 10  # names shown of a longer list in a message
_ROWS = 4096  # rows of two tables compared at a time


def load_huggingface(
    directory: str | Path, dtype: Any, execution: Execution
) -> tuple[ModelConfig, Params, Tokenizer | None, Recorded | None]:
    """Reads a Hugging Face directory.

    Weights are read tensor by tensor and cast to `dtype`, so beside the parameters only one tensor is in host memory at
    a time (one weight of all layers together where execution is "scanned").

    Args:
      directory: holds config.json and model.safetensors or pytorch_model.bin, whole or in shards.
      dtype: floating dtype of all parameters.
      execution: "unrolled" or "scanned", see `skipjax.decoder`.
    Raises:
      FileNotFoundError: no config.json, no weights, or a shard is missing.
      ValueError: a field that is not implemented, a damaged file, or weights that do not fit the config.
    """
    directory = Path(directory)
    if not (directory / "config.json").is_file():
        raise FileNotFoundError(f"{directory}: no config.json there, so it is not a Hugging Face model directory")
    generation = read_optional_json(directory / "generation_config.json")
    config = families.from_huggingface(read_json(directory / "config.json"), generation)
    config, stored = _matched(directory, config)
    params = _read_params(config, stored, np.dtype(dtype), execution)
    record = read_optional_json(directory / RECORD_FILE).get("recorded")
    recorded = None if record is None else Recorded.from_json(record)
    return config, params, Tokenizer.from_directory(directory), recorded


def _read_params(config: ModelConfig, stored: dict[str, StoredTensor], dtype: np.dtype, execution: Execution) -> Params:
    def empty(num_layers: int) -> Params:
        return {"ends": {}, "layers": {} if execution == "scanned" else [{} for _ in range(num_layers)]}

    params = empty(config.num_layers)
    if config.encoder_layers is not None:
        params["encoder"] = empty(config.encoder_layers)
    for path, names, shape in families.weight_names(config):
        stack, part, keys = _stack_of(params, path)
        layers = stack["layers"]
        # Each tensor is popped, so that what is mapped or read of it can go as soon as it is a parameter.
        if part == "ends":
            _insert(stack["ends"], keys, _place(stored.pop(names[0]), dtype))
        elif execution == "scanned":
            stacked = np.empty((len(names), *shape), dtype)
            for layer, name in enumerate(names):
                stacked[layer] = _read_cast(stored.pop(name), dtype)
            _insert(layers, keys, jax.device_put(stacked).block_until_ready())
            del stacked  # before the next one is made
        else:
            for layer, name in zip(layers, names, strict=True):
                _insert(layer, keys, _place(stored.pop(name), dtype))
    return params


def _stack_of(params: Params, path: str) -> tuple[Params, str, list[str]]:
    """Where a dotted path leads: the decoder's or the encoder's tree, "ends" or "layers" of it, and the keys inside."""
    part, *keys = path.split(".")
    return (params["encoder"], keys[0], keys[1:]) if part == "encoder" else (params, part, keys)


def _insert(tree: dict[str, Any], keys: list[str], leaf: jax.Array) -> None:
    for key in keys[:-1]:
        tree = tree.setdefault(key, {})
    tree[keys[-1]] = leaf


def _place(tensor: StoredTensor, dtype: np.dtype) -> jax.Array:
    # Waiting keeps a slow transfer from piling up tensors in host memory.
    return jax.device_put(_read_cast(tensor, dtype)).block_until_ready()


def _read_cast(tensor: StoredTensor, dtype: np.dtype) -> np.ndarray:
    try:
        with np.errstate(over="raise"):
            # Always a copy: JAX may keep the very memory it is given, which must not be a mapping of the file.
            return np.array(tensor.read(), dtype)
    except FloatingPointError:
        raise ValueError(
            f"{tensor.file}: holds values beyond the range of dtype {dtype.name}, load it as float32 or bfloat16"
        ) from None


def _expected(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    return {name: shape for _, names, shape in families.weight_names(config) for name in names}


def _matched(directory: Path, config: ModelConfig) -> tuple[ModelConfig, dict[str, StoredTensor]]:
    """The stored tensors by their full Hugging Face names, exactly those of the config that comes with them. It is the
    given one, untied where the family says that a head of its own does that.

    Raises:
      ValueError: tensors are missing, left over, doubled, wrongly shaped or quantised.
    """
    family, expected = families.FAMILIES[config.family], _expected(config)
    stored: dict[str, StoredTensor] = {}
    doubled = []
    for name, tensor in stored_tensors(directory):
        if any(re.fullmatch(pattern, name) for pattern in family.LEFT_OVERS):
            continue
        names = [name, *(prefix + name for prefix in family.PREFIXES)]
        full = next((candidate for candidate in names if candidate in expected), name)
        if full in stored:
            doubled.append(full)
        stored[full] = tensor
    for name, tensor in stored.items():
        if name in expected and not tensor.floating:
            raise ValueError(
                f"{tensor.file}: {name} is of type {tensor.dtype}; quantised weights are not supported, only float64, "
                f"float32, float16 and bfloat16"
            )
    if not doubled:
        config = _drop_copies(stored, config)
        expected = _expected(config)
    wrong = [
        f"{name} {list(stored[name].shape)} instead of {list(shape)}"
        for name, shape in expected.items()
        if name in stored and stored[name].shape != shape
    ]
    sides = {
        "missing": [f"{name} {list(shape)}" for name, shape in expected.items() if name not in stored],
        "not expected": [f"{name} {list(tensor.shape)}" for name, tensor in stored.items() if name not in expected],
        "wrong shape": wrong,
        "stored twice": doubled,
    }
    if any(sides.values()):
        found = "; ".join(f"{side}: {_listed(names)}" for side, names in sides.items() if names)
        raise ValueError(f"{directory}: the weights do not fit config.json; {found}")
    return config, stored


def _drop_copies(stored: dict[str, StoredTensor], config: ModelConfig) -> ModelConfig:
    """Removes what only repeats the token embedding: the head where it is tied, and the family's `COPIES`. Returns the
    config, untied if the head turns out to be none. Raises ValueError for what should repeat it and does not."""
    family = families.FAMILIES[config.family]
    table = family.weights(config)
    source, head = table["ends.tokens"], f"{table['ends.head']}.weight"
    for name in (*family.COPIES, *([head] if config.tied else [])):
        copy = stored.get(name)
        if copy is None or not copy.floating:
            continue
        tokens = stored.setdefault(source, copy)  # the only one where all names of one tensor but one were left out
        if tokens.shape == copy.shape and _equal(tokens.read(), copy.read()):
            del stored[name]
        elif name != head:
            raise ValueError(f"{copy.file}: {name} must repeat the token embedding {source}, but differs from it")
        elif family.TIED_BY_WEIGHTS:
            config = dataclasses.replace(config, tied=False)
        else:
            raise ValueError(
                f"{copy.file}: the LM head differs from the token embedding, but config.json says that they are tied "
                f"(tie_word_embeddings)"
            )
    return config


def _equal(one: np.ndarray, other: np.ndarray) -> bool:
    pieces = (slice(row, row + _ROWS) for row in range(0, len(one), _ROWS))
    return all(
        np.array_equal(one[piece].astype(np.float32), other[piece].astype(np.float32), equal_nan=True)
        for piece in pieces
    )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


def export_hf(lm: LanguageModel, directory: str | Path) -> None:
    """Writes `lm` as a Hugging Face directory, which transformers and `skipjax.load` open.

    Weights keep their dtype. Files of more than 5 GB are split. Tokenizer files go along, and what the weights were
    trained for goes into skipjax.json.

    Args:
      directory: new or empty; made with its parents if it is not there.
    Raises:
      ValueError: `directory` is a file or has files in it, or the model has exits with parameters of their own.
    """
    directory = Path(directory)
    if lm.config.exit_heads is not None:
        raise ValueError(
            "lm has exits with parameters of their own (config.exit_heads), for which Hugging Face's form has no "
            "place: skipjax.save keeps them"
        )
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ValueError(f"directory must be new or empty to export a model into, got {str(directory)!r}")
    directory.mkdir(parents=True, exist_ok=True)
    _write_weights(lm, directory)
    if lm.tokenizer is not None:
        lm.tokenizer.save(directory)
    if lm.recorded is not None:
        write_json(directory / RECORD_FILE, {"recorded": lm.recorded.to_json()})
    data = families.to_huggingface(lm.config)
    ids = {name: data[name] for name in families.GENERATION_IDS if name in data}
    write_json(directory / "generation_config.json", ids)
    # Last, since a directory without it does not count as a model: an interrupted export cannot be loaded by mistake.
    write_json(directory / "config.json", {**data, "torch_dtype": np.dtype(lm.dtype).name})


def _write_weights(lm: LanguageModel, directory: Path) -> None:
    sizes = {
        name: int(np.prod(shape)) * np.dtype(lm.dtype).itemsize
        for _, names, shape in families.weight_names(lm.config)
        for name in names
    }
    shards: list[set[str]] = [set()]
    filled = 0
    for name, size in sizes.items():
        if filled and filled + size > SHARD_BYTES:
            shards.append(set())
            filled = 0
        shards[-1].add(name)
        filled += size
    files = ["model.safetensors"]
    if len(shards) > 1:
        files = [f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i in range(len(shards))]
        mapping = {name: file for file, names in zip(files, shards, strict=True) for name in names}
        write_json(
            directory / "model.safetensors.index.json",
            {"metadata": {"total_size": sum(sizes.values())}, "weight_map": mapping},
        )
    for file, names in zip(files, shards, strict=True):
        save_file(dict(_tensors(lm, names)), directory / file, metadata={"format": "pt"})


def _tensors(lm: LanguageModel, wanted: set[str]) -> Iterator[tuple[str, np.ndarray]]:
    """The wanted tensors by Hugging Face name, in host memory (on CPU without a copy where layers are not stacked)."""
    for path, names, _ in families.weight_names(lm.config):
        stack, part, keys = _stack_of(lm.params, path)
        for layer, name in enumerate(names):
            if name in wanted:
                unrolled = part == "layers" and lm.execution == "unrolled"
                leaf: Any = stack[part][layer] if unrolled else stack[part]
                for key in keys:
                    leaf = leaf[key]
                yield name, np.asarray(leaf[layer] if part == "layers" and not unrolled else leaf)

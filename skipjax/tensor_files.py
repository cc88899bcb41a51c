"""The weight files of a Hugging Face directory as one table of tensors that are read one at a time."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from skipjax.json_files import read_json
from skipjax.torch_files import read_torch_file

# Single files in order of preference; a sharded one has an index of the same name + ".index.json".
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")

# Types that are read, as safetensors and numpy name them. Weights of any other type are quantised in some way.
_FLOATS = frozenset({"F64", "F32", "F16", "BF16", "float64", "float32", "float16", "bfloat16"})


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file, not read yet.

    Attributes:
      file: where it is, for messages.
      dtype: its type as the file names it.
      shape: its shape.
      read: gives the values, in the stored type.
    """

    file: Path
    dtype: str
    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]

    @property
    def floating(self) -> bool:
        return self.dtype in _FLOATS


def stored_tensors(directory: Path) -> Iterator[tuple[str, StoredTensor]]:
    """Every (name, tensor) of the directory's weights, safetensors before torch's format, single files before sharded.

    Names come as stored; one that two shards hold comes twice.

    Raises:
      FileNotFoundError: no weight files, or an index names one that is not there.
      ValueError: a file is damaged.
    """
    for path in weight_files(directory):
        yield from _safetensors(path) if path.suffix == ".safetensors" else _torch(path)


def weight_files(directory: Path) -> list[Path]:
    """The files to read, see `stored_tensors`."""
    for name in WEIGHT_FILES:
        single, index = directory / name, directory / f"{name}.index.json"
        if single.is_file():
            return [single]
        if index.is_file():
            return _shards(index)
    raise FileNotFoundError(
        f"{directory}: no weights found, expected one of {' or '.join(WEIGHT_FILES)}, or an index of shards"
    )


def _shards(index: Path) -> list[Path]:
    mapping = read_json(index).get("weight_map")
    if not isinstance(mapping, dict) or not mapping or not all(isinstance(name, str) for name in mapping.values()):
        raise ValueError(f"{index}: weight_map must be an object of tensor names and file names")
    files = [index.parent / name for name in sorted(set(mapping.values()))]
    for file in files:
        if file.parent != index.parent:
            raise ValueError(f"{index}: shards must lie beside the index, got {file.name!r} in {file.parent}")
        if not file.is_file():
            raise FileNotFoundError(f"{index}: names the shard {file.name}, which is not there")
    return files


def _safetensors(path: Path) -> Iterator[tuple[str, StoredTensor]]:
    try:
        # Reading with pread and not through a mapping: pages of a mapping would count as a second copy of the weights
        # in the process's memory until the kernel wants them back.
        file = safe_open(path, framework="numpy", backend="pread")
        names = file.keys()
        for name in names:
            view = file.get_slice(name)
            read = functools.partial(_read_safetensors, path, file, name)
            yield name, StoredTensor(path, view.get_dtype(), tuple(view.get_shape()), read)
    except SafetensorError as error:
        raise ValueError(f"{path}: not a whole safetensors file ({error})") from None


def _read_safetensors(path: Path, file: Any, name: str) -> np.ndarray:
    try:
        return file.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path}: {name} cannot be read ({error})") from None


def _torch(path: Path) -> Iterator[tuple[str, StoredTensor]]:
    for name, tensor in read_torch_file(path).items():
        yield name, StoredTensor(path, tensor.dtype.name, tensor.shape, functools.partial(np.asarray, tensor))

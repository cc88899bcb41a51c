"""Reading `pytorch_model.bin` files without torch: enough of torch.save's zip format for tensors, and nothing else.

The format: an uncompressed zip with one folder, in it `data.pkl`, a pickle of a dict whose tensors are calls of
`torch._utils._rebuild_tensor_v2` on storages named by persistent ids, and one member `data/KEY` per storage, its raw
bytes. Sources: torch/serialization.py and torch/_utils.py of torch 2.

A pickle can run any code, so the unpickler here looks up a handful of names, all of them bound to functions below, and
refuses every other by name.
"""

from __future__ import annotations

import collections
import functools
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

_STORAGES = {
    "DoubleStorage": np.dtype(np.float64),
    "FloatStorage": np.dtype(np.float32),
    "HalfStorage": np.dtype(np.float16),
    "BFloat16Storage": np.dtype(ml_dtypes.bfloat16),
    "LongStorage": np.dtype(np.int64),
    "IntStorage": np.dtype(np.int32),
    "ShortStorage": np.dtype(np.int16),
    "CharStorage": np.dtype(np.int8),
    "ByteStorage": np.dtype(np.uint8),
    "BoolStorage": np.dtype(np.bool_),
}

_RESAVE = "load it with torch and save it again as safetensors"
_LOCAL_HEADER_SIZE = 30  # of a zip member, before its name and extra field
_LEGACY_START = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."  # pickle of torch's old magic number


def read_torch_file(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a file written by `torch.save(model.state_dict(), path)`.

    Returns:
      name -> read-only array over the memory-mapped file; nothing is read before it is used.
    Raises:
      ValueError: not such a file, a compressed or legacy one, damaged, or one that holds anything but tensors.
    """
    with path.open("rb") as file:
        start = file.read(len(_LEGACY_START))
    if start == _LEGACY_START:
        raise ValueError(f"{path}: this is the format of torch before 1.6, which is not read; {_RESAVE}")
    try:
        with zipfile.ZipFile(path) as archive:
            data = _load(path, archive)
    except zipfile.BadZipFile:
        raise ValueError(f"{path}: not a file written by torch.save, or cut short") from None
    if isinstance(data, dict) and set(data) == {"state_dict"}:
        data = data["state_dict"]
    if not isinstance(data, dict):
        raise ValueError(f"{path}: must hold a dict of tensors, got a {type(data).__name__}")
    odd = [name for name, value in data.items() if not isinstance(name, str) or not isinstance(value, np.ndarray)]
    if odd:
        raise ValueError(f"{path}: must hold tensors only, but {odd[0]!r} is a {type(data[odd[0]]).__name__}")
    return data


def _load(path: Path, archive: zipfile.ZipFile) -> Any:
    members = {info.filename: info for info in archive.infolist()}
    pickles = [name for name in members if name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise ValueError(f"{path}: a zip without exactly one data.pkl is not a file written by torch.save")
    folder = pickles[0].removesuffix("data.pkl")
    order = members.get(f"{folder}byteorder")
    if order is not None and archive.read(order) != b"little":
        raise ValueError(f"{path}: written on a big-endian machine, which is not supported; {_RESAVE}")
    try:
        with archive.open(pickles[0]) as file:
            return _Unpickler(path, file, folder, members).load()
    except (pickle.UnpicklingError, EOFError, AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: its data.pkl is damaged or not written by torch.save ({error})") from None


class _Unpickler(pickle.Unpickler):
    """Knows the few names a state dict needs and maps storages out of the zip."""

    def __init__(self, path: Path, file: Any, folder: str, members: dict[str, zipfile.ZipInfo]):
        super().__init__(file)
        self._path, self._folder, self._members = path, folder, members
        self._storages: dict[str, np.ndarray] = {}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        if module == "torch._utils" and name == "_rebuild_tensor_v2":
            # Not a method: the unpickler's memo keeps what is found here, and a cycle would keep the mapped file.
            return functools.partial(_rebuild_tensor, self._path)
        if module == "torch._utils" and name == "_rebuild_parameter":
            return lambda tensor, requires_grad, hooks: tensor
        if module == "torch" and name in _STORAGES:
            return _STORAGES[name]
        raise ValueError(f"{self._path}: holds a {module}.{name}, only plain tensors are read; {_RESAVE}")

    def persistent_load(self, pid: Any) -> np.ndarray:
        """("storage", dtype, key, device, number of elements) -> its elements, one-dimensional."""
        kind, dtype, key, _, count = pid
        if kind != "storage" or not isinstance(dtype, np.dtype):
            raise ValueError(f"{self._path}: holds a persistent {kind!r}, only plain tensors are read; {_RESAVE}")
        if key not in self._storages:
            self._storages[key] = self._map(str(key), dtype, count)
        return self._storages[key]

    def _map(self, key: str, dtype: np.dtype, count: int) -> np.ndarray:
        info = self._members.get(f"{self._folder}data/{key}")
        if info is None or info.file_size < count * dtype.itemsize:
            raise ValueError(f"{self._path}: storage {key} is missing or cut short")
        if info.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"{self._path}: a compressed file is not read; {_RESAVE}")
        if count == 0:
            return np.zeros(0, dtype)
        with self._path.open("rb") as file:
            # The central directory has its own copy of name and extra field; only the local header says how long
            # those before the data are (torch pads the extra field to align storages).
            file.seek(info.header_offset)
            header = file.read(_LOCAL_HEADER_SIZE)
        if len(header) < _LOCAL_HEADER_SIZE or header[:4] != b"PK\x03\x04":
            raise ValueError(f"{self._path}: storage {key} is missing or cut short")
        name_size, extra_size = struct.unpack("<HH", header[26:30])
        offset = info.header_offset + _LOCAL_HEADER_SIZE + name_size + extra_size
        return np.memmap(self._path, dtype, "r", offset, (count,))


def _rebuild_tensor(
    path: Path, storage: np.ndarray, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *_: Any
) -> np.ndarray:
    """A view of `storage`; offset and strides count elements."""
    if 0 in shape:
        return np.zeros(shape, storage.dtype)
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    if offset < 0 or min(strides, default=0) < 0 or last >= storage.size:
        raise ValueError(f"{path}: a tensor of shape {tuple(shape)} reaches outside its storage")
    steps = [stride * storage.dtype.itemsize for stride in strides]
    return np.lib.stride_tricks.as_strided(storage[offset:], shape, steps, writeable=False)

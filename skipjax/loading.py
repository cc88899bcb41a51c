"""`skipjax.load`: one function for every place a model can be."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from skipjax import checks, hub, huggingface
from skipjax.decoder import Execution
from skipjax.language_model import LanguageModel

_EMBEDDED = Path(__file__).parent / "embedded"
EMBEDDED = {"embedded": _EMBEDDED / "llama", "embedded-t5": _EMBEDDED / "t5"}  # small models that come with the package
DTYPES = ("float32", "bfloat16", "float16")


def load(
    path: str | os.PathLike[str] | None = None,
    dtype: Any = "auto",
    mesh: None = None,
    execution: str = "auto",
    heads: str | os.PathLike[str] | None = None,
) -> LanguageModel:
    """Loads a model, ready for `skipjax.generate`.

    Args:
      path: a Hugging Face directory, a directory written by `skipjax.save` or by training, a Hugging Face Hub id, or
        None for the small decoder-only model that comes with skipjax; "embedded-t5" is its encoder-decoder neighbour.
      dtype: of all parameters: "float32", "bfloat16", "float16" (names or numpy dtypes) or "auto", which is bfloat16 on
        TPU and GPU and float32 on CPU, where bfloat16 products are many times slower.
      mesh: None; models are not sharded yet.
      execution: "unrolled" keeps a list of layers, "scanned" stacks them, which compiles faster; "auto" is unrolled on
        CPU and scanned elsewhere.
      heads: a directory written by `skipjax train heads`, whose exits join the model; it must be the one they were
        trained for.
    Raises:
      FileNotFoundError: there is no model at `path`.
      ValueError: an argument, a config field or a file that is not supported; names it.
    """
    if mesh is not None:
        raise ValueError(f"mesh must be None, sharded models are not supported yet, got {mesh!r}")
    resolved = resolve_dtype(dtype)
    form = resolve_execution(execution)
    if heads is not None and not isinstance(heads, (str, os.PathLike)):
        raise ValueError(f"heads must be a str or a path, got {heads!r}")
    lm = _load(model_directory(path), resolved, form)
    if heads is None:
        return lm
    from skipjax import exit_heads  # here, since orbax takes a second to import

    return exit_heads.join(lm, Path(heads))


def model_directory(path: str | os.PathLike[str] | None) -> Path:
    """The directory of what `load` takes, on this machine: an embedded model's, a local one, or a download. A local
    directory with the name of an embedded model goes before it. Errors as in `load`."""
    if path is not None and not isinstance(path, (str, os.PathLike)):
        raise ValueError(f"path must be a str or a path, got {path!r}")
    name = "embedded" if path is None else os.fspath(path)
    if name not in EMBEDDED or (path is not None and Path(path).exists()):
        return hub.resolve(name)
    if not (EMBEDDED[name] / "config.json").is_file():
        raise FileNotFoundError(f"path must be given, this installation of skipjax has no model in {EMBEDDED[name]}")
    return EMBEDDED[name]


def _load(directory: Path, dtype: np.dtype, execution: Execution) -> LanguageModel:
    if is_checkpoint(directory):
        from skipjax import checkpoint  # here, since orbax takes a second to import

        return checkpoint.restore(directory, dtype, execution)
    if not (directory / "config.json").is_file():
        raise FileNotFoundError(
            f"{directory}: neither a Hugging Face model (no config.json) nor one saved by skipjax (no skipjax.json)"
        )
    return LanguageModel(*huggingface.load_huggingface(directory, dtype, execution))


def is_checkpoint(directory: Path) -> bool:
    """Whether skipjax's own format is in a directory. A Hugging Face directory can hold a skipjax.json as well."""
    return (directory / "checkpoints").is_dir() and (directory / huggingface.RECORD_FILE).is_file()


def resolve_execution(execution: str) -> Execution:
    """The form of an `execution` argument. Raises ValueError for any but "auto", "unrolled" and "scanned"."""
    checks.choice("execution", execution, ("auto", "unrolled", "scanned"))
    scanned = execution == "scanned" or (execution == "auto" and jax.default_backend() != "cpu")
    return "scanned" if scanned else "unrolled"


def resolve_dtype(dtype: Any) -> np.dtype:
    """The numpy dtype of a `dtype` argument. Raises ValueError for any but "auto" and the three of `DTYPES`."""
    if isinstance(dtype, str) and dtype == "auto":
        dtype = jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16
    try:
        resolved = jnp.dtype(dtype)
    except TypeError:
        resolved = None
    if resolved is None or dtype is None or resolved.name not in DTYPES:
        raise ValueError(f"dtype must be 'auto', {', '.join(map(repr, DTYPES))}, got {dtype!r}")
    return resolved

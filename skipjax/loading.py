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

EMBEDDED = Path(__file__).parent / "embedded"  # a small model that comes with the package
DTYPES = ("float32", "bfloat16", "float16")


def load(
    path: str | os.PathLike[str] | None = None, dtype: Any = "auto", mesh: None = None, execution: str = "auto"
) -> LanguageModel:
    """Loads a model, ready for `skipjax.generate`.

    Args:
      path: a Hugging Face directory, a directory written by `skipjax.save` or by training, a Hugging Face Hub id, or
        None for the small model that comes with skipjax.
      dtype: of all parameters: "float32", "bfloat16", "float16" (names or numpy dtypes) or "auto", which is bfloat16 on
        TPU and GPU and float32 on CPU, where bfloat16 products are many times slower.
      mesh: None; models are not sharded yet.
      execution: "unrolled" keeps a list of layers, "scanned" stacks them, which compiles faster; "auto" is unrolled on
        CPU and scanned elsewhere.
    Raises:
      FileNotFoundError: there is no model at `path`.
      ValueError: an argument, a config field or a file that is not supported; names it.
    """
    if mesh is not None:
        raise ValueError(f"mesh must be None, sharded models are not supported yet, got {mesh!r}")
    resolved = resolve_dtype(dtype)
    form = resolve_execution(execution)
    if path is None:
        if not (EMBEDDED / "config.json").is_file():
            raise FileNotFoundError("path must be given, since this installation of skipjax has no embedded model")
        directory = EMBEDDED
    elif isinstance(path, (str, os.PathLike)):
        directory = hub.resolve(path)
    else:
        raise ValueError(f"path must be a str or a path, got {path!r}")
    if is_checkpoint(directory):
        from skipjax import checkpoint  # here, since orbax takes a second to import

        return checkpoint.restore(directory, resolved, form)
    if not (directory / "config.json").is_file():
        raise FileNotFoundError(
            f"{directory}: neither a Hugging Face model (no config.json) nor one saved by skipjax (no skipjax.json)"
        )
    config, params, tokenizer, recorded = huggingface.load_huggingface(directory, resolved, form)
    return LanguageModel(config, params, tokenizer, recorded)


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

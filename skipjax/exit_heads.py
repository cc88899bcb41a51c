"""Exits of a model's own on disk: written by `skipjax train heads`, joined with their base by `skipjax.load`.

DIR/skipjax.json         which exits they are, and the name and fingerprint of the model they belong to
DIR/checkpoints/STEP/    by orbax, as in `skipjax.checkpoint`; "params" holds the exits only
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import jax.numpy as jnp

from skipjax.checkpoint import DESCRIPTION, FORMAT_VERSION, check_version, newest_params
from skipjax.config import ExitHeads, ModelConfig
from skipjax.decoder import abstract_params
from skipjax.fingerprint import fingerprint
from skipjax.json_files import read_json, write_json
from skipjax.language_model import LanguageModel


def describe(lm: LanguageModel, directory: Path, base: str, known: str) -> None:
    """Writes the skipjax.json of exits that are trained for `lm`, loaded from `base`, whose fingerprint is `known`."""
    assert lm.config.exit_heads is not None
    belongs = {"model": base, "fingerprint": known}
    heads = dataclasses.asdict(lm.config.exit_heads)
    write_json(directory / DESCRIPTION, {"format_version": FORMAT_VERSION, "exit_heads": heads, "base": belongs})


def join(lm: LanguageModel, directory: Path) -> LanguageModel:
    """The model with the exits of a directory.

    Raises:
      FileNotFoundError: the directory holds none.
      ValueError: they were trained for another model, or the files are damaged.
    """
    path = directory.absolute() / DESCRIPTION
    if not path.is_file():
        raise FileNotFoundError(f"heads: {str(directory)!r} holds no exits, it has no {DESCRIPTION}")
    description = read_json(path)
    if "exit_heads" not in description:
        raise ValueError(f"heads: {str(directory)!r} holds a model, not exits; exits come from skipjax train heads")
    try:
        heads = ExitHeads(**{**description["exit_heads"], "layers": tuple(description["exit_heads"]["layers"])})
        base, known = description["base"]["model"], description["base"]["fingerprint"]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path}: damaged ({error!r})") from None
    check_version(path, description)
    if lm.dtype == jnp.float16:
        raise ValueError("heads: the model must be loaded as float32 or bfloat16, float16 does not tell whose it is")
    if lm.config.exit_heads is not None:
        raise ValueError("heads: the model has exits of its own already, it can be given none")
    if fingerprint(lm) != known:
        raise ValueError(
            f"heads: the exits in {str(directory)!r} belong to {base!r}, whose weights are not this model's"
        )
    config: ModelConfig = dataclasses.replace(lm.config, exit_heads=heads)
    exits = newest_params(directory.absolute(), {"exits": abstract_params(config, jnp.dtype(lm.dtype))["exits"]})
    return dataclasses.replace(lm, config=config, params={**lm.params, **exits}, programs={}, warned=set())

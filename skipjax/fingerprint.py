"""Which weights something belongs to, told by their content."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from skipjax.decoder import Params
from skipjax.language_model import LanguageModel


def fingerprint(lm: LanguageModel, *, exits: bool = False) -> str:
    """sha256 (hex) of a model's config and weights, without its exits' own unless `exits`.

    The same for both executions. Weights are rounded to bfloat16 first, so that a model loaded in that type is the same
    as in float32.
    """
    config = (lm.config if exits else dataclasses.replace(lm.config, exit_heads=None)).to_json()
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
    for name in sorted(lm.params.keys() - (set() if exits else {"exits"})):
        for path, arrays in _arrays(name, lm.params[name]):
            digest.update(path.encode())
            for array in arrays:
                digest.update(np.asarray(array).astype(jnp.bfloat16).tobytes())
    return digest.hexdigest()


def _arrays(path: str, tree: Params | list[Params] | jax.Array) -> Iterator[tuple[str, list[jax.Array]]]:
    """(path, array) in the order of paths; for a list of layers the arrays of all of them, for stacked ones the stack:
    their bytes in a row are the same."""
    if isinstance(tree, dict):
        for name in sorted(tree):
            yield from _arrays(f"{path}.{name}", tree[name])
    elif isinstance(tree, list):
        for layers in zip(*(list(_arrays(path, layer)) for layer in tree), strict=True):
            yield layers[0][0], [array for _, (array,) in layers]
    else:
        yield path, [tree]

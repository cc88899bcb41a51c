"""Model families: how each Hugging Face `model_type` maps onto `ModelConfig` and the parameter tree, both ways.

A family is a module with a strict translation of its config (`from_huggingface`, `to_huggingface`) and a table of
weight names (`WEIGHTS`). To add one, write such a module and list it in `FAMILIES`. Weights are kept as Hugging Face
stores them, so tables need no transformations.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import jax

from skipjax import decoder
from skipjax.config import ModelConfig
from skipjax.families import llama, opt


class Family(Protocol):
    """What `skipjax.families.llama` and its neighbours hold.

    Attributes:
      ARCHITECTURE: Hugging Face's class name.
      WEIGHTS: our dotted path of a module or array -> Hugging Face's name of it, with {layer} in those of blocks.
      PREFIXES: beginnings of names that some checkpoints leave out.
      LEFT_OVERS: patterns of names that hold no weights and are passed over.
    """

    ARCHITECTURE: str
    WEIGHTS: dict[str, str]
    PREFIXES: tuple[str, ...]
    LEFT_OVERS: tuple[str, ...]

    def from_huggingface(self, data: dict[str, Any]) -> ModelConfig: ...

    def to_huggingface(self, config: ModelConfig) -> dict[str, Any]: ...


FAMILIES: dict[str, Family] = {llama.MODEL_TYPE: llama, opt.MODEL_TYPE: opt}

# Our name of a module's array -> Hugging Face's. Norms have a scale where linear layers have a weight.
LEAVES = {"weight": "weight", "scale": "weight", "bias": "bias"}

# Fields of generation_config.json that say more than those of config.json; Llama 3 lists its several ends only there.
_GENERATION_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


def from_huggingface(data: dict[str, Any], generation: dict[str, Any] | None = None) -> ModelConfig:
    """Translates a parsed config.json, and the token ids of the generation_config.json beside it if there is one.

    Raises:
      ValueError: unknown `model_type`, or a field that is unknown, unsupported or impossible; names it.
    """
    model_type = data.get("model_type")
    if model_type not in FAMILIES:
        raise ValueError(f"config.json: model_type must be one of {', '.join(map(repr, FAMILIES))}, got {model_type!r}")
    known = {name: value for name, value in (generation or {}).items() if name in _GENERATION_IDS and value is not None}
    if known and "vocab_size" in data:
        # Only the ends replace what config.json says; the others fill in what it leaves out.
        ends = {"eos_token_id": known["eos_token_id"]} if "eos_token_id" in known else {}
        filled = {name: value for name, value in known.items() if data.get(name) is None}
        data = {**data, **filled, **ends}
    return FAMILIES[model_type].from_huggingface(data)


def to_huggingface(config: ModelConfig) -> dict[str, Any]:
    """The config.json of `config`; inverse of `from_huggingface`."""
    return FAMILIES[config.family].to_huggingface(config)


def weight_names(config: ModelConfig) -> Iterator[tuple[str, list[str], tuple[int, ...]]]:
    """Every parameter, in a fixed order: (our dotted path, Hugging Face's names, shape of one of them).

    A path under "ends" has one name, a path under "layers" one per layer.
    """
    table = FAMILIES[config.family].WEIGHTS
    shapes = decoder.abstract_params(config)
    for part, tree in (("ends", shapes["ends"]), ("layers", shapes["layers"][0])):
        for keys, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
            path = ".".join([part, *(key.key for key in keys)])
            module, _, last = path.rpartition(".")
            pattern = table[path] if path in table else f"{table[module]}.{LEAVES[last]}"
            layers = range(config.num_layers) if part == "layers" else range(1)
            yield path, [pattern.format(layer=layer) for layer in layers], leaf.shape


__all__ = ["FAMILIES", "LEAVES", "Family", "from_huggingface", "to_huggingface", "weight_names"]

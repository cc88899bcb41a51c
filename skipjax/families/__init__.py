"""Model families: how each Hugging Face `model_type` maps onto `ModelConfig` and the parameter tree, both ways.

A family is a module with a strict translation of its config (`from_huggingface`, `to_huggingface`) and a table of
weight names (`weights`). To add one, write such a module and list it in `FAMILIES`. Weights are kept as Hugging Face
stores them, so tables need no transformations.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import jax

from skipjax import decoder
from skipjax.config import ModelConfig
from skipjax.families import llama, opt, t5


class Family(Protocol):
    """What `skipjax.families.llama` and its neighbours hold.

    Attributes:
      PREFIXES: beginnings of names that some checkpoints leave out.
      LEFT_OVERS: patterns of names that hold no weights and are passed over.
      COPIES: names under which some checkpoints store the token embedding once more, beside an LM head tied to it.
      TIED_BY_WEIGHTS: an LM head that differs from the token embedding is one of its own, whatever config.json says.
    """

    PREFIXES: tuple[str, ...]
    LEFT_OVERS: tuple[str, ...]
    COPIES: tuple[str, ...]
    TIED_BY_WEIGHTS: bool

    def weights(self, config: ModelConfig) -> dict[str, str]:
        """Our dotted path of a module or array -> Hugging Face's name of it, with {layer} in those of blocks."""

    def from_huggingface(self, data: dict[str, Any]) -> ModelConfig: ...

    def to_huggingface(self, config: ModelConfig) -> dict[str, Any]: ...


FAMILIES: dict[str, Family] = {llama.MODEL_TYPE: llama, opt.MODEL_TYPE: opt, t5.T5: t5, t5.MT5: t5}

# Our name of a module's array -> Hugging Face's. Norms have a scale where linear layers have a weight.
LEAVES = {"weight": "weight", "scale": "weight", "bias": "bias"}

# Fields of generation_config.json that say more than those of config.json; Llama 3 lists its several ends only there.
GENERATION_IDS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")


def from_huggingface(data: dict[str, Any], generation: dict[str, Any] | None = None) -> ModelConfig:
    """Translates a parsed config.json, and the token ids of the generation_config.json beside it if there is one.

    Raises:
      ValueError: unknown `model_type`, or a field that is unknown, unsupported or impossible; names it.
    """
    model_type = data.get("model_type")
    if model_type not in FAMILIES:
        raise ValueError(f"config.json: model_type must be one of {', '.join(map(repr, FAMILIES))}, got {model_type!r}")
    known = {name: value for name, value in (generation or {}).items() if name in GENERATION_IDS and value is not None}
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

    A path under "ends" has one name, a path under "layers" one per layer; an encoder's paths are the same under
    "encoder". Exits of their own have no names: Hugging Face's form has no place for them.
    """
    table = FAMILIES[config.family].weights(config)
    shapes = decoder.abstract_params(config)
    parts = [("ends", shapes["ends"], 1), ("layers", shapes["layers"][0], config.num_layers)]
    if config.encoder_layers is not None:
        encoder = shapes["encoder"]
        parts += [("encoder.ends", encoder["ends"], 1), ("encoder.layers", encoder["layers"][0], config.encoder_layers)]
    for part, tree, count in parts:
        for keys, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
            path = ".".join([part, *(key.key for key in keys)])
            module, _, last = path.rpartition(".")
            pattern = table[path] if path in table else f"{table[module]}.{LEAVES[last]}"
            yield path, [pattern.format(layer=layer) for layer in range(count)], leaf.shape


__all__ = ["FAMILIES", "GENERATION_IDS", "LEAVES", "Family", "from_huggingface", "to_huggingface", "weight_names"]

"""Where training starts from: a checkpoint, or a config with random weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp

from skipjax import checks, families
from skipjax.config import ExitHeads
from skipjax.decoder import init_exits, init_params, stack_layers
from skipjax.json_files import read_json
from skipjax.language_model import LanguageModel
from skipjax.tokenizer import Tokenizer


def starting_point(
    model: str | None, init: str | Path | None, tokenizer: str | Path | None, seed: int
) -> LanguageModel:
    """The model to train, in float32 and scanned: a step runs as fast as unrolled and compiles in a third of the time.

    Args:
      model: what `skipjax.load` takes; its tokenizer comes with it.
      init: instead, a Hugging Face `config.json` for fresh random weights drawn from `seed`.
      tokenizer: with `init`, a directory with a tokenizer.json, or that file.
    Raises:
      ValueError: not exactly one of `model` and `init`, or a tokenizer missing or in excess.
      FileNotFoundError: no such file.
    """
    if (model is None) == (init is None):
        raise ValueError("exactly one of --model and --init must be given")
    if (init is None) != (tokenizer is None):
        raise ValueError("--tokenizer must be given with --init, and only with it")
    if model is not None:
        from skipjax.loading import load

        lm = load(model, "float32", execution="scanned")
        if lm.tokenizer is None:
            raise ValueError(f"model {model!r} must have a tokenizer to be trained on texts, it has none")
        return lm
    assert init is not None
    assert tokenizer is not None
    config = families.from_huggingface(read_json(Path(init)))
    folder = Path(tokenizer)
    folder = folder.parent if folder.is_file() else folder
    words = Tokenizer.from_directory(folder) if folder.is_dir() else None
    if words is None:
        raise FileNotFoundError(f"tokenizer must be a directory with tokenizer files, got {str(tokenizer)!r}")
    ends = config.eos_ids[0] if config.eos_ids else None
    # What a tokenizer puts before a text is part of an encoder's source, whether or not the config knows it.
    starts = words.bos_id if config.encoder_layers is not None and config.bos_id is None else config.bos_id
    for name, in_config, in_tokenizer in (
        ("bos_token_id", starts, words.bos_id),
        ("eos_token_id", ends, words.eos_id),
        ("pad_token_id", config.pad_id, words.pad_id),
    ):
        if in_tokenizer is not None and in_config != in_tokenizer:
            raise ValueError(f"init: {name} must be the tokenizer's, {in_tokenizer}, got {in_config}")
    return LanguageModel(config, stack_layers(init_params(config, seed)), words)


def check_exit_kinds(norm: bool, adapter_rank: int, classifier: bool) -> None:
    """Raises ValueError if exits of these kinds would have nothing to train."""
    if not (norm or adapter_rank or classifier):
        raise ValueError("at least one of --norm, --adapter-rank and --classifier must be given")


def with_exit_heads(
    lm: LanguageModel,
    layers: Sequence[int],
    *,
    norm: bool = False,
    adapter_rank: int = 0,
    classifier: bool = False,
    seed: int = 0,
) -> LanguageModel:
    """The model with exits of its own, see `skipjax.config.ExitHeads`. They predict what the shared head does at first.

    Raises ValueError for layers the model does not have, for exits with nothing to train, and if it has exits already.
    """
    if lm.config.exit_heads is not None:
        raise ValueError("model must be one without exits of its own, this one has them")
    if not layers:
        raise ValueError("layers must name at least one exit")
    for layer in layers:
        checks.integer("layers", layer, 1, lm.config.num_layers - 1)
    checks.integer("adapter_rank", adapter_rank, 0, lm.config.hidden_size)
    if norm and not lm.config.final_norm:
        raise ValueError("norm cannot be trained for a model that has no final norm")
    check_exit_kinds(norm, adapter_rank, classifier)
    heads = ExitHeads(tuple(sorted(set(layers))), norm, adapter_rank, classifier)
    config = dataclasses.replace(lm.config, exit_heads=heads)
    key = jax.random.fold_in(jax.random.key(seed), 2)
    # Under jit, since their norms would else be the very arrays of the final norm.
    exits = jax.jit(init_exits, static_argnums=(0, 3))(config, key, lm.params["ends"], jnp.float32)
    return dataclasses.replace(lm, config=config, params={**lm.params, "exits": exits}, programs={})

"""Whether a converted model computes what the original does: the same token ids through skipjax and transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from skipjax.language_model import LanguageModel
from skipjax.teacher_forcing import forward

_LENGTHS = (1, 5, 16)  # tokens of the sequences compared


def largest_logit_difference(lm: LanguageModel, directory: str | Path) -> float:
    """The largest absolute difference between logits of `lm` and of transformers, in float32 on random token ids.

    Args:
      lm: any model.
      directory: the same model as a Hugging Face directory.
    Raises:
      ValueError: transformers or torch is not installed, or transformers cannot load the directory.
    """
    try:
        import torch
        import transformers
    except ImportError as error:
        raise ValueError(
            f"the check compares with transformers and torch, but {error.name} is not installed; install both or leave "
            f"the check out"
        ) from None
    config = lm.config
    kind: Any = transformers.AutoModelForCausalLM
    if config.encoder_layers is not None:
        kind = transformers.AutoModelForSeq2SeqLM
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        model = kind.from_pretrained(str(directory), dtype=torch.float32).eval()
    except Exception as error:  # anything
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(f"{directory}: transformers cannot load it ({reason})") from error
    finally:
        transformers.logging.set_verbosity(verbosity)
    generator = np.random.default_rng(0)
    differences = []
    for length in _LENGTHS:
        if config.max_positions is not None:
            length = min(length, config.max_positions)
        ids, inputs, sources = generator.integers(config.vocab_size, size=(2, length)), {}, None
        if config.encoder_layers is not None:
            sources = generator.integers(config.vocab_size, size=(2, length))
            inputs["decoder_input_ids"] = torch.from_numpy(ids)
        inputs["input_ids"] = torch.from_numpy(ids if sources is None else sources)
        with torch.inference_mode():
            expected = model(**inputs).logits.numpy()
        differences.append(np.max(np.abs(forward(lm, ids, sources=sources) - expected)))
    # np.max, unlike max, keeps a NaN.
    return float(np.max(differences))

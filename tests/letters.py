"""The tiny model with a tokenizer of one token per letter, digit or sign."""

from __future__ import annotations

import jax
import tokenizers
from tiny_models import tiny_lm

from skipjax.language_model import LanguageModel
from skipjax.methods import Method
from skipjax.recorded import Recorded
from skipjax.tokenizer import Tokenizer

TEMPLATE = "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"


def letters_lm(method: Method) -> LanguageModel:
    """It records that it was trained for `method` and speed-ups up to 2, with exits after 1, 2 and 3 of its 4 layers.
    Larger logits make it surer."""
    vocabulary = {"<s>": 0, "<pad>": 1, "</s>": 2}
    vocabulary |= {chr(code): index for index, code in enumerate(range(33, 33 + 94), 3)}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [], unk_token="<pad>"))
    backend.decoder = tokenizers.decoders.Fuse()
    backend.add_special_tokens(["<s>", "<pad>", "</s>"])
    tokenizer = Tokenizer(backend, {"eos_token": "</s>", "pad_token": "<pad>"}, TEMPLATE)
    ends = tiny_lm().params["ends"]
    params = {**tiny_lm().params, "ends": {**ends, "head": jax.tree.map(lambda leaf: 10 * leaf, ends["head"])}}
    return LanguageModel(tiny_lm().config, params, tokenizer, Recorded(method, (1.0, 2.0), (1, 2, 3)))

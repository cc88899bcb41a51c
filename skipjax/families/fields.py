"""Strict reading of a Hugging Face `config.json`: every field is taken, known to be without effect, or an error."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from skipjax import checks

# Fields that any config.json may hold and that never change what a forward pass at inference computes: bookkeeping,
# training-time rates, heads for other tasks, and defaults for generation, which `skipjax.generate` takes as arguments.
_WITHOUT_EFFECT = """
_attn_implementation _attn_implementation_autoset _commit_hash _name_or_path architectures attn_implementation
attention_dropout bad_words_ids begin_suppress_tokens decoder_start_token_id diversity_penalty do_sample dtype
early_stopping encoder_no_repeat_ngram_size exponential_decay_length_penalty finetuning_task forced_bos_token_id
forced_eos_token_id id2label label2id length_penalty max_length min_length model_type name_or_path
no_repeat_ngram_size num_beam_groups num_beams num_labels num_return_sequences output_attentions
output_hidden_states output_scores prefix problem_type remove_invalid_values repetition_penalty return_dict
return_dict_in_generate sep_token_id suppress_tokens task_specific_params temperature tf_legacy_loss
tie_last_hidden_states tokenizer_class top_k top_p torch_dtype torchscript transformers.js_config
transformers_version typical_p unk_token_id unsloth_fixed unsloth_version use_bfloat16 use_cache use_return_dict
"""
WITHOUT_EFFECT = frozenset(_WITHOUT_EFFECT.split())

# Hugging Face's activation names -> ours.
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_new": "gelu_new", "gelu_pytorch_tanh": "gelu_new"}
ACTIVATIONS |= {"gelu_fast": "gelu_new", "silu": "silu", "swish": "silu"}

# Fields that do change the forward pass, with the only values under which they do not.
ONLY_VALUES: dict[str, tuple[Any, ...]] = {
    "add_cross_attention": (False,),
    "chunk_size_feed_forward": (0,),  # any other value computes the same in pieces, but no such checkpoint is known
    "cross_attention_hidden_size": (None,),
    "is_encoder_decoder": (False,),
    "is_decoder": (False, True),
    "per_layer_config": (None, {}),
    "pruned_heads": (None, {}),
    "quantization_config": (None,),
    "sliding_window": (None,),
    "tie_encoder_decoder": (False,),
    "use_sliding_window": (False,),
}


class Fields:
    """The fields of one JSON object, each to be taken once.

    Args:
      data: the parsed JSON object.
      where: what error messages call it, a file name.
    """

    def __init__(self, data: dict[str, Any], where: str = "config.json"):
        self.where = where
        self._left = dict(data)

    def name(self, field: str) -> str:
        return f"{self.where}: {field}"

    def take(self, field: str, default: Any = None) -> Any:
        return self._left.pop(field, default)

    def integer(self, field: str, default: int | None = None, at_least: int = 1) -> int:
        """A whole number; absent or null means `default`, and is an error where there is none."""
        value = self.take(field)
        if value is None and default is None:
            raise ValueError(f"{self.name(field)} is missing, it must be an integer of at least {at_least}")
        return checks.integer(self.name(field), default if value is None else value, at_least)

    def real(self, field: str, default: float | None = None) -> float:
        """A positive number; absent or null means `default`, and is an error where there is none."""
        value = self.take(field)
        if value is None and default is None:
            raise ValueError(f"{self.name(field)} is missing, it must be a number above 0")
        return checks.real(self.name(field), default if value is None else value, 0, above=True)

    def flag(self, field: str, default: bool) -> bool:
        value = self.take(field, default)
        if not isinstance(value, bool):
            raise ValueError(f"{self.name(field)} must be true or false, got {value!r}")
        return value

    def token_id(self, field: str, vocab_size: int) -> int | None:
        """A token id; absent, null and -1 (how early Llama checkpoints write it) mean none."""
        value = self.take(field)
        if value is None or value == -1:
            return None
        return checks.integer(self.name(field), value, 0, vocab_size - 1)

    def token_ids(self, field: str, vocab_size: int) -> tuple[int, ...]:
        """One token id, a list of them, or none."""
        value = self.take(field)
        if value is None or value == -1:
            return ()
        ids = value if isinstance(value, list) else [value]
        # Without repeats: checkpoints list the same end twice where two names of it coincide.
        return tuple(dict.fromkeys(checks.integer(self.name(field), one, 0, vocab_size - 1) for one in ids))

    def finish(self, without_effect: Collection[str], only_values: Mapping[str, tuple[Any, ...]]) -> None:
        """Checks what is left, with this family's own fields beside the common ones.

        Raises:
          ValueError: a field has another value than the allowed ones, or is not known at all.
        """
        allowed = {**ONLY_VALUES, **only_values}
        unknown = []
        for field, value in self._left.items():
            if field in allowed:
                # `in` alone would take 1 for True and 0 for False.
                if not any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in allowed[field]):
                    values = " or ".join(repr(one) for one in allowed[field])
                    raise ValueError(f"{self.name(field)} {value!r} is not supported, it must be absent or {values}")
            elif field not in WITHOUT_EFFECT and field not in without_effect:
                unknown.append(field)
        if unknown:
            raise ValueError(
                f"{self.where}: {', '.join(map(repr, sorted(unknown)))} is not known here; the model may compute "
                f"something that is not implemented, so it is not loaded"
            )


def token_id_fields(bos_id: int | None, eos_ids: tuple[int, ...], pad_id: int | None) -> dict[str, Any]:
    """The three special token ids as Hugging Face writes them: one end as a number, several as a list."""
    eos: Any = None if not eos_ids else eos_ids[0] if len(eos_ids) == 1 else list(eos_ids)
    return {"bos_token_id": bos_id, "eos_token_id": eos, "pad_token_id": pad_id}

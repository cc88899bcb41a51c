"""A tokenizer from the training texts: byte-level BPE whose merges stop at spaces only."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from skipjax import checks
from skipjax.json_files import write_json

BOS, EOS, PAD = "<s>", "</s>", "<pad>"  # ids 0, 1, 2
SMALLEST = 256 + 3  # every byte, and the special tokens

# A word with the space before it, or one white-space character. Other byte-level tokenizers also cut at punctuation;
# not doing so lets fields of structured prompts, as "familyFriendly[yes],", become one token.
WORDS = Regex(r" ?[^\s]+|\s")


def train_tokenizer(texts: Iterable[str], vocab_size: int, directory: str | Path) -> int:
    """Trains on `texts` and writes tokenizer.json and tokenizer_config.json, which transformers reads too.

    Any text comes back exactly: unknown characters are spelled in bytes. Encoding puts <s> first.
    Returns the size of the vocabulary, below `vocab_size` where the texts hold no more pairs that occur twice.
    Raises ValueError for a `vocab_size` without room for bytes and special tokens, and if `directory` is not empty.
    """
    checks.integer("vocab_size", vocab_size, SMALLEST)
    directory = Path(directory)
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ValueError(f"out must be a new or empty directory, got {str(directory)!r}")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(WORDS, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=[BOS, EOS, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": BOS,
            "eos_token": EOS,
            "pad_token": PAD,
            "clean_up_tokenization_spaces": False,
        },
    )
    return tokenizer.get_vocab_size()

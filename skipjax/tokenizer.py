"""Text to token ids and back, as the Hugging Face tokenizer files beside a checkpoint say, without transformers.

The work is done by the `tokenizers` library; this module reads the files around `tokenizer.json` (special tokens, chat
template) as transformers 5 reads them. Sources: transformers 5, tokenization_utils_tokenizers.py and
utils/chat_template_utils.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skipjax.json_files import read_optional_json, write_json

if TYPE_CHECKING:
    import tokenizers

Messages = Sequence[Mapping[str, Any]]

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_BYTE_LEVEL_CLASSES = (None, "GPT2Tokenizer", "GPT2TokenizerFast")
# Vocabularies that only transformers knows how to turn into a tokenizer.
_OTHER_FILES = ("vocab.json", "vocab.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "tekken.json")
# What transformers notes about where a tokenizer was loaded from; not true of a copy.
_NOT_SAVED = ("chat_template", "is_local", "local_files_only", "name_or_path", "special_tokens_map_file")


class Tokenizer:
    """A `tokenizers.Tokenizer` with the special tokens and chat template of its checkpoint.

    Args:
      backend: does the splitting. Owned: its truncation and padding are switched off.
      settings: content of tokenizer_config.json.
      chat_template: Jinja source, or None.

    Attributes:
      bos_id, eos_id, pad_id: ids of the special tokens of these names, None where there is none. Generation goes by the
        model's config, which can list several ends.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        settings: Mapping[str, Any] | None = None,
        chat_template: str | None = None,
    ):
        self.settings = dict(settings or {})
        self.chat_template = chat_template
        self._backend = backend
        backend.no_truncation()
        backend.no_padding()
        _add_tokens(backend, self.settings)
        self.bos_id, self.eos_id, self.pad_id = (self._id(name) for name in ("bos_token", "eos_token", "pad_token"))

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included. A model's own `vocab_size` is often padded to more."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`, with the special tokens the checkpoint puts around a text (OPT's `</s>` before it).

        A rendered chat prompt already holds its special tokens: encode it with `add_special_tokens=False`.
        """
        if not isinstance(text, str):
            raise ValueError(f"text must be a str, got {type(text).__name__}")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"text must be valid Unicode, got a lone surrogate at position {error.start}") from None
        return self._backend.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids, special tokens left out."""
        text = self._backend.decode([int(token) for token in ids], skip_special_tokens=True)
        # Off by default, and never done to BPE, whose spaces are real.
        if self.settings.get("clean_up_tokenization_spaces") and type(self._backend.model).__name__ != "BPE":
            text = _clean_up_spaces(text)
        return text

    def stream(self) -> TextStream:
        """Decodes one token after the other; see `TextStream`."""
        return TextStream(self)

    def apply_chat_template(self, messages: Messages | str) -> str:
        """The prompt for the assistant's next turn.

        Args:
          messages: objects with "role" and "content", or a str for one message of the user.
        Raises:
          ValueError: no chat template, messages of another form, or messages the template refuses.
        """
        from skipjax import chat  # here, so that jinja2 is imported only for chats

        if self.chat_template is None:
            raise ValueError("chat needs a chat template, but the tokenizer of this checkpoint has none")
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        named = {name: _content(self.settings[name]) for name in _NAMED_TOKENS if self.settings.get(name)}
        return chat.render(self.chat_template, messages, named)

    def save(self, directory: str | Path) -> None:
        """Writes tokenizer.json, tokenizer_config.json and, if there is one, chat_template.jinja into `directory`."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        self._backend.save(str(directory / "tokenizer.json"))
        settings = {name: value for name, value in self.settings.items() if name not in _NOT_SAVED}
        write_json(directory / "tokenizer_config.json", settings)
        if self.chat_template is not None:
            (directory / "chat_template.jinja").write_text(self.chat_template, encoding="utf-8", newline="")

    @classmethod
    def from_directory(cls, directory: str | Path) -> Tokenizer | None:
        """The tokenizer whose files lie in `directory`, None if there are none.

        Reads tokenizer.json, or the vocab.json and merges.txt of byte-level BPE (OPT); any other form goes through
        transformers, which must then be installed.

        Raises:
          ValueError: a file is damaged, or a form that needs transformers cannot be read.
        """
        directory = Path(directory)
        # The map is older and says less; both say the same where both are there.
        settings = read_optional_json(directory / "special_tokens_map.json")
        settings |= read_optional_json(directory / "tokenizer_config.json")
        vocabulary, merges = directory / "vocab.json", directory / "merges.txt"
        if (directory / "tokenizer.json").is_file():
            backend = _read(directory / "tokenizer.json")
        elif vocabulary.is_file() and merges.is_file() and settings.get("tokenizer_class") in _BYTE_LEVEL_CLASSES:
            backend = _byte_level_bpe(vocabulary, merges, settings)
        elif any((directory / name).is_file() for name in _OTHER_FILES):
            backend = _through_transformers(directory, settings)
        else:
            return None
        return cls(backend, settings, _chat_template(directory, settings))

    def _id(self, name: str) -> int | None:
        value = self.settings.get(name)
        return self._backend.token_to_id(_content(value)) if value else None


class TextStream:
    """Text pieces of a growing list of token ids: pieces never end inside a character, and join to `decode` of all ids.

    A character can span tokens; its pieces decode to U+FFFD until the last one came. So text that ends with U+FFFD is
    held back. For three tokens that are the bytes of "€": push(1) = "", push(2) = "", push(3) = "€".
    """

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        # Ids from the start of the last piece. Decoding with that piece before it, a new one keeps the leading space
        # that SentencePiece decoders strip at the start of a text.
        self._ids: list[int] = []
        self._given = 0  # how many of them have been given out as text

    def push(self, token_id: int) -> str:
        """The text that `token_id` completes, often empty."""
        self._ids.append(int(token_id))
        return self._advance(hold_back=True)

    def flush(self) -> str:
        """What is held back, at the end of the text."""
        return self._advance(hold_back=False)

    def _advance(self, *, hold_back: bool) -> str:
        before = self._tokenizer.decode(self._ids[: self._given])
        text = self._tokenizer.decode(self._ids)
        # Special tokens add no text; the window stays where it is, so that it always starts with visible text.
        if len(text) <= len(before) or (hold_back and text.endswith("\N{REPLACEMENT CHARACTER}")):
            return ""
        self._ids, self._given = self._ids[self._given :], len(self._ids) - self._given
        return text[len(before) :]


def _content(token: Any) -> str:
    """The text of a token, which files write as a string or as an object with its matching rules."""
    return token["content"] if isinstance(token, dict) else str(token)


def _added_token(token: Any, *, special: bool) -> tokenizers.AddedToken:
    from tokenizers import AddedToken

    rules = token if isinstance(token, dict) else {}
    flags = {name: bool(rules.get(name, False)) for name in ("single_word", "lstrip", "rstrip", "normalized")}
    return AddedToken(_content(token), special=special, **flags)


def _add_tokens(backend: tokenizers.Tokenizer, settings: Mapping[str, Any]) -> None:
    """Makes the backend know the tokens named outside tokenizer.json, and treat the named ones as special."""
    known = {token.content: token.special for token in backend.get_added_tokens_decoder().values()}
    listed = settings.get("added_tokens_decoder") or {}
    for _, token in sorted(listed.items(), key=lambda item: int(item[0])):
        if _content(token) not in known:
            special = bool(token.get("special"))
            backend.add_tokens([_added_token(token, special=special)])
            known[_content(token)] = special
    named = [settings[name] for name in _NAMED_TOKENS if settings.get(name)]
    for name in ("additional_special_tokens", "extra_special_tokens"):
        extra = settings.get(name) or []
        named += extra.values() if isinstance(extra, dict) else extra
    for token in named:
        if not known.get(_content(token)):
            backend.add_special_tokens([_added_token(token, special=True)])
            known[_content(token)] = True


def _read(path: Path) -> tokenizers.Tokenizer:
    import tokenizers

    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exceptions
        raise ValueError(f"{path}: not a tokenizer that this version of tokenizers reads ({error})") from None


def _byte_level_bpe(vocabulary: Path, merges: Path, settings: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """GPT-2's tokenizer, also OPT's."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    try:
        backend = Tokenizer(models.BPE.from_file(str(vocabulary), str(merges)))
    except Exception as error:  # the library raises bare Exceptions
        raise ValueError(f"{vocabulary}: not a vocabulary that fits {merges.name} ({error})") from None
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=bool(settings.get("add_prefix_space", False)))
    backend.decoder = decoders.ByteLevel()
    around = {"bos": "", "eos": ""}
    special_tokens = []
    for name in around:
        if settings.get(f"add_{name}_token") and settings.get(f"{name}_token"):
            content = _content(settings[f"{name}_token"])
            special_tokens.append((content, backend.token_to_id(content)))
            around[name] = content
    if special_tokens:
        single = f"{around['bos']} $A {around['eos']}".strip()
        backend.post_processor = processors.TemplateProcessing(single=single, special_tokens=special_tokens)
    return backend


def _through_transformers(directory: Path, settings: dict[str, Any]) -> tokenizers.Tokenizer:
    """Lets transformers convert the files, and fills in the special tokens it knows for their class."""
    try:
        from transformers import AutoTokenizer
        from transformers.utils import logging
    except ImportError:
        raise ValueError(
            f"{directory}: has no tokenizer.json, and its other tokenizer files need transformers, which is not "
            f"installed"
        ) from None
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(directory))
    except Exception as error:  # anything, down to missing optional packages
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(f"{directory}: transformers cannot read its tokenizer files ({reason})") from None
    finally:
        logging.set_verbosity(verbosity)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ValueError(f"{directory}: its tokenizer {type(tokenizer).__name__} has no fast form, which is needed")
    for name, token in tokenizer.special_tokens_map.items():
        settings.setdefault(name, token)
    return backend


def _chat_template(directory: Path, settings: Mapping[str, Any]) -> str | None:
    """The file wins over tokenizer_config.json, where it can be one of several by name."""
    file = directory / "chat_template.jinja"
    if file.is_file():
        with file.open(encoding="utf-8", newline="") as opened:
            return opened.read()
    template = settings.get("chat_template")
    if isinstance(template, list):
        template = {entry.get("name"): entry.get("template") for entry in template}
    if isinstance(template, dict):
        template = template.get("default")
    return template if isinstance(template, str) else None


def _clean_up_spaces(text: str) -> str:
    for mark in (".", "?", "!", ","):
        text = text.replace(f" {mark}", mark)
    text = text.replace(" ' ", "'")
    for ending in ("n't", "'m", "'s", "'ve", "'re"):
        text = text.replace(f" {ending}", ending)
    return text

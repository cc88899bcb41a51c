"""Prompts of the programs: from files, from standard input, in a chat template."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from skipjax.language_model import LanguageModel
from skipjax.prompts import encode_prompts

EMBEDDED_PROMPTS = Path(__file__).parent / "embedded" / "examples.txt"  # inputs the embedded models have not seen


@dataclasses.dataclass(frozen=True)
class PromptLine:
    """A prompt as it was given.

    Attributes:
      name: what errors call it: "prompt 0", or the file and line.
      fields: "prompt" and, from a .jsonl file, whatever else its object has.
    """

    name: str
    fields: dict[str, Any]

    @property
    def prompt(self) -> str:
        return self.fields["prompt"]


def from_arguments(prompts: Sequence[str]) -> list[PromptLine]:
    """Prompts of a command line, which errors count from 0."""
    return [PromptLine(f"prompt {index}", {"prompt": prompt}) for index, prompt in enumerate(prompts)]


def read_prompts(path: str) -> list[PromptLine]:
    """Prompts from a file: one a line, or objects with a "prompt" in a .jsonl file; "-" is standard input, one a line.

    Raises FileNotFoundError, or ValueError that names the file and line.
    """
    if path != "-" and not Path(path).is_file():
        raise FileNotFoundError(f"--prompts-file {path}: no such file")
    data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"--prompts-file {path} is not UTF-8 text (byte {error.start})") from None
    # Not str.splitlines, which also splits at characters that may stand in a prompt.
    numbered = enumerate(re.split(r"\r\n|\r|\n", text), 1)
    lines = [(f"--prompts-file {path}, line {number}", line) for number, line in numbered if line.strip()]
    if not lines:
        raise ValueError(f"--prompts-file {path} holds no prompt")
    if not path.endswith(".jsonl"):
        return [PromptLine(name, {"prompt": line}) for name, line in lines]
    return [PromptLine(name, _fields(name, line)) for name, line in lines]


def _fields(name: str, line: str) -> dict[str, Any]:
    try:
        fields = json.loads(line)
    except json.JSONDecodeError:
        fields = None
    if not isinstance(fields, dict) or not isinstance(fields.get("prompt"), str):
        raise ValueError(f'{name}: expected an object with a text "prompt", got {line!r:.80}')
    try:
        json.dumps(fields, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name}: holds half of a surrogate pair, which is no character, got {line!r:.80}") from None
    return fields


def chat_tokens(lm: LanguageModel, message: str) -> list[int]:
    """Token ids of a user's message in the checkpoint's chat template. Raises ValueError where there is none."""
    if lm.tokenizer is None:
        raise ValueError("--chat needs a checkpoint with a tokenizer, and this one has none")
    return lm.tokenizer.encode(lm.tokenizer.apply_chat_template(message), add_special_tokens=False)


def encode_lines(lm: LanguageModel, lines: Sequence[PromptLine], max_new_tokens: int, *, chat: bool) -> list[list[int]]:
    """Token ids of each prompt, as it is or in the chat template. Errors as in `encode_prompts`, with lines' names."""
    prompts = [chat_tokens(lm, line.prompt) if chat else line.prompt for line in lines]
    return encode_prompts(lm, prompts, max_new_tokens, names=[line.name for line in lines])

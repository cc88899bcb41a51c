"""Prompts of the programs: from files, from standard input, in a chat template."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from skipjax.language_model import LanguageModel

EMBEDDED_PROMPTS = Path(__file__).parent / "embedded" / "examples.txt"  # inputs the embedded models have not seen


def chat_tokens(lm: LanguageModel, message: str) -> list[int]:
    """Token ids of a user's message in the checkpoint's chat template. Raises ValueError where there is none."""
    if lm.tokenizer is None:
        raise ValueError("--chat needs a checkpoint with a tokenizer, and this one has none")
    return lm.tokenizer.encode(lm.tokenizer.apply_chat_template(message), add_special_tokens=False)


def read_prompts(path: str) -> list[str]:
    """Prompts from a file: one a line, or objects with a "prompt" in a .jsonl file; "-" is standard input, one a line.

    Raises FileNotFoundError, or ValueError that names the file and line.
    """
    if path == "-":
        text = sys.stdin.read()
    else:
        file = Path(path)
        if not file.is_file():
            raise FileNotFoundError(f"--prompts-file {path}: no such file")
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"--prompts-file {path} is not UTF-8 text (byte {error.start})") from None
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        raise ValueError(f"--prompts-file {path} holds no prompt")
    if not path.endswith(".jsonl"):
        return [line for _, line in lines]
    return [_prompt_of(path, number, line) for number, line in lines]


def _prompt_of(path: str, number: int, line: str) -> str:
    try:
        prompt = json.loads(line)["prompt"]
    except (json.JSONDecodeError, KeyError, TypeError):
        prompt = None
    if not isinstance(prompt, str):
        raise ValueError(
            f'--prompts-file {path}, line {number}: expected an object with a text "prompt", got {line!r:.80}'
        )
    return prompt

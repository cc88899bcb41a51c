"""What the programs share: methods, sampling and prompts from plain flags."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from skipjax import checks
from skipjax.language_model import LanguageModel
from skipjax.methods import Full, SkipDecode

EMBEDDED_PROMPTS = Path(__file__).parent / "embedded" / "examples.txt"  # inputs the embedded model has not seen
METHODS = ("full", "skipdecode")


def method_from_flags(
    name: str | None,
    *,
    num_layers: int,
    recorded: Full | SkipDecode | None = None,
    speedup: float | None = None,
    max_depth: int | None = None,
    min_depth: int | None = None,
    warmup_layers: int | None = None,
    horizon: int | None = None,
) -> Full | SkipDecode:
    """The method that flags ask for.

    Without any flag it is `recorded`, the method a checkpoint was trained for (full depth if it has none). A
    "skipdecode" takes its depths from `speedup` or from `max_depth` and `min_depth`; what is left out comes from
    `recorded` where that is a SkipDecode too.
    Raises ValueError for flags that contradict each other.
    """
    depth_flags = {"--speedup": speedup, "--max-depth": max_depth, "--min-depth": min_depth}
    depth_flags |= {"--warmup-layers": warmup_layers, "--horizon": horizon}
    given = [flag for flag, value in depth_flags.items() if value is not None]
    if name is None:
        if not given:
            return recorded or Full()
        name = "skipdecode"
    checks.choice("--method", name, METHODS)
    if name == "full":
        if given:
            raise ValueError(f"--method full runs every layer, so it takes no {', '.join(given)}")
        return Full()
    known = recorded if isinstance(recorded, SkipDecode) else None
    warmup_layers = warmup_layers if warmup_layers is not None else known.warmup_layers if known else 1
    horizon = horizon if horizon is not None else known.horizon if known else None
    shape = known.shape if known else "linear"
    if speedup is not None:
        if max_depth is not None or min_depth is not None:
            raise ValueError("give either --speedup or --max-depth and --min-depth, not both")
        return SkipDecode.for_speedup(
            speedup, num_layers=num_layers, warmup_layers=warmup_layers, horizon=horizon, shape=shape
        )
    if known and max_depth is None and min_depth is None:
        max_depth, min_depth = known.max_depth, known.min_depth
    if max_depth is None or min_depth is None:
        raise ValueError("--method skipdecode needs --speedup, or both --max-depth and --min-depth")
    return SkipDecode(max_depth, min_depth, warmup_layers, horizon, shape)


def recorded_method(lm: LanguageModel) -> Full | SkipDecode | None:
    return None if lm.recorded is None else lm.recorded.method


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

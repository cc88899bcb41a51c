"""Answers to a file of prompts: in full batches, kept as they come, so that a run that was killed goes on.

While it runs, OUTPUT.progress takes a line per batch. OUTPUT itself is written at the end, as a whole; of
OUTPUT.progress there remains what was asked for, which tells the same request from another one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from skipjax import checks
from skipjax.display import records
from skipjax.fingerprint import fingerprint
from skipjax.generation import generate, warn_if_untrained
from skipjax.json_files import write_whole
from skipjax.json_log import JsonLog
from skipjax.language_model import LanguageModel
from skipjax.methods import Free, Method
from skipjax.pages import check_place
from skipjax.prompt_files import PromptLine, encode_lines
from skipjax.prompts import Part, bucket, occurrences_of
from skipjax.sampling import Sampling

FORMAT = "skipjax answers 1"

FINISHED = {"finished": True}

ANSWER = ("text", "tokens", "depths", "confidences", "finish_reason")
"""What an answer has besides the fields of its prompt."""

WORTH_A_PROGRAM = 2**16
"""Tokens of padding that take about as long as compiling a program more. On a CPU it was 20,000 for SmolLM2-135M with a
SkipDecode of 30 layers, 120,000 for the embedded model and 550,000 for the embedded T5 with FREE."""


@dataclasses.dataclass(frozen=True)
class Batch:
    """Prompts to answer together.

    Attributes:
      prompts: their indices.
      rows, columns: the shape that the batch is padded to, before rounding up.
    """

    prompts: tuple[int, ...]
    rows: int
    columns: int


def batches(lengths: Sequence[int], batch_size: int) -> list[Batch]:
    """Batches of prompts with `lengths` tokens. A function of its arguments alone: whoever computes it, later or
    elsewhere, gets the same.

    The longest come first, so that a batch that is too large for the memory is the first one. All batches have the same
    number of rows, also the last one, and a shorter prompt length is used only where that spares more padding than a
    program is worth: each shape is compiled.
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    groups = [tuple(order[start : start + batch_size]) for start in range(0, len(order), batch_size)]
    rows, columns = min(batch_size, len(lengths)), 0
    made: list[Batch] = []
    for place, group in enumerate(groups):
        fitting = bucket(lengths[group[0]], 16)
        spared = (columns - fitting) * rows * (len(groups) - place)
        if not made or spared >= WORTH_A_PROGRAM:
            columns = fitting
        made.append(Batch(group, rows, columns))
    return made


def check(lines: Sequence[PromptLine], output: Path) -> None:
    """What can be checked before a model is loaded. Raises ValueError if the answers cannot be written, would replace a
    file that is not theirs, or have no place for a field of a prompt."""
    for line in lines:
        for name in ANSWER:
            if name in line.fields:
                raise ValueError(f'{line.name}: the field "{name}" is one of the answer, rename it')
    check_place("--output", output)
    if output.exists() and not _progress(output).exists():
        raise ValueError(
            f"--output {output} exists, and no {_progress(output).name} beside it says what it answers: give another"
            f" --output, or move it away"
        )


def answer(
    lm: LanguageModel,
    lines: Sequence[PromptLine],
    method: Method,
    output: Path,
    *,
    batch_size: int,
    max_new_tokens: int,
    sampling: Sampling,
    chat: bool = False,
    progress: bool = False,
) -> int:
    """Writes one JSON object per prompt to a file, in their order: the prompt's own fields, and `ANSWER`.

    A run that ended early, however it did, goes on when it is called again with the same arguments: answers that were
    kept are not computed again, and are those of a run that was never stopped. When all are written, it does nothing.

    Args:
      chat: put prompts into the checkpoint's chat template.
      progress: show a bar with the time left, if standard error is a terminal.
    Returns:
      How many prompts were answered now.
    Raises:
      ValueError: a prompt that does not fit with `max_new_tokens`, a method with an adaptive threshold, or answers to
        something else in `output`, which is left as it is.
    """
    from tqdm import tqdm

    if isinstance(method, Free) and method.adaptive:
        raise ValueError(
            "--output goes without an adaptive threshold, which would depend on the order of the batches: give a"
            " --threshold"
        )
    checks.integer("batch_size", batch_size, 1)
    checks.integer("max_new_tokens", max_new_tokens, 1)
    check(lines, output)
    rows = encode_lines(lm, lines, max_new_tokens, chat=chat)
    occurrences = occurrences_of(rows)
    parts = batches([len(row) for row in rows], batch_size)
    asked = {
        "format": FORMAT,
        "weights": fingerprint(lm, exits=True),
        "dtype": lm.dtype.name,
        "method": repr(method),
        **dataclasses.asdict(sampling),
        "max_new_tokens": max_new_tokens,
        "batch_size": batch_size,
        "chat": chat,
        "number of prompts": len(lines),
        "prompts": _digest([line.fields for line in lines]),
        "tokens of prompts": _digest(rows),
    }
    path = _progress(output)
    if not output.exists() and path.exists() and path.read_bytes().rstrip().endswith(json.dumps(FINISHED).encode()):
        path.unlink()  # the answers it was about have been removed
    with JsonLog(path, asked, what="answers", flag="--output") as log:
        answers, left = _kept(log, lines, dict(enumerate(parts)), path)
        known = len(answers)
        if output.exists():
            if left:
                raise ValueError(
                    f"--output {output} exists, though {path.name} has answers to {known} of {len(lines)} prompts only:"
                    f" move it away to go on"
                )
            log.conclude(FINISHED)
            return 0
        if left:
            warn_if_untrained(lm, method.resolve(max_new_tokens))  # now, not in the middle of the bar
        with tqdm(total=len(lines), initial=known, unit="prompt", disable=None if progress else True) as bar:
            for place, batch in left.items():
                out = generate(
                    lm,
                    [rows[index] for index in batch.prompts],
                    method,
                    max_new_tokens=max_new_tokens,
                    sampling=sampling,
                    part=Part([occurrences[index] for index in batch.prompts], batch.rows, batch.columns),
                )
                said = records([lines[index].prompt for index in batch.prompts], out)
                log.append({"batch": place, "answers": said})
                answers |= _whole(lines, batch, said)
                bar.update(len(batch.prompts))
        write_whole(output, "".join(f"{answers[index]}\n" for index in range(len(lines))))
        log.conclude(FINISHED)
    return len(lines) - known


def _kept(
    log: JsonLog, lines: Sequence[PromptLine], parts: dict[int, Batch], path: Path
) -> tuple[dict[int, str], dict[int, Batch]]:
    """Answers that earlier runs kept, by the index of their prompt, and the batches they left; both are empty if a run
    was finished."""
    answers: dict[int, str] = {}
    left = dict(parts)
    for number, entry in enumerate(log, 2):
        if entry == FINISHED:
            return {}, {}
        try:
            answers |= _whole(lines, parts[entry["batch"]], entry["answers"])
            left.pop(entry["batch"], None)
        except (KeyError, TypeError, ValueError):
            raise ValueError(f"{path}: line {number} is damaged, remove the file to begin anew") from None
    return answers, left


def _whole(lines: Sequence[PromptLine], batch: Batch, said: Sequence[dict[str, Any]]) -> dict[int, str]:
    """Lines of the output, by the index of their prompt."""
    return {
        index: json.dumps(lines[index].fields | one, ensure_ascii=False)
        for index, one in zip(batch.prompts, said, strict=True)
    }


def _progress(output: Path) -> Path:
    return output.with_name(output.name + ".progress")


def _digest(values: Any) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()

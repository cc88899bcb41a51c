"""Answers 40 prompts with a tiny model and kills its own process after N batches: python killed_answers.py OUTPUT N."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
from letters import letters_lm

from skipjax.json_log import JsonLog
from skipjax.methods import SkipDecode
from skipjax.prompt_answers import answer
from skipjax.prompt_files import PromptLine
from skipjax.sampling import Sampling

METHOD = SkipDecode(4, 2, horizon=6)
NEW = 7
SAMPLING = Sampling(temperature=1.0, seed=5)


def prompts() -> list[str]:
    """40, of 1 to 40 letters; every fourth is "again"."""
    generator = np.random.default_rng(0)
    drawn = ["".join(map(chr, generator.integers(97, 123, generator.integers(1, 41)))) for _ in range(40)]
    return ["again" if index % 4 == 3 else prompt for index, prompt in enumerate(drawn)]


def lines() -> list[PromptLine]:
    return [
        PromptLine(f"line {index}", {"id": index, "prompt": prompt, "é": None})
        for index, prompt in enumerate(prompts())
    ]


LM = letters_lm(METHOD)


def run(output: Path, **changes: Any) -> int:
    """In 5 batches. `changes` are those of arguments of `answer`."""
    arguments: dict[str, Any] = {"lm": LM, "lines": lines(), "method": METHOD, "batch_size": 9, "max_new_tokens": NEW}
    return answer(output=output, **{**arguments, "sampling": SAMPLING, **changes})


def die_after(batches: int) -> None:
    """Kills this process when half of the next batch's line is written."""
    append = JsonLog.append

    def append_or_die(self: JsonLog, entry: dict[str, Any]) -> None:
        if entry.get("batch") == batches:
            self._file.write('{"batch": ')
            self._file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        append(self, entry)

    setattr(JsonLog, "append", append_or_die)  # noqa: B010 (mypy minds plain assignment)


if __name__ == "__main__":
    die_after(int(sys.argv[2]))
    run(Path(sys.argv[1]))

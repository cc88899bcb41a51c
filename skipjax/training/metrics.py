"""metrics.jsonl: one JSON object per log step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FILE = "metrics.jsonl"


class MetricsFile:
    """Appends lines, each complete on disk before the next step.

    Opened at a resumed step it first drops the lines of later steps, which will be computed again, and a last line that
    was cut off.
    """

    def __init__(self, directory: Path, after_step: int):
        self.path = directory / FILE
        kept = [line for line in _complete_lines(self.path) if line["step"] <= after_step]
        part = self.path.with_name(FILE + ".tmp")
        part.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
        part.replace(self.path)
        self._file = self.path.open("a", encoding="utf-8")

    def write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _complete_lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            lines.append(json.loads(text))
        except ValueError:
            break
    return lines

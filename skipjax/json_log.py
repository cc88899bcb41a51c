"""Lines of JSON that outlive the process that writes them: the same request, made again, goes on after the last one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from skipjax.json_files import write_whole


class JsonLog:
    """A file of JSON lines: the first says what was asked for, then there is one entry a line. A context manager.

    Each line is written at once, so that a process that is killed loses no more than the one it was writing; what there
    is of that one is cut off when the file is opened again. A file without entries is begun anew, whatever it is of.

    Args:
      path: of the file, made if there is none.
      asked: what is asked for, as JSON under names that an error can give.
      what: the file is of this, for the error: "an evaluation".
      flag: that gives another place, for the error: "--out".
    Raises:
      ValueError: the entries are of something else, or the file is damaged; it is left as it is.
    """

    def __init__(self, path: Path, asked: dict[str, Any], *, what: str, flag: str):
        self._path = path
        if path.is_dir():
            raise self._damaged()
        kept = path.read_bytes() if path.exists() else b""
        kept = kept[: kept.rfind(b"\n") + 1]
        self._lines = kept.splitlines()
        if self._lines:
            before = self._parsed(0).get("asked")
            if not isinstance(before, dict):
                raise self._damaged()
            if len(self):
                self._check_same(before, json.loads(json.dumps(asked)), what, flag)
        self._file = path.open("a", encoding="utf-8")
        self._file.truncate(len(kept) if len(self) else 0)
        if not len(self):
            self.append({"asked": asked})

    def __len__(self) -> int:
        """How many entries earlier processes have written."""
        return max(len(self._lines) - 1, 0)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """These entries, in the order of writing. Raises ValueError at one that is damaged."""
        return (self._parsed(number) for number in range(1, len(self._lines)))

    def append(self, entry: dict[str, Any]) -> None:
        """Writes one entry after all others, at once."""
        self._file.write(_line(entry))
        self._file.flush()

    def conclude(self, entry: dict[str, Any]) -> None:
        """Puts this entry in place of all others, at once or not at all. It is the last one."""
        self._file.close()
        with self._path.open(encoding="utf-8") as file:
            asked = file.readline()
        write_whole(self._path, asked + _line(entry))

    def close(self) -> None:
        """Closes the file; leaving the context does it too."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _parsed(self, number: int) -> dict[str, Any]:
        try:
            entry = json.loads(self._lines[number])
        except (UnicodeDecodeError, json.JSONDecodeError):
            raise self._damaged() from None
        if not isinstance(entry, dict):
            raise self._damaged()
        return entry

    def _damaged(self) -> ValueError:
        return ValueError(f"{self._path}: damaged, remove it to begin anew")

    def _check_same(self, before: dict[str, Any], now: dict[str, Any], what: str, flag: str) -> None:
        for name in now:
            if before.get(name) != now[name]:
                old, new = (_shown(value) for value in (before.get(name), now[name]))
                raise ValueError(
                    f"{self._path} is of {what} with {name} {old}, and this one has {new}: give another {flag}, or"
                    f" remove the file to begin anew"
                )


def _line(entry: dict[str, Any]) -> str:
    return json.dumps(entry, ensure_ascii=False) + "\n"


def _shown(value: Any) -> str:
    text = ", ".join(value) if isinstance(value, list) and all(isinstance(one, str) for one in value) else str(value)
    return text if len(text) <= 100 else f"{text[:97]}..."

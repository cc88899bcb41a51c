"""Small JSON files: config.json and its neighbours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises FileNotFoundError, or ValueError if it holds anything else, naming the file."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path}: not valid JSON ({error})") from None
    if not isinstance(data, dict):
        raise ValueError(f"{path}: must hold a JSON object, got {type(data).__name__}")
    return data


def read_optional_json(path: Path) -> dict[str, Any]:
    """Like `read_json`, empty if there is no such file."""
    return read_json(path) if path.is_file() else {}


def write_json(path: Path, data: dict[str, Any]) -> None:
    """An object as indented JSON, by `write_whole`."""
    write_whole(path, json.dumps(data, indent=2, ensure_ascii=False) + "\n")


def write_whole(path: Path, text: str) -> None:
    """Writes the file as a whole or not at all: a process killed at any moment leaves the old one or the new one."""
    part = path.with_name(path.name + ".tmp")
    part.write_text(text, encoding="utf-8")
    part.replace(path)

"""What is kept line by line, and what becomes of a line that was not finished."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from skipjax.json_log import JsonLog

ASKED = {"name": "é", "numbers": (1, 2)}


def opened(path: Path, **changes: object) -> JsonLog:
    return JsonLog(path, {**ASKED, **changes}, what="a test", flag="--out")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """With two entries."""
    path = tmp_path / "log.jsonl"
    with opened(path) as log:
        assert (len(log), list(log)) == (0, [])
        log.append({"one": "\u2028\n\r"})
        log.append({"two": 2})
    return path


def test_the_same_request_has_the_entries_and_goes_on(path: Path) -> None:
    with opened(path) as log:
        assert len(log) == 2
        assert list(log) == [{"one": "\u2028\n\r"}, {"two": 2}]
        log.append({"three": 3})
    with opened(path) as log:
        assert list(log)[2:] == [{"three": 3}]
    assert json.loads(path.read_text(encoding="utf-8").split("\n")[0]) == {"asked": {"name": "é", "numbers": [1, 2]}}


@pytest.mark.parametrize("cut", [1, 5, 11])
def test_what_was_half_written_is_cut_off(path: Path, cut: int) -> None:
    path.write_bytes(path.read_bytes()[:-cut])
    with opened(path) as log:
        assert list(log) == [{"one": "\u2028\n\r"}]
        log.append({"three": 3})
    with opened(path) as log:
        assert list(log)[1:] == [{"three": 3}]


def test_another_request_is_refused_and_changes_nothing(path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(
        ValueError, match=r"log\.jsonl is of a test with name é, and this one has a: give another --out"
    ):
        opened(path, name="a")
    with pytest.raises(ValueError, match=r"with numbers \[1, 2\], and this one has x{97}\.\.\.: give"):
        opened(path, numbers="x" * 101)
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", ['{"asked": {"name": "b"}}\n', '{"asked": {"na', ""])
def test_a_file_without_entries_is_begun_anew(path: Path, content: str) -> None:
    path.write_text(content)
    with opened(path) as log:
        log.append({"one": 1})
    with opened(path) as log:
        assert list(log) == [{"one": 1}]


@pytest.mark.parametrize("line", ["not json", "[1]", '{"asked": 1}', b"\xff"])
def test_files_of_others_are_left_alone(path: Path, line: str | bytes) -> None:
    path.write_bytes((line.encode() if isinstance(line, str) else line) + b"\n{}\n")
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"log\.jsonl: damaged, remove it to begin anew"):
        opened(path)
    assert path.read_bytes() == before


def test_a_damaged_entry_is_told(path: Path) -> None:
    path.write_text(path.read_text(encoding="utf-8").replace('{"two"', '{two"'), encoding="utf-8")
    with opened(path) as log, pytest.raises(ValueError, match="damaged, remove it"):
        list(log)


def test_the_conclusion_replaces_all_entries(path: Path) -> None:
    with opened(path) as log:
        log.conclude({"end": True})
    with opened(path) as log:
        assert list(log) == [{"end": True}]
    assert [entry.name for entry in path.parent.iterdir()] == ["log.jsonl"]

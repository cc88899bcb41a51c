"""Files of prompts: what counts as a line, what is kept of it, and what is refused."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from letters import letters_lm

from skipjax.methods import Full
from skipjax.prompt_files import PromptLine, encode_lines, from_arguments, read_prompts


def written(directory: Path, name: str, content: str | bytes) -> str:
    path = directory / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def test_objects_keep_their_fields_and_lines_their_numbers(tmp_path: Path) -> None:
    path = written(tmp_path, "a.jsonl", '{"id": 7, "prompt": "ä", "more": [1.5, null]}\n\n{"prompt": " b "}')
    assert read_prompts(path) == [
        PromptLine(f"--prompts-file {path}, line 1", {"id": 7, "prompt": "ä", "more": [1.5, None]}),
        PromptLine(f"--prompts-file {path}, line 3", {"prompt": " b "}),
    ]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_only_line_ends_end_a_line(tmp_path: Path, end: str) -> None:
    odd = "a\u2028b\x0c\x85c"
    texts = [f" {odd}", "second"]
    path = written(tmp_path, "a.txt", "\ufeff" + end.join([texts[0], "", texts[1], ""]))
    assert [line.prompt for line in read_prompts(path)] == texts
    assert [line.name.rpartition(", ")[2] for line in read_prompts(path)] == ["line 1", "line 3"]
    path = written(tmp_path, "a.jsonl", f'{{"prompt": "{odd.replace(chr(12), "")}"}}{end}')
    assert [line.prompt for line in read_prompts(path)] == ["a\u2028b\x85c"]


def test_standard_input_is_lines_of_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("é\n{}\n".encode())))
    assert [line.fields for line in read_prompts("-")] == [{"prompt": "é"}, {"prompt": "{}"}]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\xff")))
    with pytest.raises(ValueError, match=r"--prompts-file - is not UTF-8 text \(byte 1\)"):
        read_prompts("-")


@pytest.mark.parametrize("line", ['{"prompt": 1}', '{"text": "a"}', '["prompt"]', "prompt", '{"prompt": "a"'])
def test_bad_lines_are_named(tmp_path: Path, line: str) -> None:
    path = written(tmp_path, "a.jsonl", f'{{"prompt": "a"}}\n\n{line}\n')
    with pytest.raises(ValueError, match=r'a\.jsonl, line 3: expected an object with a text "prompt", got '):
        read_prompts(path)


def test_half_a_surrogate_pair_is_refused_wherever_it_stands(tmp_path: Path) -> None:
    path = written(tmp_path, "a.jsonl", r'{"prompt": "a", "id": "\ud800"}')
    with pytest.raises(ValueError, match=r"a\.jsonl, line 1: holds half of a surrogate pair"):
        read_prompts(path)
    path = written(tmp_path, "a.jsonl", r'{"prompt": "\ud83d\ude00"}')
    assert read_prompts(path)[0].prompt == "\U0001f600"


def test_errors_of_tokens_have_the_name_of_the_line() -> None:
    lm = letters_lm(Full())
    lines = [*from_arguments(["ab"]), PromptLine("--prompts-file x, line 9", {"prompt": "c" * 60})]
    assert encode_lines(lm, lines, 4, chat=False) == [[67, 68], [69] * 60]
    with pytest.raises(ValueError, match=r"^--prompts-file x, line 9 has 60 tokens; with max_new_tokens=5 that is bey"):
        encode_lines(lm, lines, 5, chat=False)
    with pytest.raises(ValueError, match=r"^--prompts-file x, line 9 has 66 tokens; with max_new_tokens=4"):
        encode_lines(lm, lines, 4, chat=True)  # [user]
    with pytest.raises(ValueError, match=r"^prompt 1 has no tokens"):
        encode_lines(lm, from_arguments(["a", ""]), 4, chat=False)

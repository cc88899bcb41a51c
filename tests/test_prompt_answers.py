"""Answers to many prompts: which batches they are made in, and what a run that was killed leaves to the next."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import killed_answers
import pytest
from compile_count import counting
from killed import run_killed
from killed_answers import LM, METHOD, NEW, SAMPLING, lines, prompts, run
from tiny_models import tiny_lm

from skipjax import prompt_answers
from skipjax.display import records
from skipjax.generation import generate
from skipjax.json_log import JsonLog
from skipjax.language_model import LanguageModel
from skipjax.methods import Free, Full
from skipjax.prompt_answers import WORTH_A_PROGRAM, Batch, batches
from skipjax.prompt_files import PromptLine
from skipjax.sampling import Sampling


class StoppedError(Exception):
    """In place of a signal."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The output of a run that nothing stopped."""
    output = tmp_path_factory.mktemp("undisturbed") / "answers.jsonl"
    with counting() as compiled:
        assert run(output) == 40
    assert compiled == [2]  # a prompt pass and a decode program for all batches
    return output.read_bytes()


def counted(monkeypatch: pytest.MonkeyPatch, stop_at: int | None = None) -> list[Any]:
    """The batches that are generated from now on; stops when there are `stop_at`."""
    made: list[Any] = []

    def generate_or_stop(lm: Any, rows: Any, *rest: Any, **more: Any) -> Any:
        if len(made) == stop_at:
            raise StoppedError
        made.append(rows)
        return generate(lm, rows, *rest, **more)

    monkeypatch.setattr(prompt_answers, "generate", generate_or_stop)
    return made


def stopped(monkeypatch: pytest.MonkeyPatch, output: Path, after: int) -> bytes:
    """What a run that was stopped after some batches has kept."""
    counted(monkeypatch, after)
    with pytest.raises(StoppedError):
        run(output)
    assert not output.exists()
    return progress(output).read_bytes()


def progress(output: Path) -> Path:
    return output.with_name(f"{output.name}.progress")


# Batches


def test_batches_are_full_and_the_longest_come_first() -> None:
    assert batches([3, 30, 9, 20, 20, 1, 5], 3) == [
        Batch((1, 3, 4), 3, 32),
        Batch((2, 6, 0), 3, 32),
        Batch((5,), 3, 32),
    ]
    assert batches([5, 17], 8) == [Batch((1, 0), 2, 24)]
    assert batches([40], 1) == [Batch((0,), 1, 48)]


def test_shorter_batches_have_a_program_of_their_own_where_it_pays() -> None:
    spared = 8 * (1024 - 16)  # by a batch of 8 prompts of 10 tokens beside others of 1000
    enough = -(-WORTH_A_PROGRAM // spared)
    for short, columns in ((enough - 1, 1024), (enough, 16)):
        made = batches([10] * (8 * short - 3) + [1000] * 8, 8)
        assert [batch.columns for batch in made] == [1024] + [columns] * short
        assert {batch.rows for batch in made} == {8}
        assert sorted(index for batch in made for index in batch.prompts) == list(range(8 * short + 5))


# Answers


def test_answers_are_those_of_one_batch_in_the_order_of_the_prompts(undisturbed: bytes) -> None:
    out = generate(LM, prompts(), METHOD, max_new_tokens=NEW, sampling=SAMPLING)
    answers = [json.loads(line) for line in undisturbed.decode().splitlines()]
    for line, answer, record in zip(lines(), answers, records(prompts(), out), strict=True):
        assert list(answer) == ["id", "prompt", "é", *prompt_answers.ANSWER]
        assert answer == {**line.fields, **record}
    again = [answer["text"] for answer in answers if answer["prompt"] == "again"]
    assert (len(again), len(set(again))) == (10, 10)


def test_a_killed_run_goes_on(undisturbed: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "answers.jsonl"
    run_killed(killed_answers, output, 2)
    assert not output.exists()
    assert progress(output).read_text(encoding="utf-8").endswith('\n{"batch": ')
    made = counted(monkeypatch)
    assert run(output) == 40 - 2 * 9
    assert [len(rows) for rows in made] == [9, 9, 4]
    assert output.read_bytes() == undisturbed
    # Only what was asked for is left of the progress, and a further run does nothing.
    assert len(progress(output).read_text(encoding="utf-8").splitlines()) == 2
    assert run(output) == 0
    assert len(made) == 3
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["answers.jsonl", "answers.jsonl.progress"]


def test_stopped_after_each_batch(undisturbed: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "answers.jsonl"
    for _ in range(5):
        made = counted(monkeypatch, 1)
        try:
            run(output)
        except StoppedError:
            assert len(made) == 1
    assert output.read_bytes() == undisturbed


@pytest.mark.parametrize("moment", ["before the output", "after the output"])
def test_stopped_at_the_end(undisturbed: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    output = tmp_path / "answers.jsonl"

    def stop(*_: Any) -> None:
        raise StoppedError

    with monkeypatch.context() as patched:
        patched.setattr(*((JsonLog, "conclude") if moment.startswith("after") else (Path, "replace")), stop)
        with pytest.raises(StoppedError):
            run(output)
    assert output.exists() == moment.startswith("after")
    made = counted(monkeypatch)
    assert run(output) == 0
    assert made == []
    assert output.read_bytes() == undisturbed
    assert len(progress(output).read_bytes().splitlines()) == 2


OTHERS: list[tuple[dict[str, Any], str]] = [
    ({"method": Full()}, r"method SkipDecode\(max_depth=4, .*, and this one has Full\(\): give another --output"),
    ({"sampling": Sampling(temperature=1.0, seed=6)}, "with seed 5, and this one has 6"),
    ({"max_new_tokens": NEW - 1}, f"with max_new_tokens {NEW}, and this one has {NEW - 1}"),
    ({"batch_size": 8}, "with batch_size 9, and this one has 8"),
    ({"chat": True, "lines": [PromptLine("a", {"prompt": "b"})]}, "with chat False, and this one has True"),
    ({"lines": lines()[1:]}, "with number of prompts 40, and this one has 39"),
    ({"lines": [*lines()[1:], lines()[0]]}, "with prompts [0-9a-f]{64}, and this one has [0-9a-f]{64}"),
    ({"lm": LanguageModel(LM.config, tiny_lm().params, LM.tokenizer)}, "with weights [0-9a-f]{64}, and this one has"),
]


@pytest.mark.parametrize(("changes", "said"), OTHERS)
def test_answers_to_something_else_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], said: str
) -> None:
    output = tmp_path / "answers.jsonl"
    before = stopped(monkeypatch, output, 1)
    with pytest.raises(ValueError, match=said):
        run(output, **changes)
    assert progress(output).read_bytes() == before
    assert not output.exists()


def test_finished_answers_are_only_replaced_when_they_are_gone(
    undisturbed: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, other = tmp_path / "answers.jsonl", Sampling(temperature=1.0, seed=6)
    run(output)
    with pytest.raises(ValueError, match="with seed 5, and this one has 6"):
        run(output, sampling=other)
    assert output.read_bytes() == undisturbed
    output.unlink()
    assert run(output, sampling=other) == 40
    assert output.read_bytes() != undisturbed


def test_a_run_that_failed_at_its_first_batch_can_be_changed(
    undisturbed: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "answers.jsonl"
    counted(monkeypatch, 0)
    with pytest.raises(StoppedError):
        run(output, batch_size=11)
    counted(monkeypatch)
    assert run(output) == 40
    assert output.read_bytes() == undisturbed


def test_files_of_others_are_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "answers.jsonl"
    output.write_text("mine")
    with pytest.raises(ValueError, match=r"exists, and no answers\.jsonl\.progress beside it says what it answers"):
        run(output)
    output.unlink()
    before = stopped(monkeypatch, output, 2)
    output.write_text("mine")
    with pytest.raises(
        ValueError, match=r"exists, though answers\.jsonl\.progress has answers to 18 of 40 prompts only"
    ):
        run(output)
    assert (output.read_text(), progress(output).read_bytes()) == ("mine", before)


def test_a_damaged_line_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "answers.jsonl"
    asked, first, second = stopped(monkeypatch, output, 2).splitlines(keepends=True)
    for line in (b'{"batch": 0, "answers": []}\n', b'{"batch": 5, "answers": []}\n', b"{}\n", b'{"batch": [0]}\n'):
        progress(output).write_bytes(asked + first + line + second)
        with pytest.raises(ValueError, match=r"answers\.jsonl\.progress: line 3 is damaged, remove the file to begin"):
            run(output)


def test_bad_requests_leave_nothing_behind(tmp_path: Path) -> None:
    output = tmp_path / "answers.jsonl"
    for changes, said in [
        ({"method": Free(2, adaptive=True)}, "--output goes without an adaptive threshold"),
        ({"batch_size": 0}, "batch_size must be an integer of at least 1, got 0"),
        ({"max_new_tokens": 60}, r"^line \d+ has \d+ tokens; with max_new_tokens=60 that is beyond"),
        *(
            ({"lines": [*lines(), PromptLine("line 40", {"prompt": "a", name: 1})]}, f'^line 40: the field "{name}" is')
            for name in prompt_answers.ANSWER
        ),
    ]:
        with pytest.raises(ValueError, match=said):
            run(output, **changes)
    with pytest.raises(ValueError, match=r"--output .*nowhere/a: cannot be written"):
        run(tmp_path / "nowhere" / "a")
    assert list(tmp_path.iterdir()) == []

"""The models that come with the package, and the command that shows them."""

from __future__ import annotations

import re
import sys

import pytest

import skipjax as sj
from skipjax import main, prompt_files


def run(monkeypatch, capsys, *arguments: str) -> str:
    """Standard output of `skipjax ARGUMENTS`, which must succeed without a word of warning."""
    monkeypatch.setattr(sys, "argv", ["skipjax", *arguments])
    with pytest.raises(SystemExit) as ended:
        main.main()
    out, err = capsys.readouterr()
    assert "warning" not in err  # what is shown is what the weights were trained for
    assert not ended.value.code
    return out


def texts_of(out: str, *names: str) -> list[tuple[str, list[str]]]:
    """For each embedded prompt, that and the text of each method."""
    texts = re.findall(rf"^  ({'|'.join(map(re.escape, names))}): (.+)$", out, re.MULTILINE)
    prompts = [line.prompt for line in prompt_files.read_prompts(str(prompt_files.EMBEDDED_PROMPTS))]
    assert [label for label, _ in texts] == list(names) * len(prompts)
    starts = range(0, len(texts), len(names))
    rows = [[text for _, text in texts[start : start + len(names)]] for start in starts]
    return list(zip(prompts, rows, strict=True))


def value(prompt: str, field: str) -> str:
    """Of a field of a prompt: "Italian" for "food" of "name[Aromi], food[Italian] ->"."""
    return re.search(rf"{field}\[(.+?)\]", prompt).group(1)


def test_embedded_model_is_small_and_trained_for_one_to_five_times():
    lm = sj.load()
    assert (lm.config.family, lm.config.num_layers, lm.num_parameters) == ("llama", 12, 2_624_640)
    for speedup in (1, 2, 3, 5):
        method = sj.SkipDecode.for_speedup(speedup, num_layers=12, horizon=48)
        assert lm.recorded.covers(method, 12)
    assert lm.recorded.method == sj.SkipDecode(8, 4, horizon=48)


def test_command_without_arguments_shows_both_depths_and_the_three_speedups(monkeypatch, capsys):
    out = run(monkeypatch, capsys, "generate")
    for prompt, texts in texts_of(out, "Full", "SkipDecode 8/4"):
        assert all(value(prompt, "name") in text for text in texts)
    assert re.search(r"speed-up: target 2\.00x, realised 1\.\d\dx .*, measured \d\.\d\dx", out)
    assert re.search(r"layers x tokens: 12x1 8x7 ", out)


def test_embedded_t5_is_small_and_trained_for_free():
    lm = sj.load("embedded-t5")
    assert (lm.config.family, lm.config.num_layers) == ("t5", 12)
    assert lm.recorded.method == sj.Free(shallow_layers=3, threshold=0.5)
    assert lm.trained_exits == (3,)


def test_free_is_shown_on_the_embedded_t5(monkeypatch, capsys):
    out = run(monkeypatch, capsys, "generate", "--method", "free")
    for prompt, texts in texts_of(out, "Full", "Free 0.5"):  # it gets most facts right, names often not
        assert all(value(prompt, "food") in text for text in texts)
    assert re.search(r"^  exits: \d+% of tokens, threshold 0\.50, \d+ deep passes of \d\.\d tokens$", out, re.MULTILINE)
    assert re.search(r"speed-up: target 4\.00x, realised [1-4]\.\d\dx .*, measured \d\.\d\dx", out)


def test_verified_texts_of_the_embedded_t5_are_those_of_full_depth(monkeypatch, capsys):
    out = run(monkeypatch, capsys, "generate", "--threshold", "0.5", "--verify", "exact")
    assert all(exact == full for _, (full, exact) in texts_of(out, "Full", "Free 0.5 exact"))
    assert re.search(r"^  exits: .*\d+% stood when checked$", out, re.MULTILINE)

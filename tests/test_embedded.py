"""The model that comes with the package, and the command that shows it."""

from __future__ import annotations

import re
import sys

import pytest

import skipjax as sj
from skipjax import flags, main


def test_embedded_model_is_small_and_trained_for_one_to_five_times():
    lm = sj.load()
    assert (lm.config.family, lm.config.num_layers, lm.num_parameters) == ("llama", 12, 2_624_640)
    for speedup in (1, 2, 3, 5):
        method = sj.SkipDecode.for_speedup(speedup, num_layers=12, horizon=48)
        assert lm.recorded.covers(method, 12)
    assert lm.recorded.method == sj.SkipDecode(8, 4, horizon=48)


def test_command_without_arguments_shows_both_depths_and_the_three_speedups(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["skipjax", "generate"])
    with pytest.raises(SystemExit) as ended:
        main.main()
    out, err = capsys.readouterr()
    assert "warning" not in err  # the schedule shown is one the weights were trained for
    assert not ended.value.code
    prompts = flags.read_prompts(str(flags.EMBEDDED_PROMPTS))
    texts = re.findall(r"^  (Full|SkipDecode 8-4): (.+)$", out, re.MULTILINE)
    assert [label for label, _ in texts] == ["Full", "SkipDecode 8-4"] * len(prompts)
    for prompt, (_, full), (_, skipped) in zip(prompts, texts[::2], texts[1::2], strict=True):
        name = re.search(r"name\[(.+?)\]", prompt).group(1)
        assert name in full
        assert name in skipped
    assert re.search(r"speed-up: target 2\.00x, realised 1\.\d\dx .*, measured \d\.\d\dx", out)
    assert re.search(r"layers x tokens: 12x1 8x7 ", out)

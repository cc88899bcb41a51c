"""Exit shares at a wanted agreement."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from tiny_training import LLAMA, random_examples

from skipjax.calibration import ExitCurve, exit_curves, table
from skipjax.decoder import init_params
from skipjax.language_model import LanguageModel
from skipjax.methods import Full
from skipjax.teacher_forcing import forward


def curve(confidences, agreements):
    return ExitCurve(2, "margin", np.asarray(confidences, np.float32), np.asarray(agreements, bool))


def test_the_worked_example():
    one = curve([0.6, 0.9, 0.7, 0.8], [1, 1, 0, 1])
    assert one.threshold_for(1.0) == pytest.approx(0.7)
    assert one.exits_above(one.threshold_for(1.0)) == (0.5, 1.0)
    assert one.exits_above(one.threshold_for(0.75)) == (1.0, 0.75)


def test_equal_confidences_leave_together_or_not_at_all():
    one = curve([0.9, 0.5, 0.5, 0.5], [1, 1, 0, 0])
    assert one.exits_above(one.threshold_for(1.0)) == (0.25, 1.0)
    assert one.exits_above(one.threshold_for(0.5)) == (1.0, 0.5)
    assert curve([0.5, 0.5], [0, 1]).threshold_for(0.9) == np.inf
    assert curve([0.5, 0.5], [0, 1]).exits_above(np.inf) == (0.0, None)


def test_curves_are_those_of_teacher_forced_logits():
    lm = LanguageModel(LLAMA, init_params(LLAMA, 3))
    examples = random_examples(3)
    (one,) = exit_curves(lm, examples, [2], ["top1"], batch_size=2)
    bottom = dataclasses.replace(LLAMA, num_layers=2)
    lower = LanguageModel(bottom, {**lm.params, "layers": lm.params["layers"][:2]})
    confidences, agreements = [], []
    for prompt, target in zip(examples.prompts, examples.targets, strict=True):
        rows = [[*prompt.tolist(), *target.tolist()[:-1]]]
        early, late = (forward(model, rows, Full())[0, len(prompt) - 1 :] for model in (lower, lm))
        p = np.exp(early - early.max(axis=-1, keepdims=True))
        confidences += (p / p.sum(axis=-1, keepdims=True)).max(axis=-1).tolist()
        agreements += (early.argmax(axis=-1) == late.argmax(axis=-1)).tolist()
    np.testing.assert_allclose(one.confidences, confidences, atol=1e-5)
    assert one.agreements.tolist() == agreements
    assert "top1" in table([one], 0.5)


def test_layers_and_confidences_a_model_cannot_exit_by():
    lm = LanguageModel(LLAMA, init_params(LLAMA, 3))
    with pytest.raises(ValueError, match="layers must be an integer from 1 to 2, got 3"):
        exit_curves(lm, random_examples(1), [3])
    with pytest.raises(ValueError, match="confidence 'classifier' needs a trained classifier after layer 1"):
        exit_curves(lm, random_examples(1), [1], ["classifier"])

"""Runs: what they write, and that a killed one goes on as if nothing had happened."""

import json
import re

import killed_training
import numpy as np
import pytest
from killed import run_killed
from killed_training import STEPS, run
from tiny_models import tiny_config
from tiny_training import LLAMA, assert_trees_equal, random_examples, tiny_model

from skipjax import checkpoint, exit_heads
from skipjax.fingerprint import fingerprint
from skipjax.methods import Full, SkipDecode
from skipjax.recorded import Recorded
from skipjax.training import (
    OptimizerSettings,
    RunSettings,
    choose_shapes,
    heads,
    skipdecode,
    train,
    with_exit_heads,
)
from skipjax.training.loss import NextToken
from skipjax.training.metrics import MetricsFile


def lines_of(directory):
    """Without what depends on the clock."""
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "tokens_per_second"} for line in lines]


def params_at(directory, step):
    with checkpoint.open_manager(directory, use="read") as manager:
        target = {"params": checkpoint.abstract_params(LLAMA), "progress": None}
        return checkpoint.restore_step(manager, step, target)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    directory = tmp_path_factory.mktemp("run") / "out"
    run(directory, resume=False, report=lambda line: None)
    return directory


def test_metrics(undisturbed):
    lines = lines_of(undisturbed)
    assert [line["step"] for line in lines] == [2, 4, 6, 8, 10, 12]
    assert [round(line["learning_rate"], 6) for line in lines] == [0.01] * 6
    assert all(0 < line["loss"] < 4 and 0 < line["gradient_norm"] < 10 for line in lines)
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert {line["speedup"] for line in lines} == {1.0, 2.0}
    assert [list(line["validation_losses"]) for line in lines if "validation_loss" in line] == [["full", "2x"]] * 2
    examples = random_examples(20)
    real = sum(len(prompt) for prompt in examples.prompts) + sum(len(target) - 1 for target in examples.targets)
    # Ten updates are two epochs.
    assert lines[4]["padding"] != lines[3]["padding"]
    np.testing.assert_allclose(sum(line["padding"] for line in lines[:5]) / 5, 1 - real / (20 * (8 + 12 - 1)))


def test_what_is_kept(undisturbed):
    rated = {line["step"]: line["validation_loss"] for line in lines_of(undisturbed) if "validation_loss" in line}
    best = min(rated, key=rated.get)
    with checkpoint.open_manager(undisturbed, use="read") as manager:
        assert set(manager.all_steps()) == {9, 12, best}  # the two newest and the best
        assert manager.best_step() == best
    lm = checkpoint.restore(undisturbed)
    assert_trees_equal(lm.params, params_at(undisturbed, best)["params"])
    assert lm.recorded == Recorded(SkipDecode(2, 1, 0, 9), (1.0, 2.0))
    assert lm.config == LLAMA
    # The recorded loss is that of the weights which come back.
    assert params_at(undisturbed, 12)["progress"] == {"step": 12, "window": [], "best": rated[best]}


def test_killed_twice_and_resumed(undisturbed, tmp_path):
    """Once while a line of metrics.jsonl is half written, once while a checkpoint is."""
    directory = tmp_path / "out"
    run_killed(killed_training, directory, "writing", 8)
    text = (directory / "metrics.jsonl").read_text()
    assert text.endswith('{"step": ')
    assert text.count("\n") == 3
    run_killed(killed_training, directory, "saving", 9)
    assert [line["step"] for line in lines_of(directory)] == [2, 4, 6, 8]
    run(directory, resume=True, report=lambda line: None)
    assert lines_of(directory) == lines_of(undisturbed)
    first, second = (params_at(place, STEPS) for place in (directory, undisturbed))
    assert_trees_equal(first["params"], second["params"])
    assert first["progress"] == second["progress"]
    leftovers = [entry.name for entry in (directory / "checkpoints").iterdir() if not entry.name.isdigit()]
    assert leftovers == []


def test_finished_run_says_so_and_can_be_prolonged(undisturbed, tmp_path):
    said = []
    before = lines_of(undisturbed)
    run(undisturbed, resume=True, report=said.append)
    assert said == [f"{undisturbed} has already reached step 12 of 12: nothing to do"]
    assert lines_of(undisturbed) == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 2}, "batch_size must stay 4 to resume"),
        ({"seed": 1}, "seed must stay 0 to resume"),
        ({"accumulate": 2}, "accumulate must stay 1 to resume"),
        ({"dtype": "bfloat16"}, "dtype must stay 'float32' to resume"),
    ],
)
def test_changed_settings_are_refused(undisturbed, changes, message):
    with pytest.raises(ValueError, match=message):
        run(undisturbed, resume=True, **changes)


def train_heads(directory, resume=False, report=lambda line: None):
    lm = with_exit_heads(tiny_model(), [1], norm=True)
    examples = random_examples(20)
    train(
        lm,
        examples,
        choose_shapes(examples, 4, 1),
        heads(lm.config),
        OptimizerSettings(1e-2, 4, schedule="constant"),
        RunSettings(4, save_every=2, log_every=1),
        directory,
        resume=resume,
        describe=lambda lm, directory: exit_heads.describe(lm, directory, "tiny", fingerprint(lm)),
        report=report,
    )


def test_resumed_exits(tmp_path):
    """Where only the exits are trained, only they are kept, and the rest comes from the model again."""
    train_heads(tmp_path / "undisturbed")

    def stop(line):
        if line.startswith("step 3/4"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_heads(tmp_path / "stopped", report=stop)
    train_heads(tmp_path / "stopped", resume=True)
    assert lines_of(tmp_path / "stopped") == lines_of(tmp_path / "undisturbed")
    base = tiny_model()
    joined = [exit_heads.join(base, tmp_path / name) for name in ("stopped", "undisturbed")]
    assert_trees_equal(joined[0].params, joined[1].params)
    assert (joined[0].params["exits"]["1"]["norm"]["scale"] != base.params["ends"]["final_norm"]["scale"]).all()
    with checkpoint.open_manager(tmp_path / "stopped", use="read") as manager:
        assert manager.all_steps() == [2, 4]
        assert set(manager.item_metadata(4)["params"].tree) == {"exits"}


def test_taken_directories_are_refused(undisturbed, tmp_path):
    with pytest.raises(ValueError, match="out must be a new or empty directory, or be resumed with --resume, got"):
        run(undisturbed, resume=False)
    (tmp_path / "thesis.txt").write_text("")
    with pytest.raises(ValueError, match=r"cannot be resumed: it holds files but no training\.json"):
        run(tmp_path, resume=True)
    with pytest.raises(ValueError, match="out must be a directory"):
        run(tmp_path / "thesis.txt", resume=False)


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path, monkeypatch):
    from skipjax.training import trainer

    real_step = trainer.train_step

    def step(*arguments):
        state, results = real_step(*arguments)
        return state, {**results, "loss": results["loss"] * float("nan")}

    monkeypatch.setattr(trainer, "train_step", step)
    with pytest.raises(ValueError, match=r"learning_rate must be lower: with 0\.01 the loss at step 2 is nan"):
        run(tmp_path / "out", resume=False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 0}, "batch_size must be an integer of at least 1, got 0"),
        ({"accumulate": 0}, "accumulate must be an integer of at least 1, got 0"),
        ({"seed": -1}, "seed must be an integer from 0 to 4294967295, got -1"),
        ({"dtype": "float16"}, "dtype must be one of 'float32', 'bfloat16', got 'float16'"),
        ({"log_every": 0}, "log_every must be an integer of at least 1, got 0"),
    ],
)
def test_bad_run_settings(changes, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        RunSettings(**{"batch_size": 1, **changes})


def test_metrics_file_drops_later_and_broken_lines(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"st')
    metrics = MetricsFile(tmp_path, after_step=2)
    metrics.write({"step": 3, "loss": 1.0})
    metrics.close()
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1}\n{"step": 2}\n{"step": 3, "loss": 1.0}\n'


def test_schedules_of_a_range():
    curriculum = skipdecode(tiny_config(num_layers=12), speedup_range=(1, 3.5), horizon=40)
    methods = [objective.method for objective in curriculum.objectives]
    assert [(method.max_depth, method.min_depth) for method in methods] == [(12, 12), (8, 4), (6, 3), (5, 2)]
    assert {method.horizon for method in methods} == {40}
    assert curriculum.recorded == Recorded(SkipDecode(8, 4, 1, 40), (1.0, 3.5))
    assert all(curriculum.recorded.covers(method, 12) for method in methods)
    drawn = [curriculum.draw(0, step) for step in range(400)]
    assert [curriculum.draw(0, step) for step in range(400)] == drawn
    assert [curriculum.draw(1, step) for step in range(400)] != drawn
    assert set(drawn) == {(NextToken(method), method.target_speedup(12)) for method in methods}
    assert all(drawn.count(one) > 60 for one in set(drawn))
    assert list(curriculum.validated) == ["full", "2x", "2.67x", "3.43x"]
    assert curriculum.validated["full"] == NextToken(Full())
    assert curriculum.rated == dict.fromkeys(curriculum.validated, 0.25)


def test_one_schedule():
    curriculum = skipdecode(tiny_config(num_layers=6), speedup=2, horizon=9)
    assert curriculum.objectives == (NextToken(SkipDecode(4, 2, 1, 9)),)
    assert curriculum.recorded == Recorded(SkipDecode(4, 2, 1, 9))
    assert curriculum.draw(0, 7) == (curriculum.objectives[0], 2.0)
    assert curriculum.rated == {"2x": 1.0}
    stepped = skipdecode(tiny_config(), max_depth=3, min_depth=3, horizon=9, shape="step")
    assert stepped.recorded.method.shape == "step"


EXACTLY_ONE = "exactly one of --speedup, --max-depth with --min-depth, and --speedup-range must be given"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, EXACTLY_ONE),
        ({"speedup": 2, "max_depth": 3}, EXACTLY_ONE),
        ({"speedup": 2, "speedup_range": (1, 2)}, EXACTLY_ONE),
        ({"max_depth": 3}, "--max-depth and --min-depth must be given together, --min-depth is missing"),
        ({"max_depth": 5, "min_depth": 2}, "max_depth must be at most the model's 4 layers, got 5"),
        ({"speedup_range": (2, 2)}, "speedup_range must be a number above 2, got 2"),
        ({"speedup_range": (0.5, 2)}, "speedup_range must be a number at least 1, got 0.5"),
        ({"speedup": 9}, "speedup 9 leaves 0 of 4 layers at the end, but 2 always run"),
    ],
)
def test_bad_schedules(changes, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        skipdecode(tiny_config(), horizon=9, **changes)

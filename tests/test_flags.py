"""What the flags of the inference programs ask for, and how groups of flags become commands."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import pytest
import typer
from tiny_models import tiny_config
from typer.testing import CliRunner

from skipjax import flags, main
from skipjax.adaptive import AdaptiveThreshold
from skipjax.flag_groups import GridCommand, with_flags
from skipjax.flags import AdaptiveFlags, MethodFlags
from skipjax.methods import METHODS, Calm, Free, Full, SkipDecode, StaticExit
from skipjax.settings import FULL, Setting

CONFIG = tiny_config(num_layers=12)
SKIPS = SkipDecode(4, 2, horizon=6, shape="cosine")
FREE = Free(3, threshold=0.7, confidence="top1")


def asked(*recorded, **given) -> list[Setting]:
    return MethodFlags(**given).settings(CONFIG, *recorded)


def methods(*recorded, **given) -> list:
    return [setting.method for setting in asked(*recorded, **given)]


def test_without_flags_it_is_the_recorded_method():
    assert asked() == [FULL]
    assert asked(Full()) == [FULL]
    assert asked(SKIPS) == [Setting(SKIPS)]
    assert methods(FREE) == [FREE]


def test_the_preferred_method_comes_first_and_the_others_fill_in():
    assert methods(FREE, SKIPS) == [FREE]
    assert methods(Full(), SKIPS) == [Full()]
    assert methods(FREE, SKIPS, speedup=["2"]) == [SkipDecode(8, 4, horizon=6, shape="cosine")]
    assert methods(FREE, SKIPS, method=["free"]) == [FREE]
    assert methods(dataclasses.replace(FREE, threshold=0.5), FREE, method=["free"]) == [Free(3, 0.5, "top1")]
    assert methods(Calm(0.5, 2), SKIPS, max_depth=6, min_depth=3) == [
        dataclasses.replace(SKIPS, max_depth=6, min_depth=3)
    ]
    assert methods(Calm(0.5, 2), FREE, threshold=["0.3"]) == [Calm(0.3, 2)]
    assert methods(FREE, Calm(0.5, 2), threshold=["0.3"]) == [dataclasses.replace(FREE, threshold=0.3)]


def test_skipdecode():
    assert methods(method=["full"]) == [Full()]
    assert methods(SKIPS, method=["full"]) == [Full()]
    assert asked(speedup=["2"]) == [Setting(SkipDecode(8, 4), 2.0)]
    assert methods(SKIPS, speedup=["2"]) == [SkipDecode(8, 4, horizon=6, shape="cosine")]
    assert methods(FREE, speedup=["2"]) == [SkipDecode(8, 4)]
    assert methods(SKIPS, method=["skipdecode"], horizon=20) == [dataclasses.replace(SKIPS, horizon=20)]
    assert methods(SKIPS, max_depth=6, min_depth=5, warmup_layers=2) == [SkipDecode(6, 5, 2, 6, "cosine")]
    assert methods(SKIPS, max_segments=2) == [dataclasses.replace(SKIPS, max_segments=2)]
    assert methods(speedup=["2"], max_segments=3) == [SkipDecode(8, 4, max_segments=3)]
    assert methods(SkipDecode(4, 2, max_segments=3), speedup=["2"]) == [SkipDecode(8, 4, max_segments=3)]
    assert asked(speedup=["1,2.0", " 3", "2"]) == [
        FULL,
        Setting(SkipDecode(8, 4), 2.0),
        Setting(SkipDecode.for_speedup(3, num_layers=12), 3.0),
    ]


def test_free():
    assert methods(shallow_layers=3) == [Free(3)]
    assert methods(FREE, threshold=["0.3"]) == [dataclasses.replace(FREE, threshold=0.3)]
    assert methods(FREE, method=["free"]) == [FREE]
    assert methods(FREE, buffer_size=2) == [dataclasses.replace(FREE, buffer_size=2)]
    assert methods(SKIPS, shallow_layers=4, rollback=1.5, confidence="cosine") == [
        Free(4, rollback=1.5, confidence="cosine")
    ]
    assert methods(shallow_layers=3, threshold=["0.3,0.5", "0.3"]) == [Free(3, 0.3), Free(3, 0.5)]
    assert methods(FREE, adaptive=True) == [dataclasses.replace(FREE, adaptive=True)]
    assert methods(shallow_layers=3, threshold=["0.3"], adaptive=True, verify="exact") == [
        Free(3, 0.3, verify="exact"),
        Free(3, adaptive=True, verify="exact"),
    ]


def test_what_is_given_overrules_what_was_recorded():
    assert methods(Free(3, rollback=1.0), verify="exact") == [Free(3, verify="exact")]
    assert methods(Free(3, verify="exact"), rollback=1.0) == [Free(3, rollback=1.0)]
    assert methods(Free(3, adaptive=True), threshold=["0.5"]) == [Free(3, 0.5)]


def test_baselines():
    assert methods(depth=["3,6"]) == [StaticExit(3), StaticExit(6)]
    assert methods(method=["calm"], threshold=["0.3,0.9"], min_depth=2) == [Calm(0.3, 2), Calm(0.9, 2)]
    assert methods(decay=4.0, threshold=["0.9"]) == [Calm(0.9, decay=4.0)]
    assert methods(threshold=["0.9"], min_depth=4, confidence="cosine") == [Calm(0.9, 4, confidence="cosine")]


def test_each_of_several_methods_takes_the_flags_it_knows():
    grid = {"speedup": ["2"], "threshold": ["0.5,0.9"], "shallow_layers": 3, "depth": ["3"], "min_depth": 2}
    assert methods(method=["free,calm", "static-exit,skipdecode"], **grid) == [
        *(Free(3, 0.5), Free(3, 0.9), Calm(0.5, 2), Calm(0.9, 2)),
        *(StaticExit(3), SkipDecode(8, 4)),  # min_depth is CALM's, since a speed-up gives SkipDecode's depths
    ]
    assert methods(FREE, method=["full,free"]) == [Full(), FREE]


def test_a_flag_of_two_methods_means_the_recorded_one():
    assert methods(SKIPS, max_depth=6, min_depth=3) == [dataclasses.replace(SKIPS, max_depth=6, min_depth=3)]
    assert methods(FREE, confidence="margin") == [dataclasses.replace(FREE, confidence="margin")]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"method": ["skipdecod"]}, "--method must be one of .*'skipdecod' .did you mean 'skipdecode'"),
        ({"method": ["static_exit"]}, "did you mean 'static-exit'"),
        ({"method": ["free,"]}, "--method must be one of .*got ''"),
        ({"method": ["full"], "speedup": ["2"]}, "--speedup goes with --method skipdecode, not with full"),
        ({"method": ["free", "calm"], "depth": ["2"]}, "--depth goes with --method static-exit, not with free or calm"),
        ({"speedup": ["2"], "max_depth": 3}, "give either --speedup or --max-depth and --min-depth, not both"),
        ({"max_depth": 3}, "--method skipdecode needs --speedup, or both --max-depth and --min-depth"),
        ({"speedup": ["2"], "decay": 1.0}, r"--speedup \(skipdecode\) and --decay \(calm\)"),
        ({"threshold": ["0.5"]}, "--method must say whether --threshold means free or calm"),
        ({"min_depth": 2}, "--method must say whether --min-depth means skipdecode or calm"),
        ({"adaptive": True}, "--method free needs --shallow-layers"),
        ({"method": ["static-exit"]}, "--method static-exit needs --depth"),
        ({"method": ["calm"]}, "--method calm needs --threshold"),
        ({"threshold": ["0.5,high"], "shallow_layers": 3}, "--threshold must be numbers .*got '0.5,high'"),
        ({"depth": ["2.5"]}, "--depth must be whole numbers .*got '2.5'"),
        ({"shallow_layers": 12}, "shallow_layers must be below the model's 12 layers, got 12"),
        ({"shallow_layers": 3, "verify": "exactly"}, "verify must be None or 'exact', got 'exactly'"),
        ({"shallow_layers": 3, "verify": "exact", "rollback": 1.0}, "give either rollback or verify"),
        ({"shallow_layers": 3, "confidence": "classifier"}, "needs a trained classifier after layer 3"),
        ({"max_depth": 13, "min_depth": 3}, "max_depth must be at most the model's 12 layers, got 13"),
        ({"horizon": 0, "speedup": ["2"]}, "horizon must be an integer of at least 1, got 0"),
    ],
)
def test_contradictions(given, said):
    with pytest.raises(ValueError, match=said):
        asked(**given)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({}, "embedded"),
        ({"method": ["skipdecode"]}, "embedded"),
        ({"method": ["full"]}, "embedded"),
        ({"min_depth": 3}, "embedded"),
        ({"speedup": ["2"]}, "embedded"),
        ({"method": ["free"]}, "embedded-t5"),
        ({"method": ["full", "calm"]}, "embedded-t5"),
        ({"threshold": ["0.5"]}, "embedded-t5"),
        ({"depth": ["3"]}, "embedded-t5"),
        ({"threshold": ["0.5"], "min_depth": 3}, "embedded-t5"),
    ],
)
def test_methods_that_exit_are_shown_on_the_encoder_decoder_model(given, name):
    assert MethodFlags(**given).embedded() == name


def test_labels_and_depths():
    cases = [
        (FULL, "full", "12", (12, 12)),
        (Setting(SkipDecode(8, 4), 2.0), "skipdecode 2x", "8/4", (8, 4)),
        (Setting(SkipDecode(8, 4)), "skipdecode 8/4", "8/4", (8, 4)),
        (Setting(SkipDecode(8, 4, max_segments=3)), "skipdecode 8/4 in 3", "8/4", (8, 4)),
        (Setting(Free(3)), "free 0.9", "3/12", (12, 3)),
        (Setting(Free(3, 0.5, verify="exact")), "free 0.5 exact", "3/12", (12, 3)),
        (Setting(Free(3, 0.5, rollback=2.0)), "free 0.5 rollback 2", "3/12", (12, 3)),
        (Setting(Free(3, adaptive=True)), "free adaptive", "3/12", (12, 3)),
        (Setting(Free(3, adaptive=True, verify="exact")), "free adaptive exact", "3/12", (12, 3)),
        (Setting(StaticExit(3)), "static-exit 3", "3", (3, 3)),
        (Setting(Calm(0.9, 2)), "calm 0.9", "2-12", (12, 2)),
        (Setting(Calm(0.9, decay=4.0)), "calm 0.9 decay 4", "1-12", (12, 1)),
        (Setting(Calm(0.9, 12)), "calm 0.9", "12-12", (12, 12)),
    ]
    for setting, label, depths_label, depths in cases:
        assert (setting.label, setting.depths_label(12), setting.depths(12)) == (label, depths_label, depths)


def test_setting_in_json():
    assert Setting(Free(3, rollback=float("inf"))).to_json() == {
        "method": "free",
        "speedup": None,
        "confidence": "margin",
        "arguments": {
            "shallow_layers": 3,
            "threshold": 0.9,
            "confidence": "margin",
            "buffer_size": 8,
            "rollback": None,
            "verify": None,
            "adaptive": False,
        },
    }
    assert FULL.to_json() == {"method": "full", "speedup": 1.0, "confidence": None, "arguments": {}}


def test_every_method_has_its_flags():
    assert flags.TAKES.keys() == METHODS.keys()
    names = {field.name for field in dataclasses.fields(MethodFlags)} - {"method"}
    assert {name for takes in flags.TAKES.values() for name in takes} == names


def test_adaptive_files(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(AdaptiveThreshold, "plot", lambda self, path: drawn.append((self, path)))
    adaptive, state = Free(3, adaptive=True), tmp_path / "state.json"
    assert AdaptiveFlags().begin([Full(), adaptive]) == [None, AdaptiveThreshold()]
    files = AdaptiveFlags(adaptive_state=state, threshold_plot=tmp_path / "plot.png")
    assert files.begin([adaptive, Free(3)]) == [AdaptiveThreshold(), None]
    learnt = AdaptiveThreshold().after([0.2, 0.3, 0.8, 0.9], [0, 0, 1, 1])
    files.end([None, learnt])
    assert files.begin([adaptive]) == [learnt]
    assert drawn == [(estimator, tmp_path / "plot.png") for estimator in (AdaptiveThreshold(), learnt, learnt)]
    with pytest.raises(ValueError, match="--threshold-plot goes with --method free --adaptive"):
        AdaptiveFlags(threshold_plot=state).begin([Free(3)])
    with pytest.raises(FileNotFoundError, match=r"--adaptive-state .*no such directory"):
        AdaptiveFlags(adaptive_state=tmp_path / "missing" / "state.json").begin([adaptive])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loudness:
    word: Annotated[str, typer.Option(help="What to say.")]
    times: Annotated[int, typer.Option(help="How often.")] = 2
    loud: Annotated[bool, typer.Option("--loud", help="Shout.")] = False


def test_groups_of_flags_become_flags_of_the_command():
    @with_flags(times=3)
    def say(
        *,
        first: Annotated[str, typer.Option(help="Before all.")] = "-",
        loudness: Loudness,
        names: Annotated[list[str] | None, typer.Argument(help="To whom.")] = None,
    ) -> None:
        """Says it."""
        typer.echo(f"{first} {loudness} {names}")

    app = typer.Typer(rich_markup_mode=None)
    app.command()(say)
    out = CliRunner().invoke(app, ["--word", "hi", "--loud", "a", "b"]).output
    assert out == f"- {Loudness(word='hi', times=3, loud=True)} ['a', 'b']\n"
    text = CliRunner().invoke(app, ["--help"]).output
    places = [text.index(flag) for flag in ("--word", "--first", "--times", "--loud", "--help")]
    assert places == sorted(places)
    assert "Says it." in text
    assert "Before all." in text
    assert "Missing option '--word'" in CliRunner().invoke(app, []).output


def grid(*words: str) -> str:
    def show(
        several: Annotated[list[str] | None, typer.Option()] = None,
        others: Annotated[list[str] | None, typer.Option("--others", "-o")] = None,
        one: Annotated[str | None, typer.Option()] = None,
        loud: Annotated[bool, typer.Option("--loud")] = False,
    ) -> None:
        typer.echo(f"{several} {others} {one} {loud}")

    app = typer.Typer(rich_markup_mode=None)
    app.command(cls=GridCommand)(show)
    return CliRunner().invoke(app, list(words)).output.strip()


@pytest.mark.parametrize(
    ("words", "seen"),
    [
        ("--several 1 2,3 4 --one x --others a b --loud", "['1', '2,3', '4'] ['a', 'b'] x True"),
        ("--several 1 --several 2", "['1', '2'] None None False"),
        ("--several=1 2 --loud", "['1', '2'] None None True"),
        ("--several -1 -0.5 1,-2 -1,3 -o a b", "['-1', '-0.5', '1,-2', '-1,3'] ['a', 'b'] None False"),
        ("--one -1 --several 2", "['2'] None -1 False"),
        ("--several 1 2 --several 3 4", "['1', '2', '3', '4'] None None False"),
    ],
)
def test_flags_of_several_values_take_every_word_up_to_the_next_flag(words, seen):
    assert grid(*words.split()) == seen


def test_other_flags_take_one_word():
    assert "unexpected extra argument" in grid("--one", "x", "y")
    assert "No such option: --none" in grid("--several", "1", "--none", "2")
    assert "requires an argument" in grid("--loud", "--several")


@pytest.mark.parametrize("command", ["evaluate", "bench", "compile"])
def test_commands_without_arguments_take_grids(command, monkeypatch):
    """They all come to look at the flags of the methods, and find the same settings."""
    seen = []

    def settings(self, *_):
        seen.append(self.given())
        raise ValueError("far enough")

    monkeypatch.setattr(MethodFlags, "settings", settings)
    monkeypatch.setattr("skipjax.evaluation.read_inputs", lambda *_, **__: [])
    data = ["--data", "d.csv", "--prompt-template", "{a}", "--target-column", "b"] if command == "evaluate" else []
    shape = [] if command == "evaluate" else ["--shape", "opt-125m"]
    result = CliRunner().invoke(main.app, [command, *data, *shape, "--speedup", "1", "2", "3.5"])
    assert str(result.exception) == "far enough"
    assert seen == [{"speedup": [1.0, 2.0, 3.5]}]


def test_fields_of_a_group_can_be_left_out_of_the_command():
    @with_flags(without=("times",))
    def say(*, loudness: Loudness) -> None:
        typer.echo(str(loudness))

    app = typer.Typer(rich_markup_mode=None)
    app.command()(say)
    assert CliRunner().invoke(app, ["--word", "hi"]).output == f"{Loudness(word='hi')}\n"
    assert "No such option: --times" in CliRunner().invoke(app, ["--word", "hi", "--times", "3"]).output


def test_exits_are_not_trained_for_random_weights():
    text = CliRunner().invoke(main.app, ["train", "heads", "--help"]).output
    assert "--model" in text
    assert "--init" not in text
    assert "--tokenizer" not in text

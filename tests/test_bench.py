import json
import math
from pathlib import Path
from typing import Any

import jax
import pytest
import tiny_training
from tiny_models import tiny_config
from typer.testing import CliRunner, Result

from skipjax import bench, bench_report, decoder, rivals, shapes
from skipjax.account import Exits
from skipjax.bandwidth import Bandwidth
from skipjax.bench import Workload
from skipjax.language_model import LanguageModel
from skipjax.methods import Calm, Free, SkipDecode, StaticExit
from skipjax.settings import Setting

CONFIG = tiny_config(num_layers=2, max_positions=32)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("smollm2-135m", 134_515_008),
        ("smollm2-360m", 361_821_120),
        ("smollm2-1.7b", 1_711_376_384),
        ("opt-125m", 125_239_296),
        ("opt-1.3b", 1_315_758_080),
        ("opt-2.7b", 2_651_596_800),
        ("opt-6.7b", 6_658_473_984),
        ("llama-3.2-1b", 1_235_814_400),
        ("llama-3.2-3b", 3_212_749_824),
        ("llama-3.1-8b", 8_030_261_248),
        ("t5-small", 60_506_624),
        ("t5-base", 222_903_552),
        ("t5-large", 737_668_096),
        ("t5-3b", 2_851_598_336),
        ("flan-t5-base", 247_577_856),
        ("flan-t5-large", 783_150_080),
    ],
)
def test_shapes_have_the_published_sizes(name: str, parameters: int) -> None:
    leaves = jax.tree.leaves(decoder.abstract_params(shapes.shape_config(name)))
    assert sum(math.prod(leaf.shape) for leaf in leaves) == parameters


def test_shape_names() -> None:
    assert len(shapes.SHAPES) == 16
    with pytest.raises(ValueError, match="did you mean 'opt-125m'"):
        shapes.shape_config("opt-125")


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    return shapes.random_model(CONFIG, dtype="float32", execution="unrolled")


def test_random_model(lm: LanguageModel) -> None:
    assert (lm.execution, lm.dtype, lm.tokenizer) == ("unrolled", "float32", None)
    scanned = shapes.random_model(CONFIG, dtype="float32", execution="scanned")
    assert (scanned.execution, scanned.num_parameters) == ("scanned", lm.num_parameters)
    with pytest.raises(ValueError, match="did you mean 'scanned'"):
        shapes.random_model(CONFIG, execution="scaned")


def test_measure(lm: LanguageModel) -> None:
    # Depth 1: only the last layer ever decodes, so the first needs no cache.
    settings = [Setting(SkipDecode(1, 1, warmup_layers=0), 2.0)]
    workloads = bench.workloads((1, 2), (16,), (5,))
    warned = set(lm.warned)
    measured = bench.measure(lm, settings, workloads, repeats=2)
    assert lm.warned == warned
    assert [(m.setting.label, m.workload.batch_size) for m in measured] == [
        *(("full", 1), ("skipdecode 2x", 1)),
        *(("full", 2), ("skipdecode 2x", 2)),
    ]
    for m in measured:
        assert m.depths is not None
        batch = m.workload.batch_size
        position_bytes = 2 * batch * 2 * 8 * 4  # keys and values, two heads of 8 float32
        layers = 2 if m.setting.label == "full" else 1
        assert m.depths.kv_cache_bytes == layers * (16 + 4) * position_bytes
        assert m.depths.kv_cache_share == layers / 2
        assert m.depths.mean_depth == pytest.approx(2 if layers == 2 else (2 + 4 * 1) / 5)
        assert m.depths.realised_speedup == pytest.approx(2 / m.depths.mean_depth)
        assert m.depths.target_speedup == 2 / layers
        assert m.depths.compile_seconds > 0
        assert m.cache_bytes_per_step == layers * 18.5 * position_bytes  # steps see 17 to 20 columns
        assert (m.same_tokens == 1.0) == (layers == 2)
        assert m.step_against is None
        assert m.bound_share is not None
        for spread in (m.prompt_ms, m.step_ms, m.tokens_per_second, m.measured_speedup, m.bandwidth, m.bound_share):
            assert 0 < spread.lowest <= spread.median <= spread.highest
    assert measured[0].measured_speedup == bench.Spread(1, 1, 1)
    again = bench.measure(lm, settings, workloads, repeats=1)
    assert [m.depths and m.depths.compile_seconds for m in again] == [0] * 4


def cells(text: str, table: int) -> list[list[str]]:
    """The rows of a Markdown table of a report, header first, without the rule."""
    tables = [part for part in text.split("\n\n") if part.startswith("|")]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in tables[table].splitlines()]
    return [rows[0], *rows[2:]]


def test_measure_methods_with_exits(lm: LanguageModel) -> None:
    free = Free(1, -1.0, buffer_size=2)
    methods = [free, StaticExit(1), Calm(-1.0)]
    measured = bench.measure(lm, [Setting(method) for method in methods], [Workload(1, 4, 5)], repeats=1)
    full, *depths = [m.depths for m in measured if m.depths is not None]
    assert full.exits == Exits(None, None, None, None, None)
    for of_method in depths:  # of five tokens only that of the prompt pass is from the last layer
        assert (of_method.exits.exit_share, of_method.mean_depth, of_method.min_depth) == (0.8, 6 / 5, 1)
    assert [of_method.max_depth for of_method in depths] == [2, 1, 2]
    assert depths[0].exits.tokens_per_deep_pass == 2
    header, *rows = cells(bench_report.report(measured), 1)
    exits = header.index("exits")
    assert header[exits : exits + 3] == ["exits", "threshold", "tokens/pass"]
    assert [row[exits : exits + 3] for row in rows] == [
        ["-", "-", "-"],
        ["80.0%", "-1.00", "2.0"],
        ["80.0%", "-", "-"],
        ["80.0%", "-1.00", "-"],
    ]
    assert "accepted" not in header


def test_measure_an_encoder_decoder_model() -> None:
    lm = shapes.random_model(tiny_training.T5, dtype="float32", execution="unrolled")
    exact = Free(1, -1.0, buffer_size=2, verify="exact")
    full, verified = bench.measure(lm, [Setting(exact)], [Workload(1, 4, 3)], repeats=1)
    assert full.depths is not None
    assert verified.depths is not None
    assert (full.depths.max_depth, verified.depths.target_speedup, verified.setting.label) == (3, 3, "free -1 exact")
    assert verified.depths.exits.acceptance_rate is not None
    assert verified.same_tokens == 1.0
    assert verified.measured_speedup.median == pytest.approx(full.step_ms.median / verified.step_ms.median)


def test_against_transformers(lm: LanguageModel, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    against = rivals.Transformers(lm)
    measured = bench.measure(lm, [], [Workload(1, 8, 4), Workload(2, 8, 4)], repeats=2, against=against)
    assert [m.setting.label for m in measured] == [
        *("full", "transformers", "transformers lookup", "transformers exit 1"),
        *("full", "transformers"),
    ]
    for m in measured:
        assert m.same_tokens == 1.0
        assert m.step_against is not None
        assert (m.depths is None) == m.setting.label.startswith("transformers")
    assert measured[1].step_against == bench.Spread(1, 1, 1)
    assert measured[0].step_against is not None
    # Of each repeat one is the other's inverse, and so are the ends of their ranges, however long the steps took.
    assert measured[1].measured_speedup.lowest == pytest.approx(1 / measured[0].step_against.highest)
    assert measured[1].measured_speedup.highest == pytest.approx(1 / measured[0].step_against.lowest)
    header, *rows = cells(bench_report.report(measured), 0)
    assert header[-3:] == ["vs prompt", "vs step", "same"]
    assert [row[-1] for row in rows] == ["100%"] * 4
    picture = tmp_path / "bench.png"
    bench_report.plot(measured, picture)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_to_json(lm: LanguageModel) -> None:
    (full,) = bench.measure(lm, [], [Workload(1, 2, 2)], repeats=1)
    data = json.loads(json.dumps(full.to_json()))
    spreads = ["prompt_ms", "step_ms", "tokens_per_second", "measured_speedup", "bandwidth", "bound_share"]
    keys = "method speedup confidence arguments num_layers max_depth min_depth batch_size prompt_length max_new_tokens"
    keys += " target_speedup realised_speedup mean_depth kv_cache_bytes kv_cache_share compile_seconds same_tokens"
    keys += " weight_bytes_per_step cache_bytes_per_step prompt_against step_against throughput_against"
    keys += " threshold exit_share deep_passes tokens_per_deep_pass acceptance_rate"
    assert set(data) == {*keys.split(), *spreads, *(f"{name}_range" for name in spreads)}
    assert data["step_ms_range"] == [data["step_ms"]] * 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size must be an integer of at least 1, got 0"),
        ({"prompt_length": 0}, "prompt_length must be"),
        ({"max_new_tokens": 1}, "max_new_tokens must be an integer of at least 2, got 1"),
    ],
)
def test_bad_workloads(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Workload(**arguments)


def test_what_cannot_be_measured(lm: LanguageModel) -> None:
    with pytest.raises(ValueError, match="at most the model's 32 positions, got 30 \\+ 3"):
        bench.measure(lm, [], [Workload(1, 30, 3)])
    with pytest.raises(ValueError, match="max_depth must be at most the model's 2 layers, got 3"):
        bench.measure(lm, [Setting(SkipDecode(3, 3))], [Workload(1, 2, 2)])
    with pytest.raises(ValueError, match="workloads must hold at least one, got none"):
        bench.measure(lm, [], [])
    with pytest.raises(ValueError, match="repeats must be an integer of at least 1, got 0"):
        bench.measure(lm, [], [Workload(1, 2, 2)], repeats=0)


def test_bandwidth() -> None:
    bandwidth = Bandwidth("float32", nbytes=2**25)
    assert bandwidth.nbytes == 2**25
    assert bandwidth.measure() > 0


def run_program(*arguments: str) -> Result:
    from skipjax.main import app

    return CliRunner().invoke(app, ["bench", *arguments])


def test_program(monkeypatch: pytest.MonkeyPatch, lm: LanguageModel, tmp_path: Path) -> None:
    monkeypatch.setattr(shapes, "shape_config", lambda name: CONFIG)
    monkeypatch.setattr(shapes, "random_model", lambda config, dtype, execution: lm)
    arguments = ["--shape", "opt-125m", "--speedup", "1", "--batch-size", "1,2", "--prompt-length", "4"]
    arguments += ["--max-new-tokens", "3", "--repeats", "1", "--dtype", "float32"]
    result = run_program(*arguments, "--json")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    assert [(row["model"], row["method"], row["batch_size"]) for row in rows] == [
        ("opt-125m", "full", 1),
        ("opt-125m", "full", 2),
    ]
    assert all(row["num_layers"] == 2 and row["dtype"] == "float32" and row["platform"] for row in rows)
    result = run_program(*arguments)
    assert result.exit_code == 0, result.output
    assert [row[0] for table in range(4) for row in cells(result.stdout, table)[1:]] == ["full"] * 4

    assert (
        str(run_program("--shape", "opt-125m", "--model", "m").exception) == "give either --model or --shape, not both"
    )
    assert str(run_program("--batch-size", "1,x").exception).startswith("--batch-size must be whole numbers")
    assert str(run_program("--repeats", "0").exception).startswith("--repeats must be an integer of at least 1, got 0")
    said = str(run_program("--against", "vllm").exception)
    assert said.startswith("--against must be one of 'transformers'"), said
    assert "nowhere" in str(run_program("--plot", str(tmp_path / "nowhere" / "x.png")).exception)


@pytest.mark.parametrize(
    ("flags", "labels"),
    [
        ([], ["skipdecode 2x", "skipdecode 4x"]),
        (["--method", "skipdecode", "--warmup-layers", "0"], ["skipdecode 2x", "skipdecode 4x"]),
        (["--max-depth", "4", "--min-depth", "2"], ["skipdecode 4/2"]),
        (["--method", "full"], ["full"]),
        (["--shallow-layers", "3", "--threshold", "-1,1", "--adaptive"], ["free -1", "free 1", "free adaptive"]),
        (
            ["--method", "static-exit,calm", "--depth", "3,6", "--threshold", "0.5"],
            ["static-exit 3", "static-exit 6", "calm 0.5"],
        ),
    ],
)
def test_flags_of_methods(
    monkeypatch: pytest.MonkeyPatch, lm: LanguageModel, flags: list[str], labels: list[str]
) -> None:
    asked: list[Setting] = []
    monkeypatch.setattr(shapes, "shape_config", lambda name: tiny_config(num_layers=12, max_positions=None))
    monkeypatch.setattr(shapes, "random_model", lambda config, dtype, execution: lm)
    monkeypatch.setattr(bench, "measure", lambda lm, settings, *_, **__: asked.extend(settings) or [])
    result = run_program("--shape", "t5-large", *flags, "--json")
    assert result.exit_code == 0, result.output
    assert [setting.label for setting in asked] == labels


def test_heads_need_a_model() -> None:
    result = run_program("--shape", "opt-125m", "--heads", "h")
    assert str(result.exception) == "give either --heads or --shape, not both"


def test_flags_name_every_shape() -> None:
    text = run_program("--help").output
    assert all(name in text for name in shapes.SHAPES)

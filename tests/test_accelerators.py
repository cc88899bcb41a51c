"""Programs for TPUs and GPUs, without any: exported for both, and compiled for TPUs where libtpu is installed.

pip install -e '.[tpu]' and python -m pytest tests/test_accelerators.py run them all.
"""

from __future__ import annotations

import importlib.util
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import tiny_config
from typer.testing import CliRunner, Result

from skipjax import ahead_of_time, decoder, programs, shapes
from skipjax.ahead_of_time import Sizes
from skipjax.attention import attention
from skipjax.cache import KVCache
from skipjax.generation import make_request
from skipjax.methods import Calm, Free, Full, SkipDecode
from skipjax.prompts import pad_left
from skipjax.sampling import Sampling

HAS_LIBTPU = importlib.util.find_spec("libtpu") is not None


# What the cache of scanned layers looks like


@pytest.mark.parametrize(
    ("kv_heads", "group", "head_size", "kept"),
    [
        (4, 1, 64, (2, 128)),  # two heads fill the lanes
        (3, 2, 64, (3, 64)),  # heads that come in threes do not pair
        (2, 1, 128, (2, 128)),  # a single query for each key
        (4, 2, 8, (1, 32)),
    ],
)
def test_heads_side_by_side_change_nothing(kv_heads, group, head_size, kept):
    lengths, batch = (9, 0, 6), 2
    generator = np.random.default_rng(0)

    def drawn(*shape):
        return generator.normal(size=shape).astype(np.float32)

    heads = kv_heads * group
    key, value, other = (drawn(batch, 6, kv_heads, head_size) for _ in range(3))
    query, bias = drawn(batch, 1, heads, head_size), drawn(1, heads, 1, 6)
    allowed = np.arange(6) < np.array([[[6]], [[4]]])

    @jax.jit
    def results(slots):
        expected = attention(query, key, value, allowed, "bskh", bias=bias)
        got = []
        for slot in (slots[0], slots):  # all rows at one, and each at its own
            for layer in (0, 2):
                cache = KVCache.zeros(lengths, batch, kv_heads, head_size, jnp.dtype("float32"), True)
                cache = cache.write(2 - layer, slot, other, -other).write(layer, slot, key, value)
                read = cache.read(layer, 6)
                got.append(attention(query, *read, allowed, cache.layout, stacked=True, bias=bias))
        return expected, got, cache.keys

    expected, got, array = results(np.zeros(batch, np.int32))
    assert array.shape == (batch, kept[0], 16, kept[1])
    for one in got:
        np.testing.assert_allclose(one, expected, atol=1e-5)


# Exported for platforms that are not here

EXPORTED = {"skipdecode": SkipDecode(3, 2), "free": Free(2, 0.5, verify="exact"), "calm": Calm(0.5)}


@pytest.mark.parametrize("family", ["llama", "t5"])
@pytest.mark.parametrize("name", EXPORTED)
def test_generation_exports(name, family):
    config, method = tiny_config(family), EXPORTED[name].resolve(9)
    strategy = method.strategy(config.num_layers, 9)
    params = decoder.abstract_params(config, jnp.bfloat16, "scanned")
    prompts, padding = pad_left([[3] * 16] * 2, 0)
    request = make_request(config, [[3]] * 2, padding, Sampling(), method, 9, False)
    source, state = programs.prefill.eval_shape(config, strategy, params, prompts, request)
    calls = {
        programs.prefill: ((config, strategy, params, prompts, request), (source, state)),
        programs.decode: ((config, strategy, 16, params, source, state, request, np.int32(9)), state),
    }
    for program, (arguments, results) in calls.items():
        exported = jax.export.export(program, platforms=["cuda", "tpu"])(*arguments)
        assert exported.platforms == ("cuda", "tpu")
        shapes_out = [(one.shape, one.dtype) for one in exported.out_avals]
        assert shapes_out == [(one.shape, one.dtype) for one in jax.tree.leaves(results)]
    assert exported.mlir_module().count("stablehlo.while") >= 1


# The command, with the CPU in the place of a TPU


@pytest.fixture
def without_tpu(monkeypatch):
    monkeypatch.setattr(ahead_of_time, "tpu", lambda topology: jax.devices()[0])
    monkeypatch.setattr(shapes, "shape_config", lambda name: tiny_config(num_layers=6))
    yield
    jax.config.update("jax_enable_compilation_cache", True)  # the command turns it off


def run_program(*arguments: str) -> Result:
    from skipjax.main import app

    sizes = ["--batch-size", "2", "--prompt-length", "16", "--max-new-tokens", "8"]
    return CliRunner().invoke(app, ["compile", "--shape", "opt-1.3b", *sizes, *arguments])


def test_the_command_says_what_programs_take(without_tpu):
    arguments = ["--max-depth", "5", "--min-depth", "3", "--max-segments", "2", "--dtype", "float32"]
    result = run_program(*arguments, "--json")
    assert result.exit_code == 0, result.output
    (said,) = json.loads(result.stdout)
    assert (said["method"], said["dtype"], said["batch_size"]) == ("skipdecode", "float32", 2)
    leaves = jax.tree.leaves(decoder.abstract_params(tiny_config(num_layers=6)))
    assert said["weights"] == sum(leaf.size for leaf in leaves) * 4
    plan = SkipDecode(5, 3, horizon=8, max_segments=2).plan(6, 7)
    assert said["cache"] == sum(plan.cache_lengths(16)) * 2 * 2 * 2 * 8 * 4  # k and v, rows, heads, head size, bytes
    assert [one["name"] for one in said["programs"]] == ["prefill", "decode"]
    decode = said["programs"][1]
    assert decode["needed"] == said["weights"] + said["cache"]
    assert decode["arguments"] >= decode["needed"]
    assert decode["ratio"] == pytest.approx((decode["arguments"] + decode["temporaries"]) / decode["needed"])
    assert [one["depth"] for one in said["segments"]] == [segment.depth for segment in plan.segments]
    assert len(said["segments"]) == 2
    for segment in said["segments"]:
        assert segment["ratio"] == segment["counted"] / segment["ideal"] > 1


def test_the_command_compiles_training(without_tpu):
    result = run_program("--speedup", "2", "--training")
    assert result.exit_code == 0, result.output
    assert "| train step |" in result.stdout
    assert str(run_program("--rematerialise").exception) == "--rematerialise goes with --training"
    refused = run_program("--method", "static-exit", "--depth", "2", "--training")
    assert "training is compiled for full depth, SkipDecode and FREE, got StaticExit(depth=2)" in str(refused.exception)


def test_sizes_that_do_not_fit():
    with pytest.raises(ValueError, match="at most the model's 64 positions, got 60 \\+ 8"):
        ahead_of_time.compile_generation(tiny_config(), Full(), None, Sizes(prompt_length=60, max_new_tokens=8))
    with pytest.raises(ValueError, match="batch_size must be an integer of at least 1, got 0"):
        Sizes(batch_size=0)


def test_without_libtpu(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="needs libtpu, which is not installed: pip install 'skipjax\\[tpu\\]'"):
        ahead_of_time.tpu("v5e:2x2")


# Compiled for TPUs

needs_libtpu = pytest.mark.skipif(not HAS_LIBTPU, reason="needs libtpu")


@needs_libtpu
def test_unknown_topology():
    with pytest.raises(ValueError, match="topology must be one that libtpu knows, such as v5e:2x2 or v6e:2x2"):
        ahead_of_time.tpu("v0z:2x2")


@needs_libtpu
@pytest.mark.parametrize("topology", ["v5e:2x2", "v6e:2x2"])
@pytest.mark.parametrize(
    ("shape", "most"), [("opt-6.7b", 1.05), ("llama-3.1-8b", 1.05), ("opt-1.3b", 1.15), ("llama-3.2-1b", 1.15)]
)
def test_no_second_copy_of_weights_or_cache_and_no_bytes_beyond_the_plan(shape, most, topology):
    """Real shapes with all their layers, which share one loop; the schedule is cut to two depths, since each is another
    loop to compile."""
    config = shapes.shape_config(shape)
    method = SkipDecode.for_speedup(2.0, num_layers=config.num_layers, max_segments=2)
    compiled = ahead_of_time.compile_generation(config, method, ahead_of_time.tpu(topology), Sizes())
    assert compiled.decode.aliased >= compiled.cache
    assert compiled.decode.ratio <= most
    assert compiled.prefill.arguments + compiled.prefill.outputs <= 1.01 * compiled.prefill.needed
    assert len(compiled.segments) == 2
    for segment in compiled.segments:
        assert 0.99 <= segment.ratio <= 1.15


@needs_libtpu
def test_free_with_an_encoder_keeps_no_second_copy_either():
    config, sizes = shapes.shape_config("t5-base"), Sizes(prompt_length=128, max_new_tokens=32)
    compiled = ahead_of_time.compile_generation(config, Free(6, 0.9), ahead_of_time.tpu("v5e:2x2"), sizes)
    assert compiled.segments == ()  # how deep a step goes is not known
    assert compiled.decode.temporaries <= 0.1 * compiled.cache
    # The decoder's own keys and values are updated in place; those of the source only read.
    assert compiled.decode.aliased >= compiled.cache * 32 / (128 + 32)

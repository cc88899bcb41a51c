"""Bytes that decoding must read, counted by hand."""

import numpy as np
import pytest
from tiny_models import tiny_config, tiny_lm

from skipjax.generation import generate
from skipjax.methods import Calm, Free, Full, SkipDecode, StaticExit
from skipjax.traffic import DecodeTraffic, Traffic

pytestmark = pytest.mark.filterwarnings("ignore:this checkpoint records no")

CONFIG = tiny_config()  # 4 layers, D 32, F 48, V 97, 4 heads and 2 key/value heads of 8
LAYER = 4 * (2 * 32 * 32 + 2 * 16 * 32 + 3 * 48 * 32 + 2 * 32)  # four projections, a gated feed-forward, two norms
HEAD = 4 * (97 * 32 + 32)
ROW = 4 * 32  # of the embedding
COLUMN = 2 * 2 * 8 * 4  # keys and values of one row in one layer


def reads(batch: int = 2, prompt_length: int = 5) -> DecodeTraffic:
    return DecodeTraffic(CONFIG, np.dtype("float32"), batch, prompt_length)


def test_steps_of_a_plan() -> None:
    plan = SkipDecode(4, 2).resolve(4).plan(4, 3)
    assert plan.depths == (4, 4, 3)
    first, last = plan.segments
    steps = [reads().step(segment, columns) for segment, columns in ((first, 6), (first, 7), (last, 8))]
    assert steps == [
        Traffic(depth * LAYER + HEAD + 2 * ROW, depth * 2 * columns * COLUMN)
        for depth, columns in ((4, 6), (4, 7), (3, 8))
    ]
    assert reads().segment(first) == steps[0] + steps[1]
    assert reads().plan(plan) == steps[0] + steps[1] + steps[2]
    assert steps[0].total == steps[0].weights + steps[0].cache


def test_half_precision_is_half() -> None:
    plan = Full().plan(4, 3)
    half = DecodeTraffic(CONFIG, np.dtype("float16"), 2, 5).plan(plan)
    assert (2 * half.weights, 2 * half.cache) == (reads().plan(plan).weights, reads().plan(plan).cache)


def test_what_generations_read() -> None:
    lm, prompts = tiny_lm(execution="scanned"), [[3, 4, 5, 6, 7], [8, 9, 10, 11, 12]]

    def realised(method):
        return reads().realised(method, generate(lm, prompts, method, max_new_tokens=4, stop_at_eos=False))

    ends = HEAD + 2 * ROW
    assert realised(StaticExit(2)) == Traffic(3 * (2 * LAYER + ends), 2 * 2 * (6 + 7 + 8) * COLUMN)
    # All leave after two layers; the buffer is full once, and what waits at the end never runs.
    free = realised(Free(2, -1.0, buffer_size=2))
    assert free == Traffic(3 * (2 * LAYER + ends) + 2 * LAYER + HEAD, (3 * 2 + 2) * 2 * 7 * COLUMN)
    # One layer and its exit, and what the other three keep of the state.
    keeps = 4 * (2 * 16 * 32 + 32)
    assert realised(Calm(-1.0)) == Traffic(3 * (LAYER + ends + 3 * keeps), 2 * (6 + 7 + 8) * COLUMN)


def test_an_encoder_decoder_model_reads_the_source_and_projects_it_once() -> None:
    config = tiny_config("t5")
    layer = 4 * (4 * 32 * 32 + 2 * 32 * 32 + 2 * 48 * 32 + 3 * 32)  # of cross-attention queries and output alone
    table = 4 * 8 * 4  # relative positions: buckets, heads
    step = DecodeTraffic(config, np.dtype("float32"), 1, 9).step(Full().plan(4, 1).segments[0], 1)
    assert step == Traffic(4 * layer + HEAD + ROW + table, 4 * (1 + 9) * 2 * 4 * 8 * 4)


def test_an_unknown_method_is_not_guessed() -> None:
    out = generate(tiny_lm(execution="scanned"), [[3]], Full(), max_new_tokens=2)
    with pytest.raises(TypeError, match="nothing is known of what 'mine' reads"):
        reads().realised("mine", out)

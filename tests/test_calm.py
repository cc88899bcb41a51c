"""CALM and the static exit on tiny random models, against their definitions run row by row without a cache."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from compile_count import counting
from tiny_models import assert_decodes_in_place, confidence_by_hand, random_prompts, read_again, tiny_config, tiny_lm

from skipjax.config import ExitHeads
from skipjax.decoding.calm import falling_threshold
from skipjax.decoding.request import MethodNumbers, Request
from skipjax.generation import _Job, generate, warn_if_untrained
from skipjax.language_model import LanguageModel
from skipjax.methods import Calm, Full, Method, StaticExit
from skipjax.sampling import Sampling

pytestmark = pytest.mark.filterwarnings("ignore:this checkpoint records")

LIMIT = 20
PROMPTS = random_prompts([3, 9, 1])
THRESHOLD = {"llama": 0.03, "t5": 0.5}  # lets tokens go after every layer
MIN_DEPTH = {"llama": 1, "t5": 2}
LLAMA, T5 = (
    pytest.param(family, marks=pytest.mark.xdist_group(f"early-exit-{family}"), id=family) for family in ("llama", "t5")
)


# The tests of a family run in one worker and share its programs.
@pytest.fixture(params=[LLAMA, T5])
def lm(request) -> LanguageModel:
    return tiny_lm(request.param, "scanned")


def method_for(lm: LanguageModel, **changes) -> Calm:
    family = lm.config.family
    return Calm(**{"threshold": THRESHOLD[family], "min_depth": MIN_DEPTH[family], **changes})


def run(lm: LanguageModel, method: Method | None, prompts=PROMPTS, **arguments):
    return generate(lm, prompts, method, **{"max_new_tokens": LIMIT, **arguments})


def with_eos(lm: LanguageModel, eos_id: int) -> LanguageModel:
    """Ends of text are a dynamic argument, so the programs stay."""
    return dataclasses.replace(lm, config=dataclasses.replace(lm.config, eos_ids=(eos_id,)))


Row = tuple[list[int], list[int], list[float]]


def by_hand(lm: LanguageModel, prompt: list[int], method: Calm | StaticExit, limit: int = LIMIT) -> Row:
    """Tokens, depths and confidences of one row. For every token the whole sequence is read again, each position up to
    its own exit, after which its state stays: what the layers above keep of it is projected from that."""
    tokens, depths, confidences = [], [], []
    last = lm.config.num_layers
    if lm.config.encoder_layers is None:
        tokens.append(int(read_again(lm, prompt, []).logits[last, 0].argmax()))
        depths.append(last)
        confidences.append(math.nan)
    while len(tokens) < limit and not (tokens and tokens[-1] in lm.config.eos_ids):
        step = len(tokens)
        reading = read_again(lm, prompt, tokens, [*depths, last])
        sure = math.nan
        if isinstance(method, StaticExit):
            depth = method.depth
        else:
            falling = 1.0 if method.decay is None else 0.9 + 0.1 * math.exp(-method.decay * step / limit)
            for depth in range(method.min_depth, last):
                sure = confidence_by_hand(method.confidence, lm, reading, depth, step)
                if sure > method.threshold * falling:
                    break
            else:
                depth = last
        tokens.append(int(reading.logits[depth, step].argmax()))
        depths.append(depth)
        confidences.append(sure)
    return tokens, depths, confidences


def assert_rows(out, rows: list[Row]) -> None:
    for index, (tokens, depths, confidences) in enumerate(rows):
        length = out.lengths[index]
        assert out.tokens[index, :length].tolist() == tokens
        assert out.depths[index, :length].tolist() == depths
        np.testing.assert_allclose(out.confidences[index, :length], confidences, atol=1e-4)
        assert (out.depths[index, length:] == 0).all()
        assert np.isnan(out.confidences[index, length:]).all()


# CALM


@pytest.mark.parametrize("decay", [None, 4.0])
def test_rows_of_a_batch_are_what_the_definition_gives_each_alone(lm, decay):
    method = method_for(lm, decay=decay)
    out = run(lm, method)
    assert_rows(out, [by_hand(lm, prompt, method) for prompt in PROMPTS])
    assert set(out.depths[out.depths > 0].tolist()) == set(range(method.min_depth, 5))
    first = 0 if lm.config.encoder_layers else 1
    stats = out.stats
    assert stats.decode_steps == max(out.lengths) - first
    assert stats.exits.tolist() == ((out.depths > 0) & (out.depths < 4)).sum(axis=1).tolist()
    assert stats.exit_share == pytest.approx(stats.exits.sum() / out.lengths.sum())
    assert stats.mean_depth == pytest.approx(out.depths.sum() / out.lengths.sum())
    assert (stats.deep_passes, stats.tokens_per_deep_pass, stats.acceptance_rate) == (None, None, None)
    assert (stats.threshold, stats.target_speedup) == (method.threshold, 4 / method.min_depth)


@pytest.mark.parametrize("family", [LLAMA])
def test_one_row_by_the_change_of_its_state(family):
    lm = tiny_lm(family, "unrolled")
    method = Calm(0.8, min_depth=2, confidence="cosine")
    for prompt in PROMPTS:
        out = run(lm, method, [prompt])
        assert_rows(out, [by_hand(lm, prompt, method)])
        assert 0 < out.stats.exit_share < 1


@pytest.mark.parametrize("sampling", [None, Sampling(temperature=0.8, top_p=0.95, seed=3)], ids=["greedy", "sampled"])
def test_a_threshold_of_one_is_full_depth(lm, sampling):
    out, full = (run(lm, method, sampling=sampling) for method in (method_for(lm, threshold=1.0), Full()))
    assert out.tokens.tolist() == full.tokens.tolist()
    assert out.depths.tolist() == full.depths.tolist()


def test_below_zero_every_token_leaves_after_the_fewest_layers(lm):
    method = method_for(lm, threshold=-0.01)
    out = run(lm, method, stop_at_eos=False)
    first = 0 if lm.config.encoder_layers else 1
    assert (out.depths[:, first:] == method.min_depth).all()
    free_of_end = with_eos(lm, -1)
    assert_rows(out, [by_hand(free_of_end, prompt, method) for prompt in PROMPTS])
    assert out.tokens.tolist() == [by_hand(free_of_end, p, StaticExit(method.min_depth))[0] for p in PROMPTS]


def test_ends_of_text_and_limits(lm):
    tokens, lengths = run(lm, method_for(lm), stop_at_eos=False).tokens, set()
    for eos_id in dict.fromkeys(tokens[:, :5].ravel().tolist()):
        model = with_eos(lm, eos_id)
        out = run(model, method_for(lm))
        assert_rows(out, [by_hand(model, prompt, method_for(lm)) for prompt in PROMPTS])
        lengths |= set(out.lengths.tolist())
    assert {1, 2, 3} <= lengths
    for limit in (1, 2, 5):
        method = method_for(lm, decay=4.0)
        out = run(lm, method, max_new_tokens=limit)
        assert_rows(out, [by_hand(lm, prompt, method, limit) for prompt in PROMPTS])


def test_skipped_layers_keep_what_they_make_of_the_state_at_the_exit(lm):
    job = _Job.prepare(lm, PROMPTS, method_for(lm), LIMIT, None, False)
    state = job.decode(*job.prefill(), LIMIT)
    depths, tokens = np.asarray(state.depths), np.asarray(state.tokens)
    assert (np.diff(np.unique(depths)) == 1).all()
    columns, padding = job.prompts.shape[1], job.request.padding
    if lm.config.encoder_layers is not None:
        columns, padding = 1, np.zeros(3, np.int32)
    cache, after = state.cache, columns + LIMIT - 1
    assert cache.lengths == (after,) * 4
    for row, prompt in enumerate(PROMPTS):
        reading = read_again(lm, prompt, tokens[row, :-1].tolist(), depths[row].tolist())
        layers = [cache.read(layer, after) for layer in range(4)]
        for kept, expected in zip(zip(*layers, strict=True), (reading.keys, reading.values), strict=True):
            of_row = np.stack(kept)[:, row].swapaxes(1, 2).reshape(4, after, -1, 8)[:, padding[row] :]
            np.testing.assert_allclose(of_row, expected, atol=1e-5 * max(1, np.abs(expected).max()), rtol=0)


def test_numbers_compile_nothing(lm):
    run(lm, method_for(lm))
    with counting() as compiled:
        for seed, budget in enumerate((LIMIT, 5, 1)):
            method = method_for(lm, threshold=0.3 * seed - 0.1, decay=2.0 * seed)
            sampling = Sampling(0.5 * seed, seed=seed)
            out = run(lm, method, random_prompts([5, 11, 2], seed), max_new_tokens=budget, sampling=sampling)
            assert out.stats.compile_seconds == 0
            assert out.tokens.shape == (3, budget)
    assert compiled == [0]


@pytest.mark.parametrize(("step", "expected"), [(1, 0.897231), (32, 0.843109), (128, 0.811648)])
def test_falling_threshold_has_the_published_values(step, expected):
    def threshold(decay: float) -> float:
        one = np.zeros(1, np.int32)
        request = Request(one, one, None, MethodNumbers.of(0.9, decay), one, one, np.int32(128))
        return float(falling_threshold(request, np.int32(step)))

    assert threshold(4.0) == pytest.approx(expected, abs=5e-7)
    assert threshold(0.0) == np.float32(0.9)


@pytest.mark.parametrize("execution", ["unrolled", "scanned"])
def test_decoding_keeps_no_second_cache(execution):
    assert_decodes_in_place(Calm(0.9), execution)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"threshold": np.inf}, "threshold must be a number that is finite, got inf"),
        ({"threshold": None}, "threshold must be a number that is finite, got None"),
        ({"min_depth": 0}, "min_depth must be an integer of at least 1, got 0"),
        ({"decay": -1.0}, "decay must be a number at least 0, got -1.0"),
        ({"confidence": "entropie"}, r"confidence must be one of .* got 'entropie' \(did you mean 'entropy'\?\)"),
    ],
)
def test_bad_arguments_are_refused_by_name(arguments, said):
    with pytest.raises(ValueError, match=f"^{said}") as caught:
        Calm(**{"threshold": 0.9, **arguments})
    assert "\n" not in str(caught.value)


def test_every_exit_must_exist_and_have_its_classifier():
    config = tiny_config()
    Calm(0.9, min_depth=4).check(config)
    with pytest.raises(ValueError, match=r"^min_depth must be at most the model's 4 layers, got 5$"):
        Calm(0.9, min_depth=5).check(config)
    with pytest.raises(ValueError, match="needs a trained classifier after layer 1, this model has none"):
        Calm(0.9, confidence="classifier").check(config)
    config = tiny_config(exit_heads=ExitHeads((2, 3), classifier=True))
    Calm(0.9, min_depth=2, confidence="classifier").check(config)
    with pytest.raises(ValueError, match="needs a trained classifier after layer 1, this model has them after 2, 3"):
        Calm(0.9, confidence="classifier").check(config)


# The static exit


def test_static_exit_is_what_the_definition_gives(lm):
    out = run(lm, StaticExit(2))
    assert_rows(out, [by_hand(lm, prompt, StaticExit(2)) for prompt in PROMPTS])
    has_encoder = lm.config.encoder_layers is not None
    assert out.depths[0, :3].tolist() == ([2, 2, 2] if has_encoder else [4, 2, 2])
    # Layers above the exit need no cache, and none of the source's.
    assert out.stats.kv_cache_bytes * 2 == out.stats.full_kv_cache_bytes
    assert out.stats.target_speedup == 2
    assert (out.stats.threshold, out.stats.deep_passes) == (None, None)


def test_static_exits_are_refused_and_warned_of_by_name():
    with pytest.raises(ValueError, match=r"^depth must be an integer of at least 1, got 0$"):
        StaticExit(0)
    with pytest.raises(ValueError, match=r"^depth must be at most the model's 4 layers, got 5$"):
        StaticExit(5).check(tiny_config())
    lm = LanguageModel(tiny_config(), {})
    warn_if_untrained(lm, StaticExit(4))  # the last layer is no exit
    with pytest.warns(UserWarning, match=r"records no trained exits, and StaticExit\(depth=2\) lets tokens leave"):
        warn_if_untrained(lm, StaticExit(2))
    with pytest.warns(UserWarning, match=r"records no trained exits, and Calm\(threshold=0.9, min_depth=3"):
        warn_if_untrained(lm, Calm(0.9, min_depth=3))

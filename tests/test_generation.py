"""Generation on tiny random models: equal to decoding without a cache, row by row, and compiled once."""

from __future__ import annotations

import dataclasses
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compile_count import counting
from tiny_models import assert_decodes_in_place, decode_without_cache, random_prompts, tiny_lm

from skipjax.cache import KVCache
from skipjax.generation import _Job, generate, stream
from skipjax.language_model import LanguageModel
from skipjax.methods import Full, SkipDecode
from skipjax.prompts import bucket, pad_left
from skipjax.recorded import Recorded
from skipjax.sampling import Sampling
from skipjax.teacher_forcing import forward

pytestmark = pytest.mark.filterwarnings("ignore:this checkpoint records no schedule")

SKIP = SkipDecode(4, 2, horizon=6)
KINDS = [
    *((family, execution) for family in ("llama", "opt") for execution in ("unrolled", "scanned")),
    ("t5", "scanned"),
]


# One group a kind: its tests run in the same worker and share compiled programs.
@pytest.fixture(
    params=[pytest.param(kind, marks=pytest.mark.xdist_group("-".join(kind))) for kind in KINDS], ids="-".join
)
def lm(request) -> LanguageModel:
    return tiny_lm(*request.param)


@pytest.mark.parametrize("method", [Full(), SKIP], ids=["full", "skipdecode"])
def test_cached_equals_uncached_at_every_prompt_length(lm, method):
    prompts = random_prompts(list(range(1, 18)))
    out = generate(lm, prompts, method, max_new_tokens=9, stop_at_eos=False)
    assert out.tokens.tolist() == decode_without_cache(lm, prompts, method, 9)


@pytest.mark.parametrize("sampling", [None, Sampling(temperature=0.9, top_p=0.95, seed=4)], ids=["greedy", "sampled"])
def test_a_row_is_the_same_alone_and_in_any_batch(lm, sampling):
    prompts = random_prompts([3, 14, 1, 7, 5, 2, 16, 9], seed=1)
    alone = [generate(lm, [prompt], SKIP, max_new_tokens=9, sampling=sampling) for prompt in prompts]
    for group in ([0, 1, 2], [7, 6, 5, 4, 3, 2, 1, 0]):
        out = generate(lm, [prompts[i] for i in group], SKIP, max_new_tokens=9, sampling=sampling)
        for row, index in enumerate(group):
            single = alone[index]
            assert out.tokens[row].tolist() == single.tokens[0].tolist()
            assert out.depths[row].tolist() == single.depths[0].tolist()
            assert out.lengths[row] == single.lengths[0]
            assert out.finish_reasons[row] == single.finish_reasons[0]


def test_equal_prompts_in_a_batch_draw_different_samples_and_the_first_is_the_one_alone():
    lm, (prompt,) = tiny_lm(), random_prompts([5])
    sampling = Sampling(temperature=1.0, seed=1)
    both = generate(lm, [prompt] * 2, SKIP, max_new_tokens=9, sampling=sampling, stop_at_eos=False).tokens
    alone = generate(lm, [prompt], SKIP, max_new_tokens=9, sampling=sampling, stop_at_eos=False).tokens
    assert both[0].tolist() == alone[0].tolist()
    assert both[0].tolist() != both[1].tolist()


def test_depths_are_the_schedule_with_token_zero_at_full_depth():
    out = generate(tiny_lm(), random_prompts([3, 8]), SKIP, max_new_tokens=9, stop_at_eos=False)
    assert out.depths.tolist() == [[4, 4, 4, 3, 3, 3, 2, 2, 2]] * 2  # steps 0..7: 4, 3.67, 3.33, 3, 2.67, 2.33, 2, 2
    assert out.stats.mean_depth == pytest.approx(27 / 9)
    assert out.stats.realised_speedup == pytest.approx(4 / 3)
    assert out.stats.target_speedup == pytest.approx(4 / 3)
    assert np.isnan(out.confidences).all()
    assert (out.stats.exits.tolist(), out.stats.exit_share) == ([0, 0], 0)  # layers are skipped, no token leaves


def job_of(lm, prompts, method, budget) -> _Job:
    return _Job.prepare(lm, prompts, method, budget, None, False)


def test_tokens_under_the_padding_and_rows_that_fill_the_batch_change_nothing(lm):
    job = job_of(lm, random_prompts([3, 9, 1, 6, 2, 16, 5]), SKIP, 9)
    assert job.prompts.shape == (8, 16)
    noise = np.random.default_rng(0).integers(0, 97, job.prompts.shape, dtype=np.int32)
    hidden = np.arange(16) < job.request.padding[:, None]
    other = dataclasses.replace(job, prompts=np.where(hidden, noise, job.prompts).astype(np.int32))
    other.prompts[7] = noise[7]
    assert (job.prompts != other.prompts).any()
    tokens = [np.asarray(one.decode(*one.prefill(), 9).tokens)[:7] for one in (job, other)]
    np.testing.assert_array_equal(*tokens)


def test_unused_cache_slots_change_nothing(lm):
    job = job_of(lm, random_prompts([3, 9]), SKIP, 9)
    clean = np.asarray(job.decode(*job.prefill(), 9).tokens)
    source, state = job.prefill()

    def poison(array):  # every slot that no real prompt token has written
        return jnp.where(array == 0, jnp.asarray(1e4, array.dtype), array)

    cache = dataclasses.replace(
        state.cache, keys=jax.tree.map(poison, state.cache.keys), values=jax.tree.map(poison, state.cache.values)
    )
    poisoned = job.decode(source, dataclasses.replace(state, cache=cache), 9)
    np.testing.assert_array_equal(np.asarray(poisoned.tokens), clean)


def test_each_layer_keeps_the_positions_of_the_plan_and_stats_count_their_bytes(lm):
    method = SkipDecode(3, 2, horizon=4)
    out = generate(lm, random_prompts([3, 9]), method, max_new_tokens=9, stop_at_eos=False)
    job = job_of(lm, random_prompts([3, 9]), method, 9)
    source, state = job.prefill()
    state = job.decode(source, state, 9)
    # Steps 0..7 have depths 3, 3, 3, 2, ... (2.75, 2.5 and 2.25 round to 3, 3, 2): step 2 still runs layer 2.
    assert job.strategy.plan.depths == (3, 3, 3, 2, 2, 2, 2, 2)
    prompt, of_source = (16, 0) if lm.config.encoder_layers is None else (1, 16)
    assert state.cache.lengths == (prompt + 8, 0, prompt + 3, prompt + 8)
    position = 2 * lm.config.num_kv_heads * 8 * 4 * 2  # keys and values, heads, head size, bytes, rows
    assert out.stats.kv_cache_bytes == (3 * prompt + 19 + 3 * of_source) * position
    caches = [state.cache, source.memory] if of_source else [state.cache]
    rounding = sum(-sum(cache.lengths) % 16 for cache in caches if cache.stacked) * position
    assert out.stats.kv_cache_bytes == sum(cache.nbytes for cache in caches) - rounding
    assert out.stats.full_kv_cache_bytes == 4 * (prompt + 8 + of_source) * position
    if not state.cache.stacked:
        assert state.cache.keys[1] is None
        assert [layer is not None and layer.shape[2] for layer in state.cache.keys] == [24, False, 19, 24]


@pytest.mark.parametrize("stacked", [False, True], ids=["apart", "stacked"])
def test_rows_keep_at_slots_of_their_own_and_never_past_a_layer(stacked):
    new = jnp.arange(1.0, 7.0).reshape(2, 3, 1, 1)

    @jax.jit
    def write(slots):
        cache = KVCache.zeros((5, 0, 4), 2, 1, 1, jnp.dtype("float32"), stacked).write(0, slots, new, -new)
        return [cache.read(layer, length) for layer, length in ((0, 5), (2, 4))]

    (keys, values), others = write(np.array([1, 4], np.int32))
    assert np.asarray(keys).reshape(2, 5).tolist() == [[0, 1, 2, 3, 0], [0, 0, 0, 0, 4]]
    np.testing.assert_array_equal(values, -keys)
    assert not any(np.any(other) for other in others)


def with_eos(lm: LanguageModel, *eos_ids: int) -> LanguageModel:
    return LanguageModel(dataclasses.replace(lm.config, eos_ids=eos_ids, pad_id=0), lm.params)


def test_end_of_text_is_kept_once_then_pads_and_the_loop_stops_with_the_last_row():
    lm, prompts = tiny_lm(), random_prompts([3, 8])
    free = generate(lm, prompts, Full(), max_new_tokens=12, stop_at_eos=False)
    ends = [int(row[4]) for row in free.tokens]
    expected = [row.tolist().index(next(t for t in row if t in ends)) + 1 for row in free.tokens]
    out = generate(with_eos(lm, *ends), prompts, Full(), max_new_tokens=12)
    assert out.lengths.tolist() == expected
    assert out.finish_reasons == ["eos", "eos"]
    for row, reference, length in zip(out.tokens, free.tokens, expected, strict=True):
        assert row[:length].tolist() == reference[:length].tolist()
        assert set(row[length:].tolist()) == {0}
    assert (out.depths > 0).sum(axis=1).tolist() == expected
    assert out.stats.decode_steps == max(expected) - 1


def test_without_stopping_the_full_length_is_generated():
    lm, prompts = tiny_lm(), random_prompts([3])
    free = generate(lm, prompts, Full(), max_new_tokens=12, stop_at_eos=False)
    model = with_eos(lm, int(free.tokens[0, 2]))
    out = generate(model, prompts, Full(), max_new_tokens=12, stop_at_eos=False)
    assert out.tokens.tolist() == free.tokens.tolist()
    assert (out.finish_reasons, out.stats.decode_steps) == (["length"], 11)


def test_one_new_token_needs_no_decode_step():
    fresh = LanguageModel(tiny_lm().config, tiny_lm().params)  # without the larger programs that others compiled
    out = generate(fresh, random_prompts([3, 5]), SKIP, max_new_tokens=1)
    assert (out.tokens.shape, out.stats.decode_steps, out.stats.kv_cache_bytes) == ((2, 1), 0, 0)
    reference = generate(tiny_lm(), random_prompts([3, 5]), SKIP, max_new_tokens=9)
    assert out.tokens[:, 0].tolist() == reference.tokens[:, 0].tolist()


@pytest.mark.parametrize("method", [Full(), SKIP], ids=["full", "skipdecode"])
def test_second_calls_compile_nothing(lm, method):
    generate(lm, random_prompts([3, 9]), method, max_new_tokens=9)
    with counting() as compiled:
        for seed, budget in enumerate((9, 5, 1, 7)):
            sampling = Sampling(temperature=0.3 * seed, top_p=1 - 0.2 * seed, top_k=5 * seed, seed=seed)
            out = generate(lm, random_prompts([5, 11], seed), method, max_new_tokens=budget, sampling=sampling)
            assert out.stats.compile_seconds == 0
            assert out.tokens.shape == (2, budget)
    assert compiled == [0]


def test_smaller_budgets_give_the_same_tokens():
    long = generate(tiny_lm(), random_prompts([3, 9]), SKIP, max_new_tokens=9, stop_at_eos=False)
    short = generate(tiny_lm(), random_prompts([3, 9]), SKIP, max_new_tokens=5, stop_at_eos=False)
    assert short.tokens.tolist() == long.tokens[:, :5].tolist()
    assert short.depths.tolist() == long.depths[:, :5].tolist()


def test_twenty_prompt_lengths_compile_once_per_bucket():
    lm = LanguageModel(tiny_lm().config, tiny_lm().params)
    lengths = list(range(5, 25))
    assert {bucket(length, 16) for length in lengths} == {16, 24}
    with counting() as compiled:
        for length in lengths:
            generate(lm, random_prompts([length]), SKIP, max_new_tokens=4)
    assert len(lm.programs) == 2
    assert compiled == [2 * 2]  # a prompt pass and a decode program each, and nothing besides


def test_interleaved_and_repeated_generations_agree_with_each_alone():
    lm = tiny_lm()
    jobs = [job_of(lm, random_prompts([n], n), SKIP, 9) for n in (4, 6)]
    alone = [np.asarray(job.decode(*job.prefill(), 9).tokens) for job in jobs]
    started = [job.prefill() for job in jobs]
    sources, states = [source for source, _ in started], [state for _, state in started]
    for stop in range(2, 10):
        states = [job.decode(*each, stop) for job, *each in zip(jobs, sources, states, strict=True)]
    for state, expected, job in zip(states, alone, jobs, strict=True):
        np.testing.assert_array_equal(np.asarray(state.tokens), expected)
        np.testing.assert_array_equal(np.asarray(job.decode(*job.prefill(), 9).tokens), expected)


@pytest.mark.parametrize("execution", ["unrolled", "scanned"])
def test_decoding_keeps_no_second_copy_of_cache_or_weights(execution):
    assert_decodes_in_place(Full(), execution)


def test_bf16_generates_the_same_bytes_per_position_halved():
    lm = tiny_lm()
    half = LanguageModel(lm.config, jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), lm.params))
    out = generate(half, random_prompts([3, 9]), SKIP, max_new_tokens=9, stop_at_eos=False)
    full = generate(lm, random_prompts([3, 9]), SKIP, max_new_tokens=9, stop_at_eos=False)
    assert out.stats.kv_cache_bytes * 2 == full.stats.kv_cache_bytes
    assert (out.tokens[:, 0] == full.tokens[:, 0]).all()


def test_unrecorded_schedules_warn_once_per_model_and_schedule():
    lm = LanguageModel(tiny_lm().config, tiny_lm().params)
    lm.programs.update(tiny_lm().programs)
    prompts = random_prompts([3, 9])
    with pytest.warns(UserWarning, match="records no schedule.*skipjax train skipdecode"):
        generate(lm, prompts, SKIP, max_new_tokens=9)
    lm.recorded = Recorded(SkipDecode(3, 2, horizon=6))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        generate(lm, prompts, SKIP, max_new_tokens=9)
        generate(lm, prompts, Full(), max_new_tokens=9)
    with pytest.warns(UserWarning, match=r"was trained for SkipDecode\(max_depth=3, min_depth=2.*horizon=6"):
        generate(lm, prompts, SkipDecode(4, 3, horizon=6), max_new_tokens=9)
    lm.recorded, lm.warned = Recorded(SKIP), set()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        generate(lm, prompts, SKIP, max_new_tokens=9)


def test_buckets_waste_at_most_a_third():
    sizes = {bucket(size, 16) for size in range(1, 400)}
    assert sorted(sizes) == [16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512]
    assert [bucket(n, 1) for n in (1, 2, 3, 4, 5, 7, 9, 13)] == [1, 2, 3, 4, 6, 8, 12, 16]
    padded, padding = pad_left([[5, 6], [7]], 1)
    assert padded.shape == (2, 16)
    assert padded[:, -2:].tolist() == [[5, 6], [1, 7]]
    assert padding.tolist() == [14, 15]


BAD = [
    ({"prompts": []}, "prompts must hold at least one prompt"),
    ({"prompts": "text"}, "prompts must be a list"),
    ({"prompts": 3}, "prompts must be a list"),
    ({"prompts": ["text"]}, "prompt 0 is a text, but this checkpoint has no tokenizer"),
    ({"prompts": [[3], []]}, "prompt 1 has no tokens"),
    ({"prompts": [[3, 97]]}, "prompt 0 has token id 97, outside the vocabulary of 97"),
    ({"prompts": [[-1]]}, "prompt 0 has token id -1, outside the vocabulary"),
    ({"prompts": [[1.5]]}, "prompt 0 must be a text or a list of token ids"),
    ({"prompts": [[[1], [2, 3]]]}, "prompt 0 must be a text or a list of token ids"),
    ({"prompts": [[3] * 60]}, "prompt 0 has 60 tokens; with max_new_tokens=9 that is beyond the model's 64 positions"),
    ({"max_new_tokens": 0}, "max_new_tokens must be an integer of at least 1, got 0"),
    ({"max_new_tokens": "9"}, "max_new_tokens must be an integer of at least 1, got '9'"),
    ({"method": "skipdecode"}, "method must be a decoding method"),
    ({"method": SkipDecode}, "method must be a decoding method"),
    ({"method": 0}, "method must be a decoding method"),
    ({"prompts": b"abc"}, "prompts must be a list"),
    ({"method": SkipDecode(5, 2)}, "max_depth must be at most the model's 4 layers, got 5"),
    ({"sampling": 0.7}, "sampling must be a Sampling"),
]


@pytest.mark.parametrize(("change", "said"), BAD)
def test_bad_requests_are_refused_before_anything_is_compiled(change, said):
    arguments = {"prompts": [[3]], "method": Full(), "max_new_tokens": 9, "sampling": None} | change
    lm = tiny_lm()
    with counting() as compiled, pytest.raises(ValueError, match=said):
        generate(
            lm,
            arguments["prompts"],
            arguments["method"],
            max_new_tokens=arguments["max_new_tokens"],
            sampling=arguments["sampling"],
        )
    assert compiled == [0]


@pytest.mark.parametrize("call", [generate, stream, forward])
def test_a_name_is_not_a_model(call):
    with pytest.raises(ValueError, match=r"lm must be a model from skipjax.load\(...\), got 'facebook/opt-125m'"):
        call("facebook/opt-125m", [[3]])


def test_streaming_without_a_tokenizer_is_refused():
    with pytest.raises(ValueError, match="stream needs a tokenizer"):
        stream(tiny_lm(), [3, 4])

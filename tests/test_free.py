"""FREE on tiny random models: what the method is by definition, row by row and without a cache, and at what cost."""

from __future__ import annotations

import dataclasses
import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
from compile_count import counting
from tiny_models import assert_decodes_in_place, confidence_by_hand, random_prompts, read_again, tiny_config, tiny_lm

from skipjax import decoder
from skipjax.adaptive import AdaptiveThreshold
from skipjax.config import ExitHeads
from skipjax.generation import _Job, generate, stream, warn_if_untrained
from skipjax.language_model import LanguageModel
from skipjax.methods import Calm, Free, Full, Method, StaticExit
from skipjax.recorded import Recorded
from skipjax.sampling import Sampling
from skipjax.tokenizer import Tokenizer

pytestmark = pytest.mark.filterwarnings("ignore:this checkpoint records")

LIMIT = 20
PROMPTS = random_prompts([3, 9, 1])
THRESHOLD = {"llama": 0.02, "t5": 0.4}  # lets about half of the tokens go
ROLLBACK = {"llama": 4.0, "t5": 3.0}  # lets some of these stand
LLAMA, T5 = (
    pytest.param(family, marks=pytest.mark.xdist_group(f"early-exit-{family}"), id=family) for family in ("llama", "t5")
)
SOMETIMES = [None, Sampling(temperature=0.8, top_p=0.95, seed=3)]


# The tests of a family run in one worker and share its programs.
@pytest.fixture(params=[LLAMA, T5])
def lm(request) -> LanguageModel:
    return tiny_lm(request.param, "scanned")


def method_for(lm: LanguageModel, **changes) -> Free:
    return Free(**{"shallow_layers": 2, "threshold": THRESHOLD[lm.config.family], "buffer_size": 3, **changes})


def run(lm: LanguageModel, method: Method | None, prompts=PROMPTS, **arguments):
    return generate(lm, prompts, method, **{"max_new_tokens": LIMIT, **arguments})


def with_eos(lm: LanguageModel, eos_id: int) -> LanguageModel:
    """Ends of text are a dynamic argument, so the programs stay."""
    return dataclasses.replace(lm, config=dataclasses.replace(lm.config, eos_ids=(eos_id,)))


@dataclasses.dataclass
class ByHand:
    """One row, and what it cost.

    Attributes:
      tokens, depths, confidences: as in a `Generation`, without pads.
      agreements: by position, whether the deep layers would have given the exit's token; only where they were asked.
      drafted: exits, those taken back included.
      steps: shallow steps; passes, computed: deep passes and the positions in them.
    """

    tokens: list[int]
    depths: list[int]
    confidences: list[float]
    agreements: dict[int, bool]
    steps: int = 0
    drafted: int = 0
    passes: int = 0
    computed: int = 0


def free_by_hand(lm: LanguageModel, prompt: list[int], method: Free, limit: int = LIMIT) -> ByHand:
    """The algorithm for one row. The whole sequence is read again for every token: nothing is kept but the list of
    positions whose deep layers have not been asked yet."""
    shallow, deep = method.shallow_layers, lm.config.num_layers
    row = ByHand([], [], [], {})

    def emit(reading, position, depth):
        row.tokens.append(int(reading.logits[depth, position].argmax()))
        row.depths.append(depth)
        row.confidences.append(confidence_by_hand(method.confidence, lm, reading, shallow, position))

    def ended():
        return len(row.tokens) == limit or (len(row.tokens) > 0 and row.tokens[-1] in lm.config.eos_ids)

    if lm.config.encoder_layers is None:
        emit(read_again(lm, prompt, []), 0, deep)
    waiting, judged = [], len(row.tokens)
    while not ended():
        position = len(row.tokens)
        reading = read_again(lm, prompt, row.tokens)
        emit(reading, position, shallow)
        waiting.append(position)
        row.steps += 1
        exits = bool(row.confidences[position] > method.threshold)
        row.drafted += exits
        last = ended()
        if exits and last and not method.verify:
            break
        if exits and not last and len(waiting) < method.buffer_size:
            continue
        row.passes += 1
        row.computed += len(waiting)
        choices = reading.logits[deep].argmax(axis=-1)
        if len(waiting) > 1:
            row.agreements |= {asked: bool(choices[asked] == row.tokens[asked]) for asked in waiting}
        waiting = []
        wrong = [] if exits else [position]
        if method.verify or (method.rollback is not None and not exits):
            for index in range(judged, position + 1):
                logits = reading.logits[deep, index]
                nll = np.logaddexp.reduce(logits) - logits[row.tokens[index]]
                if (choices[index] != row.tokens[index]) if method.verify else nll > method.rollback:
                    wrong.append(index)
            judged = position + 1
        if wrong:
            first = min(wrong)
            del row.tokens[first:], row.depths[first + 1 :], row.confidences[first + 1 :]
            row.tokens.append(int(choices[first]))
            row.depths[first] = deep
            row.agreements = {index: agrees for index, agrees in row.agreements.items() if index <= first}
            judged = min(judged, first + 1)
    return row


def assert_rows(out, rows: list[ByHand]) -> None:
    for index, row in enumerate(rows):
        length = out.lengths[index]
        assert out.tokens[index, :length].tolist() == row.tokens
        assert out.depths[index, :length].tolist() == row.depths
        np.testing.assert_allclose(out.confidences[index, :length], row.confidences, atol=1e-4)
        assert (out.depths[index, length:] == 0).all()
        assert np.isnan(out.confidences[index, length:]).all()


def assert_equal(one, other, *names: str) -> None:
    for name in names or ("tokens", "lengths", "depths", "confidences"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)


# What every token is


@pytest.mark.parametrize(
    "kind", ["plain", "rollback of none", "rollback of some", "rollback of all", "exact", "exact, all drafted"]
)
def test_rows_of_a_batch_are_what_the_definition_gives_each_alone(lm, kind):
    changes = {
        "plain": {},
        "rollback of none": {"rollback": np.inf},
        "rollback of some": {"rollback": ROLLBACK[lm.config.family]},
        "rollback of all": {"rollback": 0.0},
        "exact": {"verify": "exact"},
        "exact, all drafted": {"verify": "exact", "threshold": -1.0},
    }[kind]
    method = method_for(lm, **changes)
    out = run(lm, method)
    rows = [free_by_hand(lm, prompt, method) for prompt in PROMPTS]
    assert_rows(out, rows)
    assert out.stats.exits.tolist() == [row.depths.count(2) for row in rows]
    assert 0 < out.stats.exit_share < 1
    if kind == "rollback of some":
        assert 0 < out.stats.acceptance_rate < 1


@pytest.mark.parametrize("sampling", SOMETIMES, ids=["greedy", "sampled"])
def test_a_threshold_of_one_is_full_depth(lm, sampling):
    out = run(lm, method_for(lm, threshold=1.0), sampling=sampling)
    assert_equal(out, run(lm, Full(), sampling=sampling), "tokens", "lengths", "depths")
    assert (out.stats.exit_share, out.stats.mean_depth, out.stats.realised_speedup) == (0, 4, 1)
    assert out.stats.threshold == 1
    assert out.stats.target_speedup == 2


@pytest.mark.parametrize("sampling", SOMETIMES, ids=["greedy", "sampled"])
def test_a_threshold_below_zero_is_a_static_exit(lm, sampling):
    out = run(lm, method_for(lm, threshold=-0.01), sampling=sampling)
    assert_equal(out, run(lm, StaticExit(2), sampling=sampling), "tokens", "lengths", "depths")
    first = 2 if lm.config.encoder_layers else 4  # a decoder-only model's prompt runs all layers
    assert out.depths[:, :3].tolist() == [[first, 2, 2]] * 3


def test_no_rollback_up_to_infinity_is_none_at_all(lm):
    assert_equal(run(lm, method_for(lm, rollback=np.inf)), run(lm, method_for(lm)))


def test_rollback_at_zero_is_full_depth_up_to_the_last_deep_token(lm):
    out = run(lm, method_for(lm, rollback=0.0), stop_at_eos=False)
    full = run(lm, Full(), stop_at_eos=False)
    for row in range(len(PROMPTS)):
        last = np.flatnonzero(out.depths[row] == 4)[-1] + 1
        assert out.tokens[row, :last].tolist() == full.tokens[row, :last].tolist()


@pytest.mark.parametrize("sampling", SOMETIMES, ids=["greedy", "sampled"])
def test_verified_text_is_that_of_full_depth_at_any_threshold(lm, sampling):
    full, shares = run(lm, Full(), sampling=sampling), []
    for threshold in (-1.0, THRESHOLD[lm.config.family], 1.0):
        out = run(lm, method_for(lm, threshold=threshold, verify="exact"), sampling=sampling)
        assert_equal(out, full, "tokens", "lengths")
        shares.append(out.stats.exit_share)
    assert shares[0] > shares[1] > shares[2] == 0
    assert out.stats.acceptance_rate is None  # nothing was drafted


def test_verification_meets_ends_of_text_and_limits_in_the_middle_of_a_buffer(lm):
    exact = method_for(lm, threshold=-1.0, verify="exact")
    drafts, full = (run(lm, method, stop_at_eos=False).tokens for method in (StaticExit(2), Full()))
    ends = sorted({*drafts[:, :9].ravel().tolist(), *full[:, :9].ravel().tolist()})
    assert int(full[0, 0]) in ends  # a text may end at once
    seen = set()
    for eos_id in ends:
        model = with_eos(lm, eos_id)
        for limit in (LIMIT, 7):
            expected = run(model, Full(), max_new_tokens=limit)
            out = run(model, exact, max_new_tokens=limit)
            assert_equal(out, expected, "tokens", "lengths", "finish_reasons")
            assert (out.depths > 0).sum(axis=1).tolist() == expected.lengths.tolist()
            seen |= set(expected.lengths.tolist())
    assert {1, 2, 3, LIMIT} <= seen
    for limit in range(1, 10):
        out = run(lm, exact, max_new_tokens=limit, stop_at_eos=False)
        assert out.tokens.tolist() == full[:, :limit].tolist()


def test_exits_end_texts_and_limits_as_the_definition_says(lm):
    tokens, lengths = run(lm, method_for(lm), stop_at_eos=False).tokens, set()
    for eos_id in dict.fromkeys(tokens[:, :6].ravel().tolist()):
        model = with_eos(lm, eos_id)
        for changes in ({}, {"rollback": ROLLBACK[lm.config.family]}):
            out = run(model, method_for(lm, **changes))
            assert_rows(out, [free_by_hand(model, prompt, method_for(lm, **changes)) for prompt in PROMPTS])
            lengths |= set(out.lengths.tolist())
    assert {1, 2, 3} <= lengths
    for limit in range(1, 7):
        out = run(lm, method_for(lm), max_new_tokens=limit)
        assert_rows(out, [free_by_hand(lm, prompt, method_for(lm), limit) for prompt in PROMPTS])


@functools.partial(jax.jit, static_argnames="config")
def exits_of(config, params, tokens, padding, source):
    """Logits [B, C, V] after 2 and after all layers, of a left-padded batch run at once."""
    memory = None if source is None else decoder.encode(config, params, *source)
    states = decoder.hidden_states(config, params, tokens, padding, memory=memory)
    return [decoder.exit_logits(config, params, states[layer - 1], layer) for layer in (2, config.num_layers)]


def test_every_token_is_that_of_a_teacher_forced_run_at_its_own_depth(lm):
    out = run(lm, method_for(lm), stop_at_eos=False)
    job = job_of(lm, method_for(lm))
    prompts, padding, source = job.prompts, job.request.padding, None
    if lm.config.encoder_layers is not None:
        source, padding = (prompts, padding), np.zeros_like(padding)
        prompts = np.full((3, 1), lm.config.start_id, np.int32)
    tokens = np.concatenate([prompts, out.tokens[:, :-1]], axis=1)
    exit_logits, full_logits = exits_of(lm.config, lm.params, tokens, padding, source)
    for depth, logits in ((2, exit_logits), (4, full_logits)):
        own = out.depths == depth
        assert own.any()
        chosen = np.asarray(logits)[:, -LIMIT:].argmax(axis=-1)
        np.testing.assert_array_equal(out.tokens[own], chosen[own])


@pytest.mark.parametrize("size", [1, 8])
@pytest.mark.parametrize("family", [LLAMA])
def test_buffer_sizes_change_no_token(family, size):
    lm = tiny_lm(family, "scanned")
    for threshold in (THRESHOLD[family], -1.0):
        out = run(lm, method_for(lm, threshold=threshold, buffer_size=size))
        assert_equal(out, run(lm, method_for(lm, threshold=threshold)), "tokens", "lengths", "depths")
    if size == 1:
        exact = method_for(lm, threshold=-1.0, buffer_size=size, verify="exact")
        assert_rows(run(lm, exact), [free_by_hand(lm, prompt, exact) for prompt in PROMPTS])


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        pytest.param("llama", {"verify": "exact", "confidence": "cosine", "threshold": 0.3}, marks=LLAMA.marks),
        pytest.param("t5", {"rollback": 3.0}, marks=T5.marks),
    ],
    ids=["llama", "t5"],
)
def test_unrolled_with_the_exit_after_the_first_layer(family, changes):
    lm = tiny_lm(family, "unrolled")
    method = method_for(lm, shallow_layers=1, buffer_size=2, **changes)
    out = run(lm, method)
    assert_rows(out, [free_by_hand(lm, prompt, method) for prompt in PROMPTS])
    assert out.stats.target_speedup == 4
    assert 0 < out.stats.acceptance_rate < 1


@pytest.mark.parametrize("family", [T5])
def test_room_for_one_token(family):
    shared = tiny_lm(family, "scanned")
    lm = LanguageModel(shared.config, shared.params)  # without the larger programs that others compiled
    for threshold in (-1.0, 1.0):
        out = run(lm, method_for(lm, threshold=threshold, buffer_size=2, verify="exact"), max_new_tokens=1)
        expected = run(shared, Full(), max_new_tokens=1)
        assert_equal(out, expected, "tokens", "lengths", "finish_reasons")
    assert out.tokens.shape == (3, 1)
    assert out.stats.deep_passes == 1
    assert len(lm.programs) == 1


# Caches and padding


def job_of(lm: LanguageModel, method: Free) -> _Job:
    return _Job.prepare(lm, PROMPTS, method, LIMIT, None, False)


def slots_of(cache, layer: int) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values [B, S, K, H] of one layer."""
    kept = cache.read(layer, cache.lengths[layer])
    keys, values = (np.array(array).swapaxes(1, 2).reshape(len(PROMPTS), cache.lengths[layer], -1, 8) for array in kept)
    return keys, values


def decoder_prompt(job: _Job) -> tuple[int, np.ndarray]:
    """Columns of the decoder's prompt, and how many of each row's are padding."""
    if job.lm.config.encoder_layers is not None:
        return 1, np.zeros(len(PROMPTS), np.int32)
    return job.prompts.shape[1], job.request.padding


CHANGES = [{}, {"rollback": 3.0}, {"verify": "exact"}]
KINDS = ["plain", "rollback", "exact"]


@pytest.mark.parametrize("changes", CHANGES, ids=KINDS)
def test_keys_and_values_are_those_of_a_teacher_forced_run(lm, changes):
    job = job_of(lm, method_for(lm, **changes))
    columns, padding = decoder_prompt(job)
    for stop in (6, 13, LIMIT):
        state = job.decode(*job.prefill(), stop)
        count, deep = (np.broadcast_to(np.asarray(each), 3) for each in (state.count, state.deep))
        assert (count >= stop).all()
        if not changes:
            assert (count - deep < 3).all()
        for row, prompt in enumerate(PROMPTS):
            tokens = np.asarray(state.tokens)[row, : count[row] - 1].tolist()
            reading = read_again(lm, prompt, tokens)
            for layer in range(4):
                after = columns - 1 + (count if layer < 2 else deep)[row]
                for kept, expected in zip(slots_of(state.cache, layer), (reading.keys, reading.values), strict=True):
                    expected = expected[layer, : after - padding[row]]
                    atol = 1e-5 * max(1, np.abs(expected).max())
                    np.testing.assert_allclose(kept[row, padding[row] : after], expected, atol=atol, rtol=0)


def poisoned(cache, used: list[np.ndarray]):
    """1e4 in every slot that is not used; `used` counts those of each layer's rows."""
    for layer, count in enumerate(used):
        keys, values = slots_of(cache, layer)
        unused = np.arange(cache.lengths[layer])[None] >= count[:, None]
        keys[unused] = values[unused] = 1e4
        cache = cache.write(layer, 0, jnp.asarray(keys), jnp.asarray(values))
    return cache


@pytest.mark.parametrize("changes", CHANGES, ids=KINDS)
def test_unused_slots_of_cache_and_buffer_change_nothing(lm, changes):
    job = job_of(lm, method_for(lm, **changes))
    columns, _ = decoder_prompt(job)
    expected = job.decode(*job.prefill(), LIMIT)
    for stop in (1, 6, 11):
        source, state = job.prefill()
        state = job.decode(source, state, stop)
        count, deep = (np.broadcast_to(np.asarray(each), 3) for each in (state.count, state.deep))
        used = [columns - 1 + count] * 2 + [columns - 1 + deep] * 2
        buffer = np.array(state.buffer)
        buffer[np.arange(3)[None] >= (count - deep)[:, None]] = 1e4
        state = dataclasses.replace(state, cache=poisoned(state.cache, used), buffer=jnp.asarray(buffer))
        state = job.decode(source, state, LIMIT)
        assert_equal(state, expected, "tokens", "depths")


def test_tokens_under_the_padding_change_nothing(lm):
    job = job_of(lm, method_for(lm, verify="exact"))
    noise = np.random.default_rng(0).integers(0, 97, job.prompts.shape, dtype=np.int32)
    hidden = np.arange(job.prompts.shape[1]) < job.request.padding[:, None]
    other = dataclasses.replace(job, prompts=np.where(hidden, noise, job.prompts).astype(np.int32))
    assert (job.prompts != other.prompts).any()
    one, two = (each.decode(*each.prefill(), LIMIT) for each in (job, other))
    assert_equal(one, two, "tokens", "depths", "confidences")


# What it costs


def in_step(depths: np.ndarray, lengths: np.ndarray, size: int, first: int) -> tuple[int, int, int]:
    """Of rows that go in step: deep passes, and summed over rows the passes each took part in and positions in them."""
    passes = taken = computed = waiting = 0
    for position in range(first, max(lengths)):
        waiting += 1
        running = [
            (row, depths[row, position]) for row in range(len(lengths)) if position < lengths[row]
        ]  # those that end here by an exit need no pass any more
        left = [row for row, depth in running if position + 1 < lengths[row] or depth == 4]
        if any(depth == 4 for _, depth in running) or (waiting == size and left):
            passes, taken, computed, waiting = passes + 1, taken + len(left), computed + waiting * len(left), 0
    return passes, taken, computed


def test_account_of_a_batch(lm):
    first = 0 if lm.config.encoder_layers else 1
    tokens = run(lm, method_for(lm), stop_at_eos=False).tokens
    for eos_id in (96, int(tokens[0, 8]), int(tokens[1, 4])):
        out = run(with_eos(lm, eos_id), method_for(lm))
        passes, taken, computed = in_step(out.depths, out.lengths, 3, first)
        stats = out.stats
        assert stats.deep_passes == passes
        assert stats.tokens_per_deep_pass == pytest.approx(computed / taken)
        assert stats.decode_steps == max(out.lengths) - first
        assert stats.exits.tolist() == (out.depths == 2).sum(axis=1).tolist()
        assert stats.exit_share == pytest.approx((out.depths == 2).sum() / out.lengths.sum())
        assert stats.mean_depth == pytest.approx(out.depths.sum() / out.lengths.sum())
        assert stats.realised_speedup == pytest.approx(4 * out.lengths.sum() / out.depths.sum())
        assert (stats.acceptance_rate, stats.threshold) == (None, THRESHOLD[lm.config.family])
    method = method_for(lm, rollback=ROLLBACK[lm.config.family])
    rows = [free_by_hand(lm, prompt, method) for prompt in PROMPTS]
    accepted, drafted = sum(row.depths.count(2) for row in rows), sum(row.drafted for row in rows)
    assert run(lm, method).stats.acceptance_rate == pytest.approx(accepted / drafted)


@pytest.mark.parametrize("family", [LLAMA])
@pytest.mark.parametrize(
    ("execution", "changes"), [("unrolled", {}), ("scanned", {"verify": "exact"})], ids=["plain", "exact"]
)
def test_account_of_one_row(family, execution, changes):
    lm = tiny_lm(family, execution)
    method = method_for(lm, **changes)
    for prompt in PROMPTS:
        row = free_by_hand(lm, prompt, method)
        out = run(lm, method, [prompt])
        assert_rows(out, [row])
        stats = out.stats
        assert (stats.decode_steps, stats.deep_passes) == (row.steps, row.passes)
        assert stats.tokens_per_deep_pass == pytest.approx(row.computed / row.passes)
        assert stats.exits.tolist() == [row.depths.count(2)]
        if changes:
            assert stats.acceptance_rate == pytest.approx(row.depths.count(2) / row.drafted)


def test_cache_has_room_for_a_window_beyond_the_last_position(lm):
    out, full = run(lm, method_for(lm)), run(lm, Full())
    config = lm.config
    position = 2 * config.num_kv_heads * config.head_size * 4 * len(PROMPTS)
    extra = 2 * (3 - 1)  # layers and slots
    assert out.stats.kv_cache_bytes == full.stats.kv_cache_bytes + extra * position
    assert out.stats.full_kv_cache_bytes == full.stats.full_kv_cache_bytes


@pytest.mark.parametrize("execution", ["unrolled", "scanned"])
@pytest.mark.parametrize("changes", [{}, {"verify": "exact"}], ids=["plain", "exact"])
def test_decoding_keeps_no_second_cache(execution, changes):
    assert_decodes_in_place(Free(2, buffer_size=2, **changes), execution)


# What may change without compiling, and what comes out while decoding


def test_numbers_compile_nothing(lm):
    for changes in CHANGES:
        run(lm, method_for(lm, **changes))
    with counting() as compiled:
        for seed, budget in enumerate((LIMIT, 5, 1)):
            arguments = {"sampling": Sampling(0.5 * seed, seed=seed), "max_new_tokens": budget}
            for changes in CHANGES:
                if "rollback" in changes:
                    changes = {"rollback": 1.5 * seed}
                method = method_for(lm, threshold=0.3 * seed - 0.1, **changes)
                out = run(lm, method, random_prompts([5, 11, 2], seed), **arguments)
                assert out.stats.compile_seconds == 0
                assert out.tokens.shape == (3, budget)
    assert compiled == [0]


@pytest.mark.parametrize("changes", CHANGES, ids=KINDS)
def test_what_is_settled_stays_and_advances(lm, changes):
    job = job_of(lm, method_for(lm, **changes))
    final = np.array(job.decode(*job.prefill(), LIMIT).tokens)
    source, state = job.prefill()
    for stop in range(1, LIMIT + 1):
        state = job.decode(source, state, stop)
        settled = job.strategy.settled(state)
        assert (settled >= stop).all()
        for row, count in enumerate(settled):
            assert np.asarray(state.tokens)[row, :count].tolist() == final[row, :count].tolist()
    np.testing.assert_array_equal(np.asarray(state.tokens), final)


def letters() -> Tokenizer:
    """One sign per token of the tiny models."""
    vocabulary = {"<s>": 0, "<pad>": 1, "</s>": 2} | {chr(33 + index): 3 + index for index in range(94)}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [], unk_token="<pad>"))
    backend.decoder = tokenizers.decoders.Fuse()
    backend.add_special_tokens(["<s>", "<pad>", "</s>"])
    return Tokenizer(backend, {"eos_token": "</s>", "pad_token": "<pad>"})


@pytest.mark.parametrize("family", [LLAMA])
@pytest.mark.parametrize(
    ("execution", "changes"),
    [("unrolled", {}), ("scanned", {"verify": "exact"}), ("scanned", {"verify": "exact", "threshold": -1.0})],
    ids=["plain", "exact", "exact, all drafted"],
)
def test_streamed_pieces_join_to_the_text(family, execution, changes):
    lm = tiny_lm(family, execution)
    method = method_for(lm, **changes)
    for eos_id in (2, run(lm, method, PROMPTS[1:2], stop_at_eos=False).tokens[0, 6]):
        model = dataclasses.replace(with_eos(lm, int(eos_id)), tokenizer=letters())
        for prompt in PROMPTS[:2]:
            pieces = list(stream(model, prompt, method, max_new_tokens=LIMIT))
            out = run(model, method, [prompt])
            assert "".join(pieces) == out.texts[0]
            assert len(pieces) > 1
    if "threshold" in changes:
        assert out.stats.acceptance_rate < 1  # so a draft that was shown too early would have been seen


# The threshold that learns


@pytest.mark.parametrize(
    ("family", "confidence"),
    [
        pytest.param(*LLAMA.values, "cosine", marks=LLAMA.marks, id="llama"),
        pytest.param(*T5.values, "margin", marks=T5.marks, id="t5"),
    ],
)
def test_the_estimator_gets_the_pairs_of_every_pass_over_two_or_more(family, confidence):
    lm = tiny_lm(family, "scanned")
    method = method_for(lm, confidence=confidence, adaptive=True)
    estimator = AdaptiveThreshold().after((0.2, 0.5, 0.6, 0.9), (0, 0, 1, 1))
    for prompt in PROMPTS:
        before, threshold = len(estimator.confidences), estimator.threshold
        row = free_by_hand(lm, prompt, dataclasses.replace(method, threshold=threshold))
        out = run(lm, method, [prompt], adaptive_threshold=estimator)
        assert_rows(out, [row])
        assert out.stats.threshold == threshold
        estimator = out.adaptive_threshold
        pairs = sorted(row.agreements.items())
        assert len(pairs) > 1
        expected = [row.confidences[position] for position, _ in pairs]
        np.testing.assert_allclose(estimator.confidences[before:], expected, atol=1e-4)
        assert estimator.agreements[before:].tolist() == [agrees for _, agrees in pairs]
    assert estimator.fits == 4
    fresh = run(lm, method, PROMPTS[:1])
    assert (fresh.stats.threshold, fresh.adaptive_threshold.max_fits) == (0.9, 300)


def test_an_estimator_goes_with_an_adaptive_method_only():
    lm = LanguageModel(tiny_config(), {})
    for call in (generate, stream):
        for method in (None, Full(), Free(2), Calm(0.5)):
            with pytest.raises(ValueError, match=r"adaptive_threshold goes with a Free\(\.\.\., adaptive=True\), got"):
                call(
                    dataclasses.replace(lm, tokenizer=letters()), [[3]], method, adaptive_threshold=AdaptiveThreshold()
                )
    with pytest.raises(ValueError, match=r"adaptive_threshold must be an AdaptiveThreshold, got 0\.7"):
        generate(lm, [[3]], Free(2, adaptive=True), adaptive_threshold=0.7)


# Exits of their own


@pytest.mark.parametrize("family", [T5])
def test_an_exit_with_a_norm_an_adapter_and_a_classifier_of_its_own(family):
    shared = tiny_lm(family, "scanned")
    config = dataclasses.replace(shared.config, exit_heads=ExitHeads((2,), True, 3, True))
    exits = decoder.init_exits(config, jax.random.key(0), shared.params["ends"], jnp.float32)
    generator = np.random.default_rng(1)
    exits = jax.tree.map(lambda leaf: leaf + generator.normal(size=leaf.shape).astype(np.float32) * 0.3, exits)
    lm = LanguageModel(config, {**shared.params, "exits": exits})
    method = Free(2, 0.5, confidence="classifier", buffer_size=2)
    prompts = random_prompts([4, 2, 7, 1, 12], 2)  # and a row that fills up the batch
    out = run(lm, method, prompts)
    assert_rows(out, [free_by_hand(lm, prompt, method) for prompt in prompts])
    assert 0 < out.stats.exit_share < 1
    assert lm.trained_exits == (2,)


# What is refused, and what is warned of


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"shallow_layers": 0}, "shallow_layers must be an integer of at least 1, got 0"),
        ({"shallow_layers": 1.5}, "shallow_layers must be an integer of at least 1, got 1.5"),
        ({"threshold": "high"}, "threshold must be a number that is finite, got 'high'"),
        ({"threshold": np.nan}, "threshold must be a number that is finite, got nan"),
        ({"confidence": "margins"}, r"confidence must be one of .* got 'margins' \(did you mean 'margin'\?\)"),
        ({"buffer_size": 0}, "buffer_size must be an integer from 1 to 256, got 0"),
        ({"buffer_size": 257}, "buffer_size must be an integer from 1 to 256, got 257"),
        ({"rollback": -1}, "rollback must be a number at least 0, got -1"),
        ({"rollback": np.nan}, "rollback must be a number at least 0, got nan"),
        ({"verify": "yes"}, "verify must be None or 'exact', got 'yes'"),
        ({"rollback": 1.0, "verify": "exact"}, "give either rollback or verify, not both"),
        ({"adaptive": 1}, "adaptive must be True or False, got 1"),
    ],
)
def test_bad_arguments_are_refused_by_name(arguments, said):
    with pytest.raises(ValueError, match=f"^{said}") as caught:
        Free(**{"shallow_layers": 2, **arguments})
    assert "\n" not in str(caught.value)


def test_an_exit_must_lie_below_the_last_layer_and_have_its_classifier():
    config = tiny_config()
    Free(3).check(config)
    with pytest.raises(ValueError, match=r"^shallow_layers must be below the model's 4 layers, got 4$"):
        Free(4).check(config)
    method = Free(2, confidence="classifier")
    with pytest.raises(ValueError, match="needs a trained classifier after layer 2, this model has none"):
        method.check(config)
    with pytest.raises(ValueError, match="needs a trained classifier after layer 2, this model has none"):
        method.check(dataclasses.replace(config, exit_heads=ExitHeads((2,))))
    with pytest.raises(ValueError, match="needs a trained classifier after layer 2, this model has them after 1, 3"):
        method.check(dataclasses.replace(config, exit_heads=ExitHeads((1, 3), classifier=True)))
    method.check(dataclasses.replace(config, exit_heads=ExitHeads((1, 2), classifier=True)))


def test_untrained_exits_warn_once_unless_every_token_is_verified():
    lm, method = LanguageModel(tiny_config(), {}), Free(2)
    with pytest.warns(UserWarning, match=r"records no trained exits, and Free\(shallow_layers=2.*skipjax train free"):
        warn_if_untrained(lm, method)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_untrained(lm, dataclasses.replace(method, threshold=0.5))
        warn_if_untrained(lm, Free(1, verify="exact"))
        warn_if_untrained(LanguageModel(tiny_config(), {}, recorded=Recorded(Free(2), exit_layers=(2,))), method)
        warn_if_untrained(LanguageModel(tiny_config(exit_heads=ExitHeads((2,), norm=True)), {}), method)
    classifier_only = LanguageModel(tiny_config(exit_heads=ExitHeads((2,), classifier=True)), {})
    with pytest.warns(UserWarning, match="records no trained exits"):  # it learns when to leave, not what to say
        warn_if_untrained(classifier_only, method)
    lm = LanguageModel(tiny_config(), {}, recorded=Recorded(Free(2), exit_layers=(1, 2)))
    with pytest.warns(UserWarning, match="records trained exits after layers 1, 2 only, and"):
        warn_if_untrained(lm, Free(3))

"""The adaptive threshold: known values, the guards, and a state that is saved and compared by value."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
from scipy import stats

from skipjax import adaptive
from skipjax.adaptive import (
    INITIAL_A,
    INITIAL_B,
    AdaptiveThreshold,
    fit_components,
    threshold_of,
    weighted_beta_moments,
)

TEN = (
    (0.1, 0.2, 0.35, 0.5, 0.6, 0.95, 0.9, 0.85, 0.97, 0.7),
    (0, 0, 0, 0, 1, 1, 1, 1, 1, 0),
)


def bimodal(seed: int, count: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """Pairs that mostly separate: disagreement about 0.3, agreement about 0.85."""
    generator = np.random.default_rng(seed)
    agreements = generator.random(count) < 0.7
    confidences = np.where(agreements, generator.beta(9, 1.6, count), generator.beta(2, 4.7, count))
    return confidences.astype(np.float32), agreements


# Known values


def test_threshold_of_the_initial_components():
    assert threshold_of(INITIAL_A, INITIAL_B) == pytest.approx(0.43333, abs=5e-6)


def test_moments_of_the_worked_example():
    assert weighted_beta_moments((0.2, 0.4, 0.9), (1, 1, 2)) == pytest.approx((0.9157895, 0.6105263), abs=5e-8)


def test_fit_of_the_worked_example():
    a, b = fit_components(*TEN)
    assert a == pytest.approx((1.5186136, 5.0699369), abs=5e-8)
    assert b == pytest.approx((2.5830661, 0.8684393), abs=5e-8)
    assert threshold_of(a, b) == pytest.approx(0.6333333, abs=5e-8)


def test_estimator_gives_the_worked_example():
    state = AdaptiveThreshold().after(*TEN)
    assert state.threshold == pytest.approx(0.6333333, abs=5e-8)
    assert state.a == pytest.approx((1.5186136, 5.0699369), abs=5e-7)  # confidences are kept in float32
    assert (state.fits, state.fitted, state.reason) == (1, True, "fit 1 of at most 300")


def test_two_pairs_far_apart():
    """The densities underflow on most of the grid."""
    assert threshold_of(*fit_components((0.5, 0.8), (0, 1))) == pytest.approx(0.7)


# The fit and the threshold rule


def test_moments_invert_those_of_a_beta_distribution():
    x = stats.beta(3.2, 1.7).ppf((np.arange(20000) + 0.5) / 20000)
    assert weighted_beta_moments(x, np.full(20000, 0.3)) == pytest.approx((3.2, 1.7), rel=1e-3)


@pytest.mark.parametrize(
    ("a", "b"), [((1.2, 6.0), (3.4, 0.7)), ((40.0, 900.0), (50.0, 60.0)), ((2.0, 3.0), (5.0, 1.0))]
)
@pytest.mark.parametrize("zeta", [0.05, 0.4, 0.8, 0.999])
def test_threshold_against_scipy(a, b, zeta):
    grid = np.linspace(0.3, 0.9, 10)
    upper = int(a[1] / (a[1] + b[1]) > a[0] / (a[0] + b[0]))
    densities = [stats.beta.pdf(grid, *parameters) for parameters in zip(a, b, strict=True)]
    enough = densities[upper] / (densities[0] + densities[1]) > zeta
    assert threshold_of(a, b, zeta) == (grid[enough][0] if enough.any() else 0.9)


def test_threshold_at_both_ends():
    assert threshold_of((2.0, 8.0), (30.0, 2.0)) == 0.3
    assert threshold_of((60.0, 1000.0), (40.0, 1.0)) == 0.9
    assert threshold_of(INITIAL_A, INITIAL_B, 0.0) == 0.3
    assert threshold_of(INITIAL_A, INITIAL_B, 1.0) == 0.9


def test_component_with_the_larger_mean_decides_whatever_its_label():
    assert threshold_of(INITIAL_A[::-1], INITIAL_B[::-1]) == threshold_of(INITIAL_A, INITIAL_B)


def test_confidences_are_clipped():
    x, y = np.array([0.0, 0.3, 1.0, 0.6, -0.2]), [0, 0, 1, 1, 0]
    assert fit_components(x, y) == fit_components(np.clip(x, 1e-4, 1 - 1e-4), y)


def test_unguarded_fit_of_degenerate_samples_is_that_of_the_official_code():
    for x, y in (([0.4], [1]), ([0.4, 0.4, 0.4], [0, 1, 1]), ([], []), ([1.0, 0.99995], [0, 1])):
        a, b = fit_components(x, y)
        assert all(map(math.isnan, (*a, *b)))
        assert threshold_of(a, b) == 0.9
    for label in (0, 1):
        assert threshold_of(*fit_components((0.2, 0.5, 0.7), [label] * 3)) == 0.3


# The guards


@pytest.mark.parametrize(
    ("x", "y", "lacking"),
    [
        ([0.4], [1], "agree"),
        ([0.5, 0.8], [0, 1], "agree"),
        ([0.4] * 6, [0, 1] * 3, "agree"),
        ([0.2, 0.5, 0.7], [1] * 3, "disagree"),
        ([0.2, 0.5, 0.7], [0] * 3, "agree"),
        ([1.0, 0.99995, 0.2, 0.3], [1, 1, 0, 0], "agree"),  # clipped to the same
        ([0.2, 0.3, 0.0, 0.00005], [1, 1, 0, 0], "disagree"),
    ],
)
@pytest.mark.parametrize("blend", ["hard", "soft"])
def test_first_threshold_stays_until_both_classes_vary(x, y, lacking, blend):
    state = AdaptiveThreshold(blend=blend).after(x, y)
    assert (state.threshold, state.fits, state.fitted) == (0.9, 0, False)
    assert (state.a, state.b) == (INITIAL_A, INITIAL_B)
    assert state.reason == f"no fit yet: the pairs that {lacking} hold fewer than two different confidences"
    assert len(state.confidences) == len(x)
    # The pairs are kept: with the missing ones the first fit is to all of them.
    both = state.after(*TEN)
    assert both.fits == 1
    if blend == "hard":
        a, b = fit_components(np.float32([*x, *TEN[0]]), [*y, *TEN[1]])
        assert (both.a, both.b) == (a, b)


@pytest.mark.parametrize(
    "unsound", [((math.nan, 1.0), (1.0, 1.0)), ((1.0, 1.0), (1.0, math.inf)), ((0.0, 1.0), (2.0, 2.0))]
)
def test_an_unsound_fit_keeps_the_last_threshold(monkeypatch, unsound):
    fitted = AdaptiveThreshold().after(*TEN)
    monkeypatch.setattr(adaptive, "fit_components", lambda *_, **__: unsound)
    assert threshold_of(*unsound) == 0.9
    after = fitted.after([0.3], [1])
    assert (after.threshold, after.fits, len(after.confidences)) == (fitted.threshold, 1, 11)
    first = AdaptiveThreshold().after(*TEN)
    assert (first.threshold, first.reason) == (0.9, "no fit yet: the pairs so far give no sound components")


# Sequences


def test_a_sequence_without_pairs_counts_as_a_fit():
    state = AdaptiveThreshold().after(*TEN)
    again = state.after([], [])
    assert (again.fits, again.a, again.b) == (2, state.a, state.b)


def test_max_fits_stops_refitting():
    state = AdaptiveThreshold(max_fits=2).after(*bimodal(0)).after(*bimodal(1))
    assert (state.fits, state.reason) == (2, "fit 2 of at most 2")
    later = state.after(np.full(50, 0.95), np.arange(50) % 2)
    assert (later.fits, later.a, later.b, later.threshold) == (2, state.a, state.b, state.threshold)
    assert len(later.confidences) == 450
    assert dataclasses.replace(later, max_fits=3).after([], []).a != state.a


def test_after_leaves_the_old_state_alone():
    old = AdaptiveThreshold().after(*TEN)
    x, y = bimodal(0)
    new = old.after(x, y)
    x[:] = 0
    assert len(old.confidences) == 10
    assert old.a != new.a
    np.testing.assert_array_equal(new.confidences[10:], bimodal(0)[0])
    np.testing.assert_array_equal(new.agreements[10:], y)
    with pytest.raises(ValueError, match="read-only"):
        new.confidences[0] = 0.5
    with pytest.raises(dataclasses.FrozenInstanceError):
        new.fits = 0


def test_before_any_pair():
    for state in (AdaptiveThreshold(), AdaptiveThreshold().after([], [])):
        assert (state.threshold, state.fits, state.fitted) == (0.9, 0, False)
        assert state.reason == "no fit yet: there are no pairs"


@pytest.mark.parametrize("blend", ["hard", "soft"])
def test_batch_is_its_rows_one_by_one(blend):
    rows = [bimodal(0, 20), ([], []), bimodal(1, 7), TEN]
    start = AdaptiveThreshold(blend=blend)
    one_by_one = start
    for row in rows:
        one_by_one = one_by_one.after(*row)
    assert start.after_batch(rows) == one_by_one
    assert one_by_one.fits == 4
    assert start.after_batch([]) == start


def test_order_of_rows_matters_to_the_last_fit_and_to_the_soft_blend():
    # One fit: on the first row that allows it and those before, so another first row is another threshold.
    rows = [bimodal(0, 40), TEN]
    once = AdaptiveThreshold(max_fits=1)
    assert once.after_batch(rows).a == once.after(*rows[0]).a
    assert once.after_batch(rows[::-1]).a == once.after(*TEN).a
    # The hard fit to all pairs does not depend on their order, the soft one on all fits before.
    hard, soft = AdaptiveThreshold(), AdaptiveThreshold(blend="soft")
    assert hard.after_batch(rows).a == pytest.approx(hard.after_batch(rows[::-1]).a)
    assert soft.after_batch(rows).a != pytest.approx(soft.after_batch(rows[::-1]).a, rel=1e-3)


# The soft blend


def test_soft_responsibilities_of_a_worked_example():
    """Under the initial components the posterior of agreement is x itself."""
    x, y = np.array([0.1, 0.4, 0.7, 0.9]), np.array([0, 1, 0, 1])
    agree = [0.08, 0.52, 0.56, 0.92]
    a, b = fit_components(x, y, blend="soft")
    assert (a[1], b[1]) == pytest.approx(weighted_beta_moments(x, agree))
    assert (a[0], b[0]) == pytest.approx(weighted_beta_moments(x, 1 - np.array(agree)))


def test_soft_blend_uses_the_components_before():
    first = fit_components(*TEN, blend="soft")
    second = fit_components(*TEN, blend="soft", a=first[0], b=first[1])
    assert second != first
    state = AdaptiveThreshold(blend="soft").after(*TEN).after([], [])
    assert state.a == pytest.approx(second[0], rel=1e-5)


def test_soft_blend_separates_a_bimodal_sample():
    hard, soft = AdaptiveThreshold(), AdaptiveThreshold(blend="soft")
    for seed in range(10):
        hard, soft = hard.after(*bimodal(seed)), soft.after(*bimodal(seed))
    assert soft.a != pytest.approx(hard.a, rel=1e-2)
    for state in (hard, soft):
        above = state.confidences > state.threshold
        assert above[state.agreements].mean() > 0.75
        assert above[~state.agreements].mean() < 0.15
        assert 0.45 < state.threshold < 0.75
    # The components keep their labels.
    assert soft.a[1] / (soft.a[1] + soft.b[1]) > 0.75 > 0.5 > soft.a[0] / (soft.a[0] + soft.b[0])


# Equality, saving


def test_equality_is_by_value():
    state = AdaptiveThreshold().after(*TEN)
    same = AdaptiveThreshold().after(np.float32(TEN[0]), np.array(TEN[1], bool))
    assert state == same
    assert hash(state) == hash(same)
    assert state != AdaptiveThreshold()
    for change in ({"zeta": 0.5}, {"fits": 2}, {"blend": "soft"}, {"agreements": np.ones(10, bool)}, {"max_fits": 9}):
        assert state != dataclasses.replace(state, **change)
    assert state != "state"


@pytest.mark.parametrize("blend", ["hard", "soft"])
def test_saved_state_is_loaded_to_the_last_bit(tmp_path, blend):
    path = tmp_path / "threshold.json"
    state = AdaptiveThreshold(blend=blend, max_fits=7, zeta=0.3).after_batch([bimodal(0), TEN])
    state.save(path)
    loaded = AdaptiveThreshold.load(str(path))
    assert loaded == state
    assert loaded.threshold == state.threshold
    assert (loaded.confidences.dtype, loaded.agreements.dtype) == (np.float32, np.bool_)
    assert loaded.confidences.tobytes() == state.confidences.tobytes()
    assert loaded.after(*bimodal(3)) == state.after(*bimodal(3))


def test_new_state_and_one_of_numpy_numbers_can_be_saved(tmp_path):
    path = tmp_path / "threshold.json"
    for state in (AdaptiveThreshold(), AdaptiveThreshold(max_fits=np.int64(3), zeta=np.float32(0.25))):
        state.save(path)
        assert AdaptiveThreshold.load(path) == state


@pytest.mark.parametrize(
    "change",
    [
        {"format": "other"},
        {"fits": -1},
        {"fits": None},
        {"fits": True},
        {"blend": "firm"},
        {"blend": ["hard"]},
        {"zeta": 2},
        {"max_fits": 0},
        {"a": [1.0]},
        {"a": "12"},
        {"a": 3},
        {"a": [1.0, float("nan")]},
        {"b": [1.0, -1.0]},
        {"b": [1e306, 1.0]},
        {"confidences": [0.5]},
        {"confidences": None},
        {"confidences": [[0.5]] * 10},
        {"confidences": [None] * 10},
        {"confidences": ["0.5"] * 10},
        {"confidences": [float("nan")] * 10},
        {"agreements": [2] * 10},
        {"agreements": {"0": 1}},
        {"more": 1},
    ],
)
def test_damaged_or_foreign_file_is_refused_by_name(tmp_path, change):
    path = tmp_path / "threshold.json"
    AdaptiveThreshold().after(*TEN).save(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=r"threshold\.json: (damaged|not an adaptive threshold)"):
        AdaptiveThreshold.load(path)


def test_files_that_are_no_state_are_refused(tmp_path):
    path = tmp_path / "threshold.json"
    with pytest.raises(FileNotFoundError, match=r"threshold\.json"):
        AdaptiveThreshold.load(path)
    AdaptiveThreshold().after(*TEN).save(path)
    whole = path.read_text()
    for text in (whole[: len(whole) // 2], "", "[]", "{}", json.dumps({"format": "skipjax adaptive threshold"})):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"threshold\.json"):
            AdaptiveThreshold.load(path)


# Bad input


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ([math.nan, 0.5], [0, 1], "confidences must be numbers from -1 to 1, got nan"),
        ([math.inf], [0], "confidences must be numbers from -1 to 1, got inf"),
        ([85.0], [0], "confidences must be numbers from -1 to 1, got 85"),
        ([True, False], [0.3, 0.5], "agreements must be 0 or 1, got 0.3"),
        ([True, False], [1, 0], "confidences must be numbers from -1 to 1, got truth values"),
        ([0.5], [2], "agreements must be 0 or 1, got 2"),
        ([0.5], [math.nan], "agreements must be 0 or 1, got nan"),
        ([0.5, 0.6], [1], "confidences and agreements must be equally long, got 2 and 1"),
        ([[0.5]], [[1]], "confidences must be a flat sequence of numbers, got list"),
        (0.5, 1, "confidences must be a flat sequence of numbers, got float"),
        (["0.5"], [1], "confidences must be a flat sequence of numbers, got list"),
        ([[0.1], [0.2, 0.3]], [1, 1], "confidences must be a flat sequence of numbers, got list"),
        ([0.5], None, "agreements must be a flat sequence of numbers, got NoneType"),
    ],
)
def test_bad_pairs_are_refused(x, y, message):
    for call in (AdaptiveThreshold().after, fit_components):
        with pytest.raises(ValueError, match=f"^{message}$"):
            call(x, y)


def test_other_bad_arguments_are_refused():
    with pytest.raises(ValueError, match=r"blend must be one of 'hard', 'soft', got 'sofd' \(did you mean 'soft'\?\)"):
        AdaptiveThreshold(blend="sofd")
    with pytest.raises(ValueError, match="blend must be one of"):
        fit_components(*TEN, blend="firm")
    with pytest.raises(ValueError, match="a and b must be tuples of two positive finite numbers"):
        fit_components(*TEN, blend="soft", a=(0.0, 1.0))
    with pytest.raises(ValueError, match="a and b must be tuples of two positive finite numbers"):
        AdaptiveThreshold(a=(1.0, math.nan))
    with pytest.raises(ValueError, match="max_fits must be an integer of at least 1, got 0"):
        AdaptiveThreshold(max_fits=0)
    for zeta in (-0.1, 1.5, math.nan, "0.4"):
        with pytest.raises(ValueError, match="zeta must be a number at least 0 and at most 1"):
            AdaptiveThreshold(zeta=zeta)
        with pytest.raises(ValueError, match="zeta must be a number at least 0 and at most 1"):
            threshold_of(INITIAL_A, INITIAL_B, zeta)
    with pytest.raises(ValueError, match="x and w must be equally long, got 2 and 1"):
        weighted_beta_moments([0.1, 0.2], [1])
    for weight in (-1, math.nan, math.inf):
        with pytest.raises(ValueError, match="w must hold finite numbers of at least 0"):
            weighted_beta_moments([0.1, 0.2], [1, weight])


# The figure


@pytest.mark.parametrize("pairs", [([], []), ([0.99999, 1.0, 0.3], [1, 1, 0]), TEN, bimodal(0)])
@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_figure_is_drawn(tmp_path, pairs, suffix):
    pytest.importorskip("matplotlib")
    path = tmp_path / f"threshold.{suffix}"
    AdaptiveThreshold().after(*pairs).plot(path)
    assert path.read_bytes().startswith({"png": b"\x89PNG", "svg": b"<?xml"}[suffix])


def test_figure_shows_what_decides(tmp_path, monkeypatch):
    figure_module = pytest.importorskip("matplotlib.figure")
    figures = []
    monkeypatch.setattr(figure_module.Figure, "savefig", lambda self, *_, **__: figures.append(self))
    state = AdaptiveThreshold().after(*TEN)
    state.plot(tmp_path / "threshold.png")
    (figure,) = figures
    assert figure.get_suptitle() == "Adaptive threshold 0.633\nfit 1 of at most 300"
    upper, lower = figure.axes
    assert [text.get_text() for text in upper.get_legend().get_texts()] == [
        "pairs that disagree (5)",
        "Beta(1.52, 2.58), disagreement",
        "pairs that agree (5)",
        "Beta(5.07, 0.868), agreement",
        "threshold 0.633",
    ]
    assert [text.get_text() for text in lower.get_legend().get_texts()] == [
        "q(x)",
        "thresholds tried",
        "zeta 0.4",
        "threshold 0.633",
    ]
    x, density = next(line.get_data() for line in upper.lines if "5.07" in line.get_label())
    np.testing.assert_allclose(density, stats.beta.pdf(x, state.a[1], state.b[1]), rtol=1e-9)
    assert lower.get_xlabel() == "confidence of the shallow layers, x"


@pytest.mark.usefixtures("no_matplotlib")
def test_figure_without_matplotlib(tmp_path):
    with pytest.raises(ValueError, match=r"pip install 'skipjax\[plot\]'"):
        AdaptiveThreshold().plot(tmp_path / "threshold.png")


def test_figure_of_an_unknown_format_is_refused(tmp_path):
    pytest.importorskip("matplotlib")
    with pytest.raises(ValueError, match="not supported"):
        AdaptiveThreshold().plot(tmp_path / "threshold.tree")

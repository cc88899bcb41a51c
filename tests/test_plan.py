"""Plans and schedules: the papers' numbers, and what makes a plan right."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from tiny_models import tiny_config

from skipjax.methods import Free, Full, SkipDecode, StaticExit
from skipjax.plan import Plan, fewer_depths, layer_groups, plan_from_depths
from skipjax.recorded import Recorded
from skipjax.schedules import SHAPES, depth_at


def test_worked_example_of_the_plan_docstring():
    plan = plan_from_depths((4, 4, 3), num_layers=6, warmup_layers=1)
    assert [segment.ranges for segment in plan.segments] == [((0, 1), (3, 6)), ((0, 1), (4, 6))]
    assert plan.depths == (4, 4, 3)
    assert plan.kept == (3, 0, 0, 2, 3, 3)
    assert plan.cache_lengths(10) == (13, 0, 0, 12, 13, 13)


def test_full_depth_is_one_segment_and_one_range():
    plan = Full().plan(5, 7)
    assert [(s.first_step, s.last_step, s.ranges) for s in plan.segments] == [(0, 7, ((0, 5),))]
    assert SkipDecode(5, 5, horizon=7).plan(5, 7) == plan


def test_a_static_exit_runs_the_bottom_layers_only():
    plan = StaticExit(2).plan(5, 7)
    assert [(s.first_step, s.last_step, s.ranges) for s in plan.segments] == [(0, 7, ((0, 2),))]
    assert plan.cache_lengths(10) == (17, 17, 0, 0, 0)
    assert StaticExit(5).plan(5, 7) == Full().plan(5, 7)
    assert [StaticExit(k).exit_layers(5) for k in (1, 4, 5)] == [(1,), (4,), ()]


def test_a_plan_without_decode_steps_keeps_nothing():
    plan = Full().plan(5, 0)
    assert plan == Plan(5, ())
    assert (plan.steps, plan.cache_lengths(3)) == (0, (0,) * 5)


@pytest.mark.parametrize(
    ("num_layers", "speedup", "depths"),
    [
        (24, 2, (16, 8)),  # OPT-1.3B
        (24, 5, (6, 4)),
        (32, 2, (22, 11)),  # OPT-6.7B
        (32, 3, (14, 8)),
        (32, 4, (10, 6)),
        (32, 5, (8, 5)),
        (30, 1, (30, 30)),
        (12, 4 / 3, (12, 6)),
    ],
)
def test_for_speedup_gives_the_published_depths(num_layers, speedup, depths):
    method = SkipDecode.for_speedup(speedup, num_layers=num_layers)
    assert (method.max_depth, method.min_depth, method.warmup_layers) == (*depths, 1)


@pytest.mark.parametrize("num_layers", [6, 12, 24, 31, 80])
def test_for_speedup_keeps_the_midpoint_near_layers_over_speedup(num_layers):
    for speedup in (1.0, 1.1, 1.3, 1.5, 1.9, 2.0, 2.5):
        method = SkipDecode.for_speedup(speedup, num_layers=num_layers)
        assert abs(num_layers / method.target_speedup(num_layers) - num_layers / speedup) <= 0.75
        method.check(tiny_config(num_layers=num_layers))


def test_linear_schedule_rounds_half_up_and_stays_at_the_minimum():
    assert [depth_at(s, 6, 3, 6, "linear") for s in range(8)] == [6, 6, 5, 5, 4, 4, 3, 3]  # 5.5, 4.5, 3.5 round up
    assert [depth_at(s, 8, 2, 10, "linear") for s in range(12)] == [8, 7, 7, 6, 6, 5, 4, 4, 3, 3, 2, 2]


@pytest.mark.parametrize("shape", SHAPES)
def test_no_shape_ever_rises_or_leaves_its_bounds(shape):
    depths = [depth_at(step, 20, 10, 37, shape) for step in range(60)]
    assert all(later <= earlier for earlier, later in itertools.pairwise(depths))
    assert min(depths) >= 10
    assert max(depths) <= 20


@pytest.mark.parametrize("warmup", [0, 1, 3])
def test_layers_of_a_plan_are_nested_and_end_with_the_last(warmup):
    plan = SkipDecode(9, 4, warmup, horizon=12).plan(10, 20)
    sets = [{layer for first, last in s.ranges for layer in range(first, last)} for s in plan.segments]
    assert all(later <= earlier for earlier, later in itertools.pairwise(sets))
    assert all(9 in layers and set(range(warmup)) <= layers for layers in sets)
    assert [len(layers) for layers in sets] == [segment.depth for segment in plan.segments]
    assert sum(plan.kept) == sum(plan.depths)


def every_cut(depths: list[int], most: int) -> list[list[int]]:
    """All the ways to join neighbouring depths at the largest, by brute force."""
    ways = []
    for cuts in range(most):
        for places in itertools.combinations(range(1, len(depths)), cuts):
            begins = [0, *places, len(depths)]
            ways.append([depths[a] for a, b in itertools.pairwise(begins) for _ in range(a, b)])
    return ways


def test_fewer_depths_adds_as_few_layers_as_can_be():
    assert fewer_depths((8, 8, 7, 6, 5, 5, 5), 2) == [8, 8, 8, 8, 5, 5, 5]
    for shape, horizon in itertools.product(SHAPES, (5, 13)):
        depths = [depth_at(step, 9, 3, horizon, shape) for step in range(horizon)]
        for most in (1, 2, 3, 4):
            cut = fewer_depths(depths, most)
            assert sum(cut) == min(map(sum, every_cut(depths, most)))
            assert len(set(cut)) <= most
            assert all(new >= old for new, old in zip(cut, depths, strict=True))
            assert all(later <= earlier for earlier, later in itertools.pairwise(cut))
        assert fewer_depths(depths, len(set(depths))) == depths


def test_segments_of_a_schedule():
    exact = SkipDecode(16, 8, horizon=64)
    assert len(exact.plan(24, 63).segments) == 9
    for most, segments in [(1, 1), (3, 3), (9, 9), (50, 9)]:
        cut = dataclasses.replace(exact, max_segments=most).plan(24, 63)
        assert len(cut.segments) == segments
        assert (cut == exact.plan(24, 63)) == (most >= 9)
    assert set(SkipDecode(16, 8, horizon=64, max_segments=1).plan(24, 63).depths) == {16}
    assert SkipDecode.for_speedup(2, num_layers=24, max_segments=3) == SkipDecode(16, 8, max_segments=3)


@pytest.mark.parametrize("most", [None, 1, 3])
def test_the_depth_of_a_step_does_not_depend_on_how_many_there_are(most):
    """A smaller budget reuses a larger one's program, and training sees batches of several lengths."""
    method = SkipDecode(9, 4, horizon=12, max_segments=most)
    longest = method.plan(10, 30).depths
    assert all(method.plan(10, steps).depths == longest[:steps] for steps in (0, 1, 7, 12, 13, 20))


def test_layer_groups_join_equal_neighbours():
    assert layer_groups((0, 0, 5, 5, 0)) == [((0, 2), 0), ((2, 4), 5), ((4, 5), 0)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"max_depth": 2, "min_depth": 3}, "max_depth must be an integer of at least 3, got 2"),
        ({"max_depth": 4, "min_depth": 1}, "min_depth must be an integer of at least 2, got 1"),
        ({"max_depth": 4.5, "min_depth": 2}, "max_depth must be an integer of at least 2, got 4.5"),
        ({"max_depth": True, "min_depth": 2}, "max_depth must be an integer of at least 2, got True"),
        ({"max_depth": 4, "min_depth": 2, "warmup_layers": -1}, "warmup_layers must be an integer of at least 0"),
        ({"max_depth": 4, "min_depth": 2, "horizon": 0}, "horizon must be an integer of at least 1, got 0"),
        ({"max_depth": 4, "min_depth": 2, "max_segments": 0}, "max_segments must be an integer of at least 1, got 0"),
        ({"max_depth": 4, "min_depth": 2, "shape": "lineer"}, "did you mean 'linear'"),
    ],
)
def test_bad_schedules_are_refused_by_name(arguments, said):
    with pytest.raises(ValueError, match=said):
        SkipDecode(**arguments)


def test_bad_speedups_are_refused():
    with pytest.raises(ValueError, match=r"speedup must be a number at least 1, got 0\.5"):
        SkipDecode.for_speedup(0.5, num_layers=12)
    with pytest.raises(ValueError, match="speedup 12 leaves 1 of 12 layers at the end, but 2 always run"):
        SkipDecode.for_speedup(12, num_layers=12)
    with pytest.raises(ValueError, match="max_depth must be at most the model's 12 layers, got 16"):
        SkipDecode(16, 8).check(tiny_config(num_layers=12))


def test_recorded_method_covers_what_it_was_trained_for():
    two = SkipDecode(8, 4, horizon=48)
    single, drawn, full = Recorded(two), Recorded(two, (1.0, 3.0)), Recorded(Full())
    assert single.covers(two, 12)
    assert not single.covers(SkipDecode(6, 3, horizon=48), 12)
    assert drawn.covers(SkipDecode.for_speedup(3, num_layers=12, horizon=48), 12)
    assert not drawn.covers(SkipDecode.for_speedup(5, num_layers=12, horizon=48), 12)
    assert not drawn.covers(SkipDecode(8, 4, horizon=24), 12)
    assert not full.covers(two, 12)
    assert all(one.covers(Full(), 12) for one in (single, drawn, full))
    for one in (single, drawn, full):
        assert Recorded.from_json(one.to_json()) == one


def test_recorded_schedules_cover_their_cuts_but_not_the_other_way():
    exact, cut = SkipDecode(8, 4, horizon=48), SkipDecode(8, 4, horizon=48, max_segments=3)
    assert Recorded(exact).covers(cut, 12)
    assert not Recorded(cut).covers(exact, 12)
    assert not Recorded(exact).covers(dataclasses.replace(cut, horizon=24), 12)
    drawn, three = Recorded(exact, (1.0, 3.0)), SkipDecode.for_speedup(3, num_layers=12, horizon=48, max_segments=3)
    assert drawn.covers(three, 12)
    assert Recorded(cut, (1.0, 3.0)).covers(three, 12)
    assert not Recorded(cut, (1.0, 3.0)).covers(dataclasses.replace(three, max_segments=None), 12)


def test_records_from_before_segments_could_be_joined_load():
    old = {name: value for name, value in GOOD.items() if name != "max_segments"}
    assert Recorded.from_json(old).method == SkipDecode(8, 4, horizon=48)
    cut = Recorded(SkipDecode(8, 4, horizon=48, max_segments=3))
    assert Recorded.from_json(cut.to_json()) == cut


def test_recorded_exits_go_with_any_method():
    free = Recorded(Free(3, 0.7, "top1", buffer_size=5, rollback=2.0), exit_layers=(3, 6))
    static = Recorded(Full(), exit_layers=(2,))
    for one in (free, static):
        assert Recorded.from_json(one.to_json()) == one
        assert one.covers(Full(), 12)
        assert not one.covers(SkipDecode(8, 4, horizon=48), 12)
    old = {name: value for name, value in Recorded(Full()).to_json().items() if name != "exit_layers"}
    assert Recorded.from_json(old) == Recorded(Full())


GOOD = Recorded(SkipDecode(8, 4, horizon=48), (1.0, 3.0)).to_json()


@pytest.mark.parametrize(
    "data",
    [
        3,
        {},
        {"method": "calm", "threshold": 0.9},
        {**GOOD, "method": ["full"]},
        {**GOOD, "speedup_range": [1]},
        {**GOOD, "max_depth": 0},
        {**GOOD, "exit_layers": ["all"]},
        {**GOOD, "depth": 3},
    ],
)
def test_damaged_or_newer_records_are_refused(data):
    with pytest.raises(ValueError, match=r"recorded method: .* is not one this version knows"):
        Recorded.from_json(data)

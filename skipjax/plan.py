"""A plan says, before anything is traced, which layers run in which decode steps and what each layer must remember.

Words as in the papers: decode step s consumes generated token s and produces token s + 1; token 0 comes from the
prompt pass. A plan is static (hashable, a jit argument): its segments become a chain of loops, its ranges slices of
the layers.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence

Range = tuple[int, int]  # layers [first, last)


@dataclasses.dataclass(frozen=True)
class Segment:
    """Decode steps [first_step, last_step) that all run the same contiguous ranges of layers."""

    first_step: int
    last_step: int
    ranges: tuple[Range, ...]

    @property
    def depth(self) -> int:
        """Layers run per token."""
        return sum(last - first for first, last in self.ranges)

    def runs(self, layer: int) -> bool:
        return any(first <= layer < last for first, last in self.ranges)


@dataclasses.dataclass(frozen=True)
class Plan:
    """The segments of one generation, in order and without gaps, for a decoder of `num_layers` layers.

    The sets of layers must be nested: a layer used in a segment was used in all earlier ones, so its keys and values of
    every earlier position exist (SkipDecode, section 3; it is what makes skipping exact without recomputation).
    """

    num_layers: int
    segments: tuple[Segment, ...]

    @functools.cached_property
    def depths(self) -> tuple[int, ...]:
        """Depth of each decode step."""
        return tuple(segment.depth for segment in self.segments for _ in range(segment.first_step, segment.last_step))

    @property
    def steps(self) -> int:
        """Number of decode steps: one less than the tokens that can be generated."""
        return self.segments[-1].last_step if self.segments else 0

    @functools.cached_property
    def kept(self) -> tuple[int, ...]:
        """For each layer, how many decode steps run it, always the first ones: positions it keeps after the prompt."""
        return tuple(
            sum(segment.last_step - segment.first_step for segment in self.segments if segment.runs(layer))
            for layer in range(self.num_layers)
        )

    def cache_lengths(self, prompt_length: int) -> tuple[int, ...]:
        """Positions of keys and values that each layer needs room for; 0 for layers that no decode step runs."""
        return tuple(prompt_length + kept if kept else 0 for kept in self.kept)


def plan_from_depths(depths: Sequence[int], num_layers: int, warmup_layers: int) -> Plan:
    """The plan of SkipDecode: depth `depths[s]` (never rising) in step s, as the bottom `warmup_layers` and top layers.

    With L = 6, one warm-up layer and depths (4, 4, 3): steps 0 and 1 run layers 0, 3, 4, 5; step 2 runs 0, 4, 5; the
    layers keep (3, 0, 0, 2, 3, 3) positions after the prompt.
    """
    segments, step = [], 0
    for depth, group in itertools.groupby(depths):
        last_step = step + len(list(group))
        top = num_layers - (depth - warmup_layers)
        ranges: tuple[Range, ...] = ((0, warmup_layers), (top, num_layers))
        if top <= warmup_layers:
            ranges = ((0, num_layers),)
        segments.append(Segment(step, last_step, tuple(r for r in ranges if r[0] < r[1])))
        step = last_step
    return Plan(num_layers, tuple(segments))


def fewer_depths(depths: Sequence[int], most: int) -> list[int]:
    """The schedule `depths` (never rising) with at most `most` different depths: no step gets fewer layers than before,
    and the layers added over all steps are the fewest that this allows.

    Each piece of neighbouring depths takes its first, largest one; which pieces is found by dynamic programming.
    At most 2 of (8, 8, 7, 6, 5, 5, 5) is (8, 8, 8, 8, 5, 5, 5), which adds 3 layers.
    """
    runs = [(depth, len(list(steps))) for depth, steps in itertools.groupby(depths)]

    @functools.cache
    def cheapest(first: int, pieces: int) -> tuple[int, tuple[int, ...]]:
        """Layers of all steps from run `first` on, in at most so many pieces, and the runs that those begin with."""
        if first == len(runs):
            return 0, ()
        options = []
        for last in range(first + 1 if pieces > 1 else len(runs), len(runs) + 1):
            layers, begins = cheapest(last, pieces - 1)
            options.append((layers + runs[first][0] * sum(steps for _, steps in runs[first:last]), (first, *begins)))
        return min(options)

    begins = cheapest(0, most)[1]
    pieces = itertools.pairwise((*begins, len(runs)))
    return [runs[first][0] for first, last in pieces for _, steps in runs[first:last] for _ in range(steps)]


def layer_groups(values: Sequence[int]) -> list[tuple[Range, int]]:
    """Contiguous ranges of layers that share a value: (0, 0, 5, 5) -> [((0, 2), 0), ((2, 4), 5)]."""
    groups, layer = [], 0
    for value, group in itertools.groupby(values):
        last = layer + len(list(group))
        groups.append(((layer, last), value))
        layer = last
    return groups

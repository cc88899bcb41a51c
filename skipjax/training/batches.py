"""Static batch shapes: which few lengths to pad to, and in which order examples come.

A batch is laid out exactly as in decoding: prompts padded at the left to P columns, targets at the right to T columns.
Decode step s consumes target token s in column P + s; column P - 1, the end of the prompt, predicts target token 0.
An encoder-decoder model's encoder reads the P columns, its decoder a start token and then the same T - 1 columns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from skipjax.training.data import Examples

MULTIPLE = 4  # lengths are rounded up to it before bucket sizes are chosen
RARE = 0.02  # a shape used by a smaller share of the examples is not worth compiling a program for


class Batch(NamedTuple):
    """One padded batch (int32 numpy arrays; P and T are static wherever it is used).

    Attributes:
      prompts: [B, P], left-padded.
      targets: [B, T], EOS last, right-padded.
      padding: [B], padded columns at the left of each prompt.
      lengths: [B], real tokens of each target, EOS counted.
    """

    prompts: np.ndarray
    targets: np.ndarray
    padding: np.ndarray
    lengths: np.ndarray

    @property
    def real_tokens(self) -> int:
        """Columns of the model's input that are not padding; the last target token is never an input. (The start
        token of an encoder-decoder model is not counted.)"""
        return int(self.prompts.size - self.padding.sum() + np.maximum(self.lengths - 1, 0).sum())

    @property
    def columns(self) -> int:
        """All columns of the model's input, B * (P + T - 1)."""
        return self.prompts.size + self.targets.size - len(self.targets)


def make_batch(examples: Examples, indices: Sequence[int], shape: tuple[int, int], rows: int, pad_id: int) -> Batch:
    """The batch of the examples `indices` padded to `shape` (P, T), and with empty rows up to `rows`."""
    prompt_size, target_size = shape
    batch = Batch(
        np.full((rows, prompt_size), pad_id, np.int32),
        np.full((rows, target_size), pad_id, np.int32),
        np.zeros(rows, np.int32),
        np.zeros(rows, np.int32),
    )
    for row, index in enumerate(indices):
        prompt, target = examples.prompts[index], examples.targets[index]
        batch.padding[row] = prompt_size - len(prompt)
        batch.lengths[row] = len(target)
        batch.prompts[row, prompt_size - len(prompt) :] = prompt
        batch.targets[row, : len(target)] = target
    return batch


def bucket_sizes(lengths: Sequence[int] | np.ndarray, count: int, weights: np.ndarray | None = None) -> tuple[int, ...]:
    """At most `count` sizes, multiples of MULTIPLE, such that padding each length to the next size adds fewest columns.

    Lengths may come once each, with the number of times they occur as `weights`.

    Exact, by dynamic programming over the distinct rounded lengths. Worked: lengths (3, 4, 4, 11, 30) and two sizes:
    (4, 32) costs 3 * 4 + 2 * 32 = 76 columns, (12, 32) costs 4 * 12 + 32 = 80, so the first is chosen.
    """
    rounded = -(-np.asarray(lengths, np.int64) // MULTIPLE) * MULTIPLE
    sizes, place = np.unique(rounded, return_inverse=True)
    counts = np.bincount(place, weights).astype(np.int64)
    below = np.concatenate([[0], np.cumsum(counts)])
    # best[j]: fewest columns for the lengths up to sizes[j - 1] with the buckets used so far.
    best = np.full(len(sizes) + 1, np.iinfo(np.int64).max // 2)
    best[0] = 0
    choices = []
    for _ in range(min(count, len(sizes))):
        previous, choice = best, np.zeros(len(sizes) + 1, np.int64)
        best = previous.copy()
        for last in range(1, len(sizes) + 1):
            costs = previous[:last] + sizes[last - 1] * (below[last] - below[:last])
            choice[last] = int(np.argmin(costs))
            best[last] = costs[choice[last]]
        choices.append(choice)
    chosen, last = [], len(sizes)
    for choice in reversed(choices):
        if last == 0:
            break
        chosen.append(int(sizes[last - 1]))
        last = int(choice[last])
    return tuple(sorted(chosen))


@dataclasses.dataclass(frozen=True)
class Shapes:
    """Which shape (P, T) each example is padded to.

    Attributes:
      of_example: int [N], an index into `shapes`.
      shapes: the shapes in use.
    """

    of_example: np.ndarray
    shapes: tuple[tuple[int, int], ...]

    @property
    def longest_target(self) -> int:
        return max(target for _, target in self.shapes)


def choose_shapes(examples: Examples, batch_size: int, most: int) -> Shapes:
    """The shapes, at most `most`, with the least padding among grids of prompt and target sizes.

    A shape that few examples need, or fewer than fill a batch, gives them to the next larger one.
    """
    lengths = [(len(prompt), len(target)) for prompt, target in zip(examples.prompts, examples.targets, strict=True)]
    pairs, pair_of_example, counts = np.unique(lengths, axis=0, return_inverse=True, return_counts=True)
    fewest = max(batch_size, RARE * len(examples))
    prompt_sizes, target_sizes = (
        [bucket_sizes(pairs[:, axis], count, counts) for count in range(1, 2 * most + 1)] for axis in (0, 1)
    )
    best: tuple[int, np.ndarray] | None = None
    for rows, prompts in enumerate(prompt_sizes, 1):
        # Grids with more cells than `most` are tried too: rare cells go, and what is left may be few enough.
        for targets in target_sizes[: 2 * most // rows]:
            shapes = _pad_to_grid(pairs, counts, prompts, targets, fewest)
            columns = int((shapes.sum(axis=1) * counts).sum())
            if len(np.unique(shapes, axis=0)) <= most and (best is None or columns < best[0]):
                best = columns, shapes
    assert best is not None, "a grid of one cell is always allowed"
    used, shape_of_pair = np.unique(best[1], axis=0, return_inverse=True)
    return Shapes(shape_of_pair[pair_of_example], tuple((prompt, target) for prompt, target in used.tolist()))


def _pad_to_grid(
    pairs: np.ndarray, counts: np.ndarray, prompts: tuple[int, ...], targets: tuple[int, ...], fewest: float
) -> np.ndarray:
    """The padded (P, T) of each pair of lengths (int [N, 2]), of which there are `counts` examples."""
    row = np.searchsorted(prompts, pairs[:, 0])
    column = np.searchsorted(targets, pairs[:, 1])
    for i in range(len(prompts)):
        for j in range(len(targets)):
            members = (row == i) & (column == j)
            if not 0 < counts[members].sum() < fewest:
                continue
            if j + 1 < len(targets):
                column[members] = j + 1
            elif i + 1 < len(prompts):
                row[members] = i + 1
    return np.stack([np.asarray(prompts)[row], np.asarray(targets)[column]], axis=1)


def batch_order(shapes: Shapes, batch_size: int, seed: int) -> Iterator[tuple[int, list[int]]]:
    """Endless batches as (index of the shape, indices of the examples): a function of the arguments alone.

    Every epoch is one seeded permutation; an example joins the batch of its shape, and a batch leaves as soon as it is
    full. What is not full at the end of an epoch carries over into the next, so no example is lost or padded in. A run
    is resumed by skipping as many batches as it has consumed.
    """
    waiting: list[list[int]] = [[] for _ in shapes.shapes]
    epoch = 0
    while True:
        order = np.random.default_rng([seed, epoch]).permutation(len(shapes.of_example))
        for index in order.tolist():
            shape = int(shapes.of_example[index])
            waiting[shape].append(index)
            if len(waiting[shape]) == batch_size:
                yield shape, waiting[shape]
                waiting[shape] = []
        epoch += 1


def padding_share(examples: Examples, shapes: Shapes) -> float:
    """The share of the model's input columns that is padding, over one epoch."""
    real = sum(len(prompt) for prompt in examples.prompts) + sum(len(target) - 1 for target in examples.targets)
    columns = np.asarray([prompt + target - 1 for prompt, target in shapes.shapes])
    return 1 - real / int(columns[shapes.of_example].sum())

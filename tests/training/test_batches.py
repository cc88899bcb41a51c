"""Shapes, layout and order of batches."""

import itertools

import numpy as np
import pytest
from tiny_training import EOS, PAD, random_examples

from skipjax.training.batches import (
    MULTIPLE,
    batch_order,
    bucket_sizes,
    choose_shapes,
    make_batch,
    padding_share,
)
from skipjax.training.data import Examples


def test_bucket_sizes_by_hand():
    assert bucket_sizes([3, 4, 4, 11, 30], 2) == (4, 32)  # 3 * 4 + 2 * 32 columns; (12, 32) needs 4 * 12 + 32
    assert bucket_sizes([3, 4, 4, 11, 12, 30], 2) == (12, 32)  # 5 * 12 + 32 = 92 against 3 * 4 + 3 * 32 = 108
    assert bucket_sizes([5], 3) == (8,)
    assert bucket_sizes([4, 32], 2, weights=np.array([9, 1])) == (4, 32)


@pytest.mark.parametrize("seed", range(5))
def test_bucket_sizes_are_the_best(seed):
    lengths = np.random.default_rng(seed).geometric(0.08, 40)
    candidates = sorted({-(-int(length) // MULTIPLE) * MULTIPLE for length in lengths})

    def columns(sizes):
        return sum(min(size for size in sizes if size >= length) for length in lengths)

    for count in (1, 2, 3):
        fewest = min(columns((*sizes, candidates[-1])) for sizes in itertools.combinations(candidates[:-1], count - 1))
        sizes = bucket_sizes(lengths, count)
        assert len(sizes) <= count
        assert columns(sizes) == fewest


def test_layout():
    examples = Examples([np.array([5, 6]), np.array([7])], [np.array([8, EOS]), np.array([9, 10, 11, EOS])], {})
    batch = make_batch(examples, [1, 0], (3, 5), 3, PAD)
    assert batch.prompts.tolist() == [[PAD, PAD, 7], [PAD, 5, 6], [PAD, PAD, PAD]]
    assert batch.targets.tolist() == [[9, 10, 11, EOS, PAD], [8, EOS, PAD, PAD, PAD], [PAD] * 5]
    assert batch.padding.tolist() == [2, 1, 0]
    assert batch.lengths.tolist() == [4, 2, 0]
    assert {array.dtype for array in batch} == {np.dtype("int32")}
    assert batch.columns == 3 * (3 + 5 - 1)


def test_real_tokens_and_padding_share():
    examples = random_examples(20)
    shapes = choose_shapes(examples, 4, 3)
    batches = [make_batch(examples, [i], shapes.shapes[shape], 1, PAD) for i, shape in enumerate(shapes.of_example)]
    real = sum(len(prompt) for prompt in examples.prompts) + sum(len(target) - 1 for target in examples.targets)
    assert sum(batch.real_tokens for batch in batches) == real
    columns = sum(batch.columns for batch in batches)
    np.testing.assert_allclose(padding_share(examples, shapes), 1 - real / columns)


@pytest.mark.parametrize("most", [1, 2, 4, 9])
def test_every_example_fits_its_shape(most):
    examples = random_examples(300, longest_prompt=60, longest_target=90)
    shapes = choose_shapes(examples, 8, most)
    assert len(shapes.shapes) <= most
    for index, shape in enumerate(shapes.of_example):
        prompt_size, target_size = shapes.shapes[shape]
        assert len(examples.prompts[index]) <= prompt_size
        assert len(examples.targets[index]) <= target_size
    counts = np.bincount(shapes.of_example)
    assert len(counts) == len(shapes.shapes)
    assert counts.min() >= 6  # 2 % of the examples; only the largest shape may have fewer than a batch
    assert shapes.longest_target == 92  # 90 and EOS, rounded up


def test_more_shapes_pad_less():
    examples = random_examples(300, longest_prompt=60, longest_target=90)
    shares = [padding_share(examples, choose_shapes(examples, 8, most)) for most in (1, 2, 4, 8)]
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] < shares[0] / 2


def test_order_uses_every_example_equally_often():
    examples = random_examples(50)
    shapes = choose_shapes(examples, 4, 4)
    assert len(shapes.shapes) > 1
    used = np.zeros(50, int)
    for shape, indices in itertools.islice(batch_order(shapes, 4, seed=3), 250):
        assert len(indices) == 4
        assert set(shapes.of_example[indices]) == {shape}
        np.add.at(used, indices, 1)
    # 1000 draws of 50 examples; what waits for its batch to fill lags behind by at most three epochs.
    assert used.min() >= 17
    assert used.max() <= 21


def test_order_is_a_function_of_the_seed():
    shapes = choose_shapes(random_examples(50), 4, 4)
    first, again, other = (list(itertools.islice(batch_order(shapes, 4, seed), 60)) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert first[:12] != first[12:24]  # epochs differ


def test_fewer_examples_than_a_batch():
    shapes = choose_shapes(random_examples(3), 8, 4)
    assert len(shapes.shapes) == 1
    _, indices = next(batch_order(shapes, 8, 0))
    assert sorted(indices)[:3] == [0, 0, 0] or set(indices) == {0, 1, 2}
    assert len(indices) == 8

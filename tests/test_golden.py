"""Golden cases: what an independent PyTorch program without cache or batches gives on tiny checkpoints, exactly.

The cases lie outside the repository; without them these tests are skipped, and `test_generation.py`, `test_free.py` and
`test_calm.py` hold the same properties against decoding without a cache.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from tiny_models import GOLDEN_FAMILIES, golden_cases

from skipjax.decoder import Execution
from skipjax.generation import generate
from skipjax.language_model import LanguageModel
from skipjax.loading import load
from skipjax.methods import Free, Full, Method, SkipDecode
from skipjax.teacher_forcing import forward

pytestmark = pytest.mark.filterwarnings("ignore:this checkpoint records no")

DECODER_ONLY = ("llama", "opt")


def of_family(name: str):
    """A parameter whose tests run in one worker, so that they share the model and its programs."""
    return pytest.param(name, marks=pytest.mark.xdist_group(f"golden-{name}"))


@pytest.fixture(params=[of_family(name) for name in GOLDEN_FAMILIES])
def directory(request, shared_dir) -> Path:
    return shared_dir / "golden" / request.param


@functools.cache
def model(directory: Path, execution: Execution) -> LanguageModel:
    lm = load(directory, dtype="float32", execution=execution)
    ends = (golden_cases(directory)["eos"],)
    return LanguageModel(dataclasses.replace(lm.config, eos_ids=ends), lm.params)


def assert_rows(lm: LanguageModel, method: Method, cases: dict, expected: list[dict], groups: Iterable[list[int]]):
    """Tokens of each group of prompts, and what else is expected of its rows."""
    for indices in groups:
        prompts = [cases["prompts"][index] for index in indices]
        out = generate(lm, prompts, method, max_new_tokens=cases["max_new_tokens"])
        for row, index in enumerate(indices):
            length, wanted = out.lengths[row], expected[index]
            assert out.tokens[row, :length].tolist() == wanted["tokens"]
            if "depths" in wanted:
                assert out.depths[row, :length].tolist() == wanted["depths"]
            if "confidences" in wanted:
                np.testing.assert_allclose(out.confidences[row, :length], wanted["confidences"], atol=1e-3)


def together(cases: dict) -> list[list[int]]:
    return [list(range(len(cases["prompts"])))]


def alone(cases: dict) -> list[list[int]]:
    return [[index] for index in range(len(cases["prompts"]))]


@pytest.mark.parametrize("execution", ["unrolled", "scanned"])
def test_full_depth_alone_and_as_one_ragged_batch(directory, execution):
    cases = golden_cases(directory)
    assert_rows(model(directory, execution), Full(), cases, cases["full"], together(cases) + alone(cases))


@pytest.mark.parametrize("execution", ["unrolled", "scanned"])
@pytest.mark.parametrize("case", range(4))
@pytest.mark.parametrize("directory", [of_family(name) for name in DECODER_ONLY], indirect=True)
def test_every_skipdecode_config_alone_or_as_one_ragged_batch(directory, execution, case):
    cases = golden_cases(directory)
    assert len(cases["skipdecode"]) == 4
    method, expected = SkipDecode(**cases["skipdecode"][case]["config"]), cases["skipdecode"][case]["rows"]
    groups = alone(cases) if execution == "unrolled" else together(cases)
    assert_rows(model(directory, execution), method, cases, expected, groups)


def free_cases(cases: dict, confidence: str) -> list[dict]:
    assert len(cases["free"]) == 4
    return [case for case in cases["free"] if case["config"]["confidence"] == confidence]


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_free_as_one_ragged_batch_with_any_buffer(directory, size):
    cases = golden_cases(directory)
    chosen = free_cases(cases, "margin")
    assert {case["config"]["threshold"] for case in chosen} == {0.35, 1.0, -1.0}
    for case in chosen:
        method = Free(**case["config"], buffer_size=size)
        assert_rows(model(directory, "scanned"), method, cases, case["rows"], together(cases))


def test_free_unrolled_alone(directory):
    cases = golden_cases(directory)
    for case in free_cases(cases, "margin"):
        method = Free(**case["config"], buffer_size=3)
        assert_rows(model(directory, "unrolled"), method, cases, case["rows"], alone(cases))


def test_free_by_the_largest_probability(directory):
    cases = golden_cases(directory)
    (case,) = free_cases(cases, "top1")
    method = Free(**case["config"], buffer_size=3)
    assert_rows(model(directory, "scanned"), method, cases, case["rows"], together(cases))


def test_free_with_verification_is_full_depth(directory):
    cases = golden_cases(directory)
    expected = [{"tokens": row["tokens"]} for row in cases["full"]]
    shallow_layers = cases["free"][0]["config"]["shallow_layers"]
    for threshold in (-1.0, 0.1, 0.35, 1.0):
        method = Free(shallow_layers, threshold, buffer_size=2, verify="exact")
        assert_rows(model(directory, "scanned"), method, cases, expected, together(cases))


@pytest.mark.parametrize("name", DECODER_ONLY)
def test_last_logits(name, shared_dir):
    cases = golden_cases(shared_dir / "golden" / name)
    logits = forward(load(shared_dir / "golden" / name, dtype="float32"), cases["prompts"])
    last = len(cases["prompts"][2]) - 1
    np.testing.assert_allclose(logits[2, last], cases["last_logits_prompt_2"], atol=1e-4)

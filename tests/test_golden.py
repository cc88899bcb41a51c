"""Golden cases: what an independent PyTorch program without cache or batches gives on tiny checkpoints, exactly.

The cases lie outside the repository; without them these tests are skipped, and `test_generation.py` holds the same
properties against decoding without a cache.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from tiny_models import GOLDEN_FAMILIES, golden_cases

from skipjax.generation import generate
from skipjax.language_model import LanguageModel
from skipjax.loading import load
from skipjax.methods import Full, Method, SkipDecode
from skipjax.teacher_forcing import forward

pytestmark = pytest.mark.filterwarnings("ignore:this checkpoint records no schedule")


@pytest.fixture(params=GOLDEN_FAMILIES)
def family(request, shared_dir):
    directory = shared_dir / "golden" / request.param
    return directory, golden_cases(directory)


@pytest.mark.parametrize("execution", ["unrolled", "scanned"])
@pytest.mark.parametrize("case", range(5), ids=["full", *(f"skipdecode{i}" for i in range(4))])
def test_full_and_every_skipdecode_config_alone_and_as_one_ragged_batch(family, execution, case):
    directory, cases = family
    lm = load(directory, dtype="float32", execution=execution)
    lm = LanguageModel(dataclasses.replace(lm.config, eos_ids=(cases["eos"],)), lm.params)
    assert len(cases["skipdecode"]) == 4
    method: Method = Full()
    expected = cases["full"]
    if case > 0:
        skipping = cases["skipdecode"][case - 1]
        method, expected = SkipDecode(**skipping["config"]), skipping["rows"]
    for indices in [range(len(cases["prompts"])), *([i] for i in range(len(cases["prompts"])))]:
        prompts = [cases["prompts"][i] for i in indices]
        out = generate(lm, prompts, method, max_new_tokens=cases["max_new_tokens"])
        for row, index in enumerate(indices):
            length = out.lengths[row]
            assert out.tokens[row, :length].tolist() == expected[index]["tokens"]
            assert out.depths[row, :length].tolist() == expected[index]["depths"]


def test_last_logits(family):
    directory, cases = family
    logits = forward(load(directory, dtype="float32"), cases["prompts"])
    last = len(cases["prompts"][2]) - 1
    np.testing.assert_allclose(logits[2, last], cases["last_logits_prompt_2"], atol=1e-4)

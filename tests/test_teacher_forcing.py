"""Teacher forcing by static slices against the definition with `where`, and `forward` on ragged rows."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import random_prompts, tiny_lm

from skipjax import decoder
from skipjax.attention import attention, causal
from skipjax.generation import generate
from skipjax.methods import Full, SkipDecode
from skipjax.teacher_forcing import forward


def by_definition(config, params, tokens, padding, columns):
    """h[l + 1] = where(active[l], block_l(h[l]), h[l]), every layer on every column."""
    positions = jnp.maximum(jnp.arange(tokens.shape[1], dtype=jnp.int32)[None] - padding[:, None], 0)
    h = decoder.ends_of(config, params).embed(tokens, positions)
    rotation = decoder.rotation_at(config, positions)
    allowed = causal(padding, tokens.shape[1])

    def attend(carry, layer):
        return lambda q, k, v: (attention(q, k, v, allowed, "bskh"), carry)

    for layer, count in enumerate(columns):
        ran, _ = decoder.run_layers(config, params["layers"], layer, layer + 1, h, rotation, attend, None)
        h = jnp.where((jnp.arange(tokens.shape[1]) < count)[None, :, None], ran, h)
    return h


@pytest.mark.parametrize("execution", ["unrolled", "scanned"])
@pytest.mark.parametrize("columns", [(12, 12, 12, 12), (12, 5, 5, 9), (12, 5, 9, 12), (12, 9, 9, 9)])
def test_slices_equal_the_definition(execution, columns):
    lm, unrolled = tiny_lm("llama", execution), tiny_lm("llama")
    tokens = np.asarray(random_prompts([12, 12], seed=5), np.int32)
    padding = np.array([0, 3], np.int32)
    sliced = jax.jit(decoder.teacher_forced, static_argnums=(0, 4))(lm.config, lm.params, tokens, padding, columns)
    expected = jax.jit(by_definition, static_argnums=(0, 4))(lm.config, unrolled.params, tokens, padding, columns)
    # Padded columns have no key to read, and nothing reads them.
    np.testing.assert_allclose(sliced[0], expected[0], atol=2e-5)
    np.testing.assert_allclose(sliced[1, 3:], expected[1, 3:], atol=2e-5)


def test_rematerialising_changes_no_gradient():
    lm = tiny_lm()
    tokens, padding = np.asarray(random_prompts([8, 8]), np.int32), np.zeros(2, np.int32)

    def loss(params, rematerialise):
        h = decoder.teacher_forced(lm.config, params, tokens, padding, (8, 4, 4, 6), rematerialise=rematerialise)
        return jnp.sum(jnp.sin(h))

    gradient = jax.jit(jax.grad(loss), static_argnums=1)
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(one, other, atol=1e-5),
        gradient(lm.params, False),
        gradient(lm.params, True),
    )


@pytest.mark.filterwarnings("ignore:this checkpoint records no schedule")
def test_masked_forward_is_what_cached_decoding_computes_on_ragged_rows():
    lm, method = tiny_lm("opt"), SkipDecode(4, 2, horizon=6)
    prompts = random_prompts([2, 7, 4])
    out = generate(lm, prompts, method, max_new_tokens=9, stop_at_eos=False)
    rows = [prompt + tokens.tolist()[:-1] for prompt, tokens in zip(prompts, out.tokens, strict=True)]
    logits = forward(lm, rows, method, prompt_length=[2, 7, 4])
    assert logits.shape == (3, 15, 97)
    for prompt, row, tokens, of_row in zip(prompts, rows, out.tokens, logits, strict=True):
        assert of_row[len(prompt) - 1 : len(row)].argmax(axis=-1).tolist() == tokens.tolist()
        assert (of_row[len(row) :] == 0).all()
    full = forward(lm, rows)
    np.testing.assert_allclose(full[1, :7], logits[1, :7], atol=1e-5)  # prompts run at full depth
    assert np.abs(full[1, 12] - logits[1, 12]).max() > 1e-2


def test_scanned_and_stacked_parameters_are_the_same_layer_by_layer():
    lm = tiny_lm("opt")
    stacked = decoder.stack_layers({"ends": lm.params["ends"], "layers": list(lm.params["layers"])})
    assert decoder.execution_of(stacked) == "scanned"
    restored = decoder.unstack_layers(stacked)
    jax.tree.map(np.testing.assert_array_equal, restored, lm.params)
    shapes = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), stacked)
    abstract = decoder.abstract_params(lm.config, jnp.float32, "scanned")
    assert shapes == jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), abstract)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"method": SkipDecode(4, 2)}, "prompt_length must say where the generated columns begin"),
        ({"method": SkipDecode(4, 2), "prompt_length": 0}, "prompt_length must be an integer from 1 to 3, got 0"),
        ({"method": SkipDecode(4, 2), "prompt_length": 4}, "prompt_length must be an integer from 1 to 3, got 4"),
        ({"method": Full(), "prompt_length": [1, 2]}, "prompt_length must be one number or 1, one per row, got 2"),
        ({"method": SkipDecode(9, 2), "prompt_length": 1}, "max_depth must be at most the model's 4 layers, got 9"),
    ],
)
def test_bad_forward_arguments_are_refused(arguments, said):
    with pytest.raises(ValueError, match=said):
        forward(tiny_lm(), [[3, 4, 5]], **arguments)

"""Products of few rows: the same numbers whichever operand comes first, and only a CPU's programs turn them round."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from skipjax.modules import product


@pytest.mark.parametrize("shape", [(1, 5), (3, 5), (2, 4, 5), (65, 5)])
def test_equals_the_matrix_product(shape):
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    weight = np.random.default_rng(1).normal(size=(7, 5)).astype(np.float32)
    np.testing.assert_allclose(jax.jit(product)(x, weight), x @ weight.T, rtol=1e-5, atol=1e-6)


def test_gives_the_dtype_asked_for():
    x, weight = jnp.ones((4, 8), jnp.bfloat16), jnp.ones((3, 8), jnp.bfloat16)
    assert product(x, weight).dtype == jnp.bfloat16
    assert product(x, weight, jnp.float32).dtype == jnp.float32


@pytest.mark.parametrize(("rows", "turned"), [(4, True), (1, False), (100, False)])
def test_few_rows_are_turned_round_on_a_cpu_only(rows, turned):
    traced = jax.jit(product).trace(jnp.ones((rows, 8)), jnp.ones((3, 8)))
    on_cpu = traced.lower(lowering_platforms=("cpu",))
    assert ("optimization_barrier" in on_cpu.as_text()) is turned
    assert "conditional" not in on_cpu.compile().as_text()  # the choice is made when it is compiled
    for accelerator in ("cuda", "tpu"):
        assert "optimization_barrier" not in traced.lower(lowering_platforms=(accelerator,)).as_text()

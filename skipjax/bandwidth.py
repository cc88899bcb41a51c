"""How fast the device reads memory, measured the way decoding reads it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# Far beyond any cache, so that every pass comes from memory: processors have up to tens of megabytes per core complex,
# accelerators about 50. What an accelerator reads in a fraction of a millisecond needs more of it to be timed.
_CPU_BYTES, _ACCELERATOR_BYTES = 2**29, 2**30
_ACCELERATOR_PASSES = 16  # dispatched one behind the other, so that starting them costs nothing


class Bandwidth:
    """Arrays to read and the programs that read them.

    There are two programs, of which the faster is kept: a chain of products of one vector with [out, in] matrices,
    which is what decoding one row is, and the largest element of each matrix. On a CPU the products read float32
    fastest, since XLA hands them to a library that keeps all cores busy; in half precision they are bound by
    arithmetic, and the reduction comes nearer to what memory allows.

    Args:
      dtype: of the arrays.
      nbytes: of all arrays together; chosen by the backend if left out.
    """

    def __init__(self, dtype: Any, nbytes: int | None = None) -> None:
        on_cpu = jax.default_backend() == "cpu"
        itemsize = np.dtype(dtype).itemsize
        size = 2048 if on_cpu else 4096
        total = (_CPU_BYTES if on_cpu else _ACCELERATOR_BYTES) if nbytes is None else nbytes
        self._passes = 1 if on_cpu else _ACCELERATOR_PASSES
        # 1 / size is a power of two: products of such a matrix with ones are ones, in any dtype.
        self._matrices = [jnp.full((size, size), 1 / size, dtype) for _ in range(-(-total // (size * size * itemsize)))]
        self._vector = jnp.ones((1, size), dtype)
        programs = (jax.jit(_products), jax.jit(_largest))
        for program in programs:
            self._seconds(program)  # compiles it
        self._program = min(programs, key=self._seconds)

    @property
    def nbytes(self) -> int:
        """Read by one pass."""
        return sum(matrix.nbytes for matrix in self._matrices)

    def measure(self, repeats: int = 3) -> float:
        """Bytes per second: the fastest of `repeats` timings, since whatever else runs only slows them."""
        return self._passes * self.nbytes / min(self._seconds(self._program) for _ in range(repeats))

    def _seconds(self, program: Any) -> float:
        started, vector = time.perf_counter(), self._vector
        for _ in range(self._passes):
            vector = program(self._matrices, vector)
        jax.block_until_ready(vector)
        return time.perf_counter() - started


def _products(matrices: Sequence[jax.Array], vector: jax.Array) -> jax.Array:
    for matrix in matrices:
        vector = jnp.einsum("bi,oi->bo", vector, matrix)
    return vector


def _largest(matrices: Sequence[jax.Array], vector: jax.Array) -> jax.Array:
    return jnp.maximum(vector, jnp.max(jnp.stack([jnp.max(matrix) for matrix in matrices])))

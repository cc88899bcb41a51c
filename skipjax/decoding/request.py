"""What all ways of decoding take in and hand out."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from skipjax.sampling import SamplingNumbers


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class MethodNumbers:
    """The numbers of a decoding method that may change without compiling anything; float32 scalars.

    Attributes:
      threshold: confidence above which a token exits.
      decay: temperature of CALM's falling threshold; 0 keeps it constant.
      rollback: largest -log p of a token under the deep model that FREE lets stand.
    """

    threshold: jax.Array
    decay: jax.Array
    rollback: jax.Array

    @classmethod
    def of(cls, threshold: float = 1.0, decay: float = 0.0, rollback: float = np.inf) -> MethodNumbers:
        return cls(*(np.asarray(value, np.float32) for value in (threshold, decay, rollback)))  # type: ignore[arg-type]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Request:
    """One batch's dynamic inputs.

    Attributes:
      padding: int32 [B], columns of left padding in each row (of the source, for an encoder-decoder model).
      rows: int32 scalar; rows from this one on only fill up the batch bucket.
      numbers: how to sample.
      method: the method's numbers.
      eos_ids: int32 [number of them, at least 1]; -1 matches no token.
      pad_id: int32 scalar, written after the end of a row.
      limit: int32 scalar, tokens to generate at most; no more than the program has room for.
    """

    padding: jax.Array
    rows: jax.Array
    numbers: SamplingNumbers
    method: MethodNumbers
    eos_ids: jax.Array
    pad_id: jax.Array
    limit: jax.Array

    def ends_text(self, tokens: jax.Array) -> jax.Array:
        """Whether each token (int32, any shape) is an end-of-sequence id: bool of the same shape."""
        return jnp.any(tokens[..., None] == self.eos_ids.reshape((1,) * tokens.ndim + (-1,)), axis=-1)

    def filling(self) -> jax.Array:
        """bool [B], rows that nobody asked for."""
        return jnp.arange(self.padding.shape[0], dtype=jnp.int32) >= self.rows


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A finished batch on the host, filling rows left out.

    Attributes:
      depths: int32 [B, T]; confidences: float32 [B, T], NaN where none. Both still without regard to where rows end.
      steps: decode steps run.
      deep_passes: runs of the deep layers over a buffer; None for methods without.
      deep_positions: per row, positions those runs computed [B]; row_passes: in how many of them the row took part [B].
      drafted: tokens that exited, also those taken back since; None where none can be.
      agreements: int8 [B, T], 1 where the deep layers would have given the exit's token, 0 where another, -1 unknown;
        None where a method never compares.
    """

    depths: np.ndarray
    confidences: np.ndarray
    steps: int
    deep_passes: int | None = None
    deep_positions: np.ndarray | None = None
    row_passes: np.ndarray | None = None
    drafted: int | None = None
    agreements: np.ndarray | None = None

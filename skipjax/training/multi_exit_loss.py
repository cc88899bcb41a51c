"""Multi-exit training: one loss at every layer, the baseline that exits anywhere."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from skipjax.config import ModelConfig
from skipjax.decoder import Params, exit_logits
from skipjax.training.batches import Batch
from skipjax.training.loss import Sums, cross_entropy, number_of_targets, target_states


def exit_weights(num_layers: int) -> np.ndarray:
    """float32 [L]: of the loss after layer i = 1..L, i / (1 + ... + L). Worked: L = 3 gives 1/6, 2/6, 3/6."""
    layers = np.arange(1, num_layers + 1, dtype=np.float32)
    return layers / layers.sum()


@dataclasses.dataclass(frozen=True)
class MultiExitLoss:
    """Cross-entropy after every layer, weighted by `exit_weights` (CALM, arXiv 2207.07061, section 3.2).

    All exits go through the final norm and the LM head that they share.
    """

    def loss(self, config: ModelConfig, params: Params, batch: Batch, *, rematerialise: bool = False) -> Sums:
        states = target_states(config, params, batch, rematerialise=rematerialise)

        # Of the logits [B, T, V] one layer's exist at a time, also in the backward pass, which computes them again.
        @functools.partial(jax.checkpoint, prevent_cse=False)
        def add_exit(total, exit_):
            h, weight = exit_
            logits = exit_logits(config, params, h, config.num_layers)  # the shared head, whatever the layer
            return total + weight * cross_entropy(logits, batch), None

        weights = jnp.asarray(exit_weights(config.num_layers))
        total, _ = jax.lax.scan(add_exit, jnp.zeros((), jnp.float32), (states, weights))
        return total, number_of_targets(batch)

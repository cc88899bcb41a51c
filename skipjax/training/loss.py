"""Next-token loss on the targets, with SkipDecode's depth mask as static slices."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from skipjax.config import ModelConfig
from skipjax.decoder import Params, ends_of, teacher_forced
from skipjax.training.batches import Batch


def target_loss(
    config: ModelConfig, params: Params, batch: Batch, kept: tuple[int, ...], *, rematerialise: bool = False
) -> tuple[jax.Array, jax.Array]:
    """Sum of the cross-entropy over the target tokens of a batch, and their number (float32 scalars).

    Prompt columns run at full depth. Layer l runs on the columns of the first `kept[l]` decode steps only, which equals
    masking with `where` (SkipDecode, arXiv 2307.02628, section 3; `decoder.teacher_forced`), at the cost of decoding.

    Args:
      batch: arrays as in `Batch`, [B, P] prompts and [B, T] targets.
      kept: static, one per layer: `method.plan(num_layers, T - 1).kept` of a resolved method.
      rematerialise: recompute activations in the backward pass.
    """
    prompt_size, target_size = batch.prompts.shape[1], batch.targets.shape[1]
    padding = jnp.asarray(batch.padding)
    tokens = jnp.concatenate([batch.prompts, batch.targets[:, :-1]], axis=1)
    columns = tuple(prompt_size + steps for steps in kept)
    h = teacher_forced(config, params, tokens, padding, columns, rematerialise=rematerialise)
    logits = ends_of(config, params).logits(h[:, prompt_size - 1 :])
    chosen = jnp.take_along_axis(logits, batch.targets[:, :, None], axis=-1)[:, :, 0]
    losses = jax.nn.logsumexp(logits, axis=-1) - chosen
    real = jnp.arange(target_size, dtype=jnp.int32)[None, :] < batch.lengths[:, None]
    return jnp.sum(jnp.where(real, losses, 0.0)), jnp.sum(real, dtype=jnp.float32)


def in_dtype(params: Params, dtype: Any) -> Params:
    """The parameters cast for computing; float32 masters stay with the caller, and gradients come back in float32."""
    return jax.tree.map(lambda leaf: leaf.astype(dtype), params)

"""What a step minimises: the objective's interface, what all objectives share, and next-token losses.

An objective is a small frozen dataclass, static under `jax.jit`. It gives sums over the real target tokens of a batch
and the number of these, so that a batch in parts gives the loss of the whole. Every other meaning of "loss" has a file
of its own: `free_loss`, `multi_exit_loss`, `heads_loss`.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from skipjax.config import ModelConfig
from skipjax.decoder import (
    Memory,
    Params,
    decoder_prompt,
    encode,
    ends_of,
    exit_logits,
    hidden_states,
    teacher_forced,
)
from skipjax.methods import Full, SkipDecode
from skipjax.training.batches import Batch

Sums = tuple[jax.Array, jax.Array]  # (sum of the loss over real target tokens, their number), float32 scalars


class Objective(Protocol):
    """What a step minimises; hashable."""

    def loss(self, config: ModelConfig, params: Params, batch: Batch, *, rematerialise: bool = False) -> Sums:
        """Traced. `batch` holds arrays as in `Batch`, [B, P] prompts and [B, T] targets; `rematerialise` recomputes
        activations in the backward pass."""


def in_dtype(params: Params, dtype: Any) -> Params:
    """The parameters cast for computing; float32 masters stay with the caller, and gradients come back in float32."""
    return jax.tree.map(lambda leaf: leaf.astype(dtype), params)


class Inputs(NamedTuple):
    """What the decoder reads of a batch; from its column prompt_size - 1 on, column by column, it predicts the targets.

    Attributes:
      tokens: int32 [B, prompt_size + T - 1], the decoder's prompt and then the targets but for the last.
      padding: int32 [B], padded columns at the left.
      memory: of the encoder, which reads the prompts; None for a decoder-only model.
      prompt_size: static, columns of the decoder's prompt: P, or the 1 of the start token after an encoder.
    """

    tokens: jax.Array
    padding: jax.Array
    memory: Memory | None
    prompt_size: int


def decoder_inputs(config: ModelConfig, params: Params, batch: Batch, *, rematerialise: bool = False) -> Inputs:
    prompts, padding, memory = jnp.asarray(batch.prompts), jnp.asarray(batch.padding), None
    if config.encoder_layers is not None:
        memory = encode(config, params, prompts, padding, rematerialise=rematerialise)
    prompts, padding = decoder_prompt(config, prompts, padding)
    tokens = jnp.concatenate([prompts, batch.targets[:, :-1]], axis=1)
    return Inputs(tokens, padding, memory, prompts.shape[1])


def target_states(config: ModelConfig, params: Params, batch: Batch, *, rematerialise: bool = False) -> jax.Array:
    """States after every layer at full depth, before any norm, in the columns that predict targets: [L, B, T, D]."""
    tokens, padding, memory, prompt_size = decoder_inputs(config, params, batch, rematerialise=rematerialise)
    states = hidden_states(config, params, tokens, padding, memory=memory, rematerialise=rematerialise)
    return states[:, :, prompt_size - 1 :]


def real_targets(batch: Batch) -> jax.Array:
    """bool [B, T], False on padding."""
    return jnp.arange(batch.targets.shape[1], dtype=jnp.int32)[None, :] < batch.lengths[:, None]


def sum_over_real(values: jax.Array, batch: Batch) -> jax.Array:
    """Sum of float32 values [B, T] where the target token is real."""
    return jnp.sum(jnp.where(real_targets(batch), values, 0.0))


def number_of_targets(batch: Batch) -> jax.Array:
    return jnp.sum(real_targets(batch), dtype=jnp.float32)


def cross_entropy(logits: jax.Array, batch: Batch) -> jax.Array:
    """Sum over the real target tokens, of logits float32 [B, T, V]."""
    return sum_over_real(target_nats(logits, batch), batch)


def target_nats(logits: jax.Array, batch: Batch) -> jax.Array:
    """-log p of each target token, float32 [B, T], also where it is padding; logits float32 [B, T, V]."""
    chosen = jnp.take_along_axis(logits, batch.targets[:, :, None], axis=-1)[:, :, 0]
    return jax.nn.logsumexp(logits, axis=-1) - chosen


def target_logits(
    config: ModelConfig, params: Params, batch: Batch, method: Full | SkipDecode, *, rematerialise: bool = False
) -> jax.Array:
    """float32 logits [B, T, V] that predict the targets, at the depths of a resolved method (static)."""
    tokens, padding, memory, prompt_size = decoder_inputs(config, params, batch, rematerialise=rematerialise)
    kept = method.plan(config.num_layers, batch.targets.shape[1] - 1).kept
    columns = tuple(prompt_size + steps for steps in kept)
    h = teacher_forced(config, params, tokens, padding, columns, memory=memory, rematerialise=rematerialise)
    return ends_of(config, params).logits(h[:, prompt_size - 1 :])


@dataclasses.dataclass(frozen=True)
class NextToken:
    """Cross-entropy of the targets, each layer run on the columns that it will see when decoding with `method`.

    Prompt columns run at full depth. Layer l runs on the columns of the first `kept[l]` decode steps only, which equals
    masking with `where` (SkipDecode, arXiv 2307.02628, section 3; `decoder.teacher_forced`), at the cost of decoding.
    The prompt of an encoder-decoder model's decoder is its start token.

    Attributes:
      method: resolved.
    """

    method: Full | SkipDecode

    def __str__(self) -> str:
        return str(self.method)

    def loss(self, config: ModelConfig, params: Params, batch: Batch, *, rematerialise: bool = False) -> Sums:
        logits = target_logits(config, params, batch, self.method, rematerialise=rematerialise)
        return cross_entropy(logits, batch), number_of_targets(batch)


@dataclasses.dataclass(frozen=True)
class ExitToken:
    """Cross-entropy of the targets at the exit after `layer` layers; the layers above it are not run."""

    layer: int

    def loss(self, config: ModelConfig, params: Params, batch: Batch, *, rematerialise: bool = False) -> Sums:
        tokens, padding, memory, prompt_size = decoder_inputs(config, params, batch, rematerialise=rematerialise)
        h = bottom_states(config, params, tokens, padding, self.layer, memory, rematerialise=rematerialise)
        logits = exit_logits(config, params, h[:, prompt_size - 1 :], self.layer)
        return cross_entropy(logits, batch), number_of_targets(batch)


def bottom_states(
    config: ModelConfig,
    params: Params,
    tokens: jax.Array,
    padding: jax.Array,
    layers: int,
    memory: Memory | None,
    *,
    rematerialise: bool = False,
) -> jax.Array:
    """States [B, C, D] after the first `layers` layers (static), before any norm: teacher forcing in a model that ends
    there."""
    stack = params["layers"]
    cut = stack[:layers] if isinstance(stack, list) else jax.tree.map(lambda leaf: leaf[:layers], stack)
    shallow = dataclasses.replace(config, num_layers=layers, exit_heads=None)
    columns = (tokens.shape[1],) * layers
    return teacher_forced(
        shallow, {**params, "layers": cut}, tokens, padding, columns, memory=memory, rematerialise=rematerialise
    )

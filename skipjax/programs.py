"""The two jitted programs of a generation: everything up to the first decode step, and all decode steps.

Static: the config, the strategy (method, lengths), the execution, and the shapes (batch bucket, prompt bucket).
Dynamic: weights, tokens, padding, sampling numbers, seed, thresholds, end-of-sequence ids and where to stop.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from skipjax import decoder
from skipjax.attention import attention
from skipjax.cache import KVCache
from skipjax.config import ModelConfig
from skipjax.decoder import Params
from skipjax.decoding.cached_decoder import CachedDecoder, Source, remember
from skipjax.decoding.request import Request
from skipjax.decoding.strategy import Start, Strategy
from skipjax.plan import Range, layer_groups
from skipjax.sampling import next_tokens


@functools.partial(jax.jit, static_argnames=("config", "strategy"))
def prefill(
    config: ModelConfig, strategy: Strategy, params: Params, prompts: jax.Array, request: Request
) -> tuple[Source | None, Any]:
    """Runs the prompts: a decoder-only model's at full depth, filling the cache of the layers that decode steps use;
    of an encoder-decoder model the encoder, and the start token where it does not count as an ordinary step.

    Args:
      prompts: int32 [B, P], left-padded.
    Returns:
      what decoding reads of a source (None without an encoder), and the strategy's state before the first decode step.
    """
    prompt, padding = decoder.decoder_prompt(config, prompts, request.padding)
    lengths = strategy.cache_lengths(prompt.shape[1])
    memory, source = None, None
    if config.encoder_layers is not None:
        memory = decoder.encode(config, params, prompts, request.padding)
        source = Source(remember(config, params, memory.states, tuple(n > 0 for n in lengths)), memory.allowed)
    dtype = params["ends"]["tokens"].dtype
    stacked = decoder.execution_of(params) == "scanned"
    cache = KVCache.zeros(lengths, prompt.shape[0], config.num_kv_heads, config.head_size, dtype, stacked)
    keys, first = request.numbers.keys(), None
    states: tuple[jax.Array, ...] = ()
    ranges = strategy.prompt_ranges(has_encoder=config.encoder_layers is not None)
    if ranges:
        states, cache = _run_prompt(config, params, prompt, padding, ranges, cache, memory)
        logits = decoder.exit_logits(config, params, states[-1], ranges[-1][1])
        first = next_tokens(logits, request.numbers, keys, jnp.int32(0))
    cached = CachedDecoder(config, params, padding, source)
    return source, strategy.begin(cached, Start(cache, keys, first, states), request)


def _run_prompt(
    config: ModelConfig,
    params: Params,
    prompt: jax.Array,
    padding: jax.Array,
    ranges: tuple[Range, ...],
    cache: KVCache,
    memory: decoder.Memory | None,
) -> tuple[tuple[jax.Array, ...], KVCache]:
    """The last column's state [B, D] after each of `ranges`, and the cache with the prompt's keys and values in layers
    that keep any."""
    h, rotation, allowed, bias = decoder.embed_columns(config, params, prompt, padding)
    recall = decoder.recall_from(config, memory)
    attend = functools.partial(attention, allowed=allowed, layout="bskh", scaled=config.scale_attention, bias=bias)

    def attend_and_keep(cache, layer):
        return lambda q, k, v: (attend(q, k, v), cache.write(layer, 0, k, v))

    def attend_only(cache, layer):
        return lambda q, k, v: (attend(q, k, v), cache)

    states = []
    for begin, end in ranges:
        for (first, last), kept in layer_groups([n > 0 for n in cache.lengths[begin:end]]):
            how = attend_and_keep if kept else attend_only
            layers = params["layers"]
            h, cache = decoder.run_layers(
                config, layers, begin + first, begin + last, h, rotation, how, cache, recall=recall
            )
        states.append(h[:, -1])
    return tuple(states), cache


@functools.partial(jax.jit, static_argnames=("config", "strategy", "prompt_length"), donate_argnames=("state",))
def decode(
    config: ModelConfig,
    strategy: Strategy,
    prompt_length: int,
    params: Params,
    source: Source | None,
    state: Any,
    request: Request,
    stop: jax.Array,
) -> Any:
    """Decodes until `stop` tokens (int32 scalar) of every row stand, or all rows have finished. `state` is donated, so
    that cache and tokens are updated in place.

    Args:
      prompt_length: P, columns of `prefill`'s prompts.
    """
    padding = request.padding
    if config.encoder_layers is not None:
        prompt_length, padding = 1, jnp.zeros_like(padding)
    cached = CachedDecoder(config, params, padding, source)
    return strategy.advance(cached, prompt_length, state, request, stop)

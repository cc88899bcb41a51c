"""Generation and training compiled for a TPU without one: what the programs take, from XLA's own account.

Nothing is run and no weights are made. libtpu holds the compiler; everything else happens on the CPU.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import os
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from skipjax import decoder, programs
from skipjax.bench import Workload
from skipjax.cache import KVCache
from skipjax.config import ModelConfig
from skipjax.decoding.scheduled import Scheduled
from skipjax.decoding.strategy import Strategy
from skipjax.generation import make_request
from skipjax.hlo_traffic import Program
from skipjax.methods import Free, Full, Method, SkipDecode
from skipjax.prompts import bucket, pad_left
from skipjax.sampling import Sampling
from skipjax.traffic import DecodeTraffic, nbytes

# libtpu asks the cloud's metadata server about the machine it expects to run on, unless it is told.
_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # no chip is used, so that several processes may compile at once
}


def tpu(topology: str) -> Any:
    """One device of a TPU topology such as "v5e:2x2", for `jax.sharding.SingleDeviceSharding`; it can compile only.

    Raises ValueError if libtpu is not installed or knows no such topology.
    """
    if importlib.util.find_spec("libtpu") is None:
        raise ValueError("compiling for a TPU needs libtpu, which is not installed: pip install 'skipjax[tpu]'")
    from jax.experimental import topologies

    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        return topologies.get_topology_desc(platform="tpu", topology_name=topology).devices[0]
    except jax.errors.JaxRuntimeError as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"topology must be one that libtpu knows, such as v5e:2x2 or v6e:2x2, got {topology!r} ({reason:.200})"
        ) from error


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes(Workload):
    """What a program is compiled for.

    Attributes:
      batch_size, prompt_length: rows, and tokens of each prompt (of each source, for an encoder-decoder model).
      max_new_tokens: tokens to generate, or of each target.
      dtype: of the weights; in training, whose weights are float32, of the arithmetic.
    """

    batch_size: int = 8
    prompt_length: int = 384
    max_new_tokens: int = 128
    dtype: Any = jnp.bfloat16

    def in_buckets(self) -> Sizes:
        """Batch size and prompt length rounded up as `skipjax.generate` does."""
        return dataclasses.replace(
            self, batch_size=bucket(self.batch_size, 1), prompt_length=bucket(self.prompt_length, 16)
        )


@dataclasses.dataclass(frozen=True)
class CompiledProgram:
    """What one program takes of a device's memory, in bytes.

    Attributes:
      name: "prefill", "decode" or "train step".
      compile_seconds: of XLA, tracing left out.
      needed: what has to be there, unpadded: weights and the plan's cache of a generation (decode alone is given no
        encoder's weights), or the state of training.
      arguments: what it is given, as laid out on the device.
      temporaries: the most that it needs besides.
      outputs: what it returns; aliased: those of them that take the place of arguments.
    """

    name: str
    compile_seconds: float
    needed: int
    arguments: int
    temporaries: int
    outputs: int
    aliased: int

    @property
    def ratio(self) -> float:
        """(arguments + temporaries) / needed."""
        return (self.arguments + self.temporaries) / self.needed


@dataclasses.dataclass(frozen=True)
class SegmentTraffic:
    """Bytes that one decode step of a plan's segment moves to and from main memory.

    Attributes:
      depth: layers it runs.
      first_step, last_step: of the segment, the last one excluded.
      counted: read and written, from the program's HLO.
      ideal: what a step must read (`skipjax.traffic`), mean over the segment's steps.
    """

    depth: int
    first_step: int
    last_step: int
    counted: int
    ideal: float

    @property
    def ratio(self) -> float:
        return self.counted / self.ideal


@dataclasses.dataclass(frozen=True)
class CompiledGeneration:
    """Both programs of a generation.

    Attributes:
      weights, cache: bytes of the parameters, and of what the plan's layers keep, both unpadded.
      prefill, decode: the programs.
      segments: bytes per decode step; empty for methods whose depth is not a function of the step.
    """

    weights: int
    cache: int
    prefill: CompiledProgram
    decode: CompiledProgram
    segments: tuple[SegmentTraffic, ...]


def compile_generation(config: ModelConfig, method: Method, device: Any, sizes: Sizes) -> CompiledGeneration:
    """Compiles what `skipjax.generate` would run on `device` (from `tpu`), with scanned layers.

    Batch size and prompt length are rounded up to their buckets, as there.
    Raises ValueError for a method or sizes that do not fit the model.
    """
    method.check(config)
    sizes.check(config)
    method, sizes = method.resolve(sizes.max_new_tokens), sizes.in_buckets()
    place = functools.partial(_abstract, device)
    params = place(decoder.abstract_params(config, sizes.dtype, "scanned"))
    strategy, (prefill, decode) = lower_generation(config, method, params, sizes, place)
    source, state = prefill.out_info
    weights = nbytes(params)
    cache = _kept_bytes(config, state.cache) + (0 if source is None else _kept_bytes(config, source.memory))
    of_prefill, _ = _compiled("prefill", prefill, weights + cache)
    of_decode, executable = _compiled("decode", decode, weights + cache)
    segments: list[SegmentTraffic] = []
    if isinstance(strategy, Scheduled):
        traffic = DecodeTraffic(config, sizes.dtype, sizes.batch_size, sizes.prompt_length)
        steps = Program(executable.as_text()).loop_step_bytes()
        for segment, counted in zip(strategy.plan.segments, steps, strict=True):
            ideal = traffic.segment(segment).total / (segment.last_step - segment.first_step)
            segments.append(SegmentTraffic(segment.depth, segment.first_step, segment.last_step, counted, ideal))
    return CompiledGeneration(weights, cache, of_prefill, of_decode, tuple(segments))


def lower_generation(
    config: ModelConfig, method: Method, params: Any, sizes: Sizes, place: Callable[[Any], Any]
) -> tuple[Strategy, tuple[Any, Any]]:
    """The strategy of a resolved method, and its two programs traced for `params` and prompts of exactly these sizes;
    `place` puts their arguments where the programs are for."""
    strategy = method.strategy(config.num_layers, sizes.max_new_tokens)
    prompts, padding = pad_left([[0] * sizes.prompt_length] * sizes.batch_size, 0)
    rows = [[0]] * sizes.batch_size
    request = place(make_request(config, rows, padding, Sampling(), method, sizes.max_new_tokens, False))
    prefill = programs.prefill.lower(config, strategy, params, place(prompts), request)
    stop = place(np.int32(sizes.max_new_tokens))
    source, state = place(prefill.out_info)
    decode = programs.decode.lower(config, strategy, prompts.shape[1], params, source, state, request, stop)
    return strategy, (prefill, decode)


def compile_training(
    config: ModelConfig, method: Method, device: Any, sizes: Sizes, *, rematerialise: bool = False
) -> CompiledProgram:
    """Compiles one update of fine-tuning for `method` (full depth, SkipDecode or FREE) on `device` (from `tpu`): AdamW,
    scanned layers, float32 parameters.

    Raises ValueError for other methods, and for a method or sizes that do not fit the model.
    """
    from skipjax.training.batches import Batch
    from skipjax.training.free_loss import FreeLoss
    from skipjax.training.loss import NextToken, Objective
    from skipjax.training.optimizer import OptimizerSettings
    from skipjax.training.step import StepOptions, initial_state, train_step

    method.check(config)
    sizes.check(config)
    method = method.resolve(sizes.max_new_tokens)
    objective: Objective
    if isinstance(method, Full | SkipDecode):
        objective = NextToken(method)
    elif isinstance(method, Free):
        objective = FreeLoss(method.shallow_layers)
    else:
        raise ValueError(f"training is compiled for full depth, SkipDecode and FREE, got {method!r}")
    settings = OptimizerSettings(learning_rate=1e-4, steps=1000)
    params = decoder.abstract_params(config, jnp.float32, "scanned")
    place = functools.partial(_abstract, device)
    state = place(jax.eval_shape(functools.partial(initial_state, settings=settings), params))
    batch = Batch(
        prompts=np.zeros((sizes.batch_size, sizes.prompt_length), np.int32),
        targets=np.zeros((sizes.batch_size, sizes.max_new_tokens), np.int32),
        padding=np.zeros(sizes.batch_size, np.int32),
        lengths=np.zeros(sizes.batch_size, np.int32),
    )
    options = StepOptions(config, objective, np.dtype(sizes.dtype).name, rematerialise)
    return _compiled("train step", train_step.lower(state, place(batch), options, settings), nbytes(state))[0]


def _compiled(name: str, lowered: Any, needed: int) -> tuple[CompiledProgram, Any]:
    started = time.perf_counter()
    executable = lowered.compile()
    seconds = time.perf_counter() - started
    memory = executable.memory_analysis()
    sizes = (
        memory.argument_size_in_bytes,
        memory.temp_size_in_bytes,
        memory.output_size_in_bytes,
        memory.alias_size_in_bytes,
    )
    return CompiledProgram(name, seconds, needed, *sizes), executable


def _kept_bytes(config: ModelConfig, cache: KVCache) -> int:
    """Of the slots that the layers keep, without what their arrays are rounded up by."""
    position = cache.keys.shape[0] * config.num_kv_heads * config.head_size * cache.keys.dtype.itemsize
    return 2 * sum(cache.lengths) * position


def _abstract(device: Any, tree: Any) -> Any:
    """Shapes and dtypes of a tree's arrays, on the device."""
    sharding = jax.sharding.SingleDeviceSharding(device)
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), tree)

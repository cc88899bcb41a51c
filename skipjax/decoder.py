"""Pure functions over a model's parameters: make them, run ranges of layers, teacher forcing.

Parameters are a plain pytree: {"ends": {...}, "layers": ...}. "layers" is a list of one tree per layer (execution
"unrolled") or one tree whose arrays have a leading layer axis ("scanned"). An encoder-decoder model has a second such
pair under "encoder", exits with parameters of their own one tree each under "exits", by layer. The flax.nnx modules are
merged with them at the top of each traced function and gone when it ends.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from skipjax import modules
from skipjax.attention import attention, causal
from skipjax.config import ModelConfig
from skipjax.plan import layer_groups

Params = dict[str, Any]
Execution = Literal["unrolled", "scanned"]


@functools.cache
def _definition(kind: type[nnx.Module], config: ModelConfig) -> tuple[Any, Any]:
    """Static graph and abstract float32 parameters of a module."""
    graph, state = nnx.split(nnx.eval_shape(lambda: kind(config, rngs=nnx.Rngs(0))))  # type: ignore[call-arg]
    return graph, nnx.to_pure_dict(state)


def abstract_params(config: ModelConfig, dtype: Any = jnp.float32, execution: Execution = "unrolled") -> Params:
    """Shapes and dtypes of the parameters, as `jax.ShapeDtypeStruct`s."""

    def shaped(kind, config, leading=()):
        tree = _definition(kind, config)[1]
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((*leading, *leaf.shape), dtype), tree)

    def layers(config):
        if execution == "scanned":
            return shaped(modules.Block, config, (config.num_layers,))
        return [shaped(modules.Block, config) for _ in range(config.num_layers)]

    params = {"ends": shaped(modules.Ends, config), "layers": layers(config)}
    if config.encoder_layers is not None:
        encoder = config.encoder
        params["encoder"] = {"ends": shaped(modules.EncoderEnds, encoder), "layers": layers(encoder)}
    if config.exit_heads is not None:
        params["exits"] = {str(layer): shaped(modules.ExitHead, config) for layer in config.exit_heads.layers}
    return params


@functools.partial(jax.jit, static_argnums=(0, 2))
def init_params(config: ModelConfig, seed: int | jax.Array, dtype: Any = jnp.float32) -> Params:
    """Fresh random parameters (unrolled), normal with standard deviation 0.02, smaller before each residual sum,
    or as T5 draws them (`skipjax.modules.initial_scale`)."""

    def drawn(kind, config, key):
        module = kind(config, rngs=nnx.Rngs(key))
        return jax.tree.map(lambda leaf: leaf.astype(dtype), nnx.to_pure_dict(nnx.split(module)[1]))

    def stack(kind, config, key):
        ends_key, *layer_keys = jax.random.split(key, config.num_layers + 1)
        layers = [drawn(modules.Block, config, layer_key) for layer_key in layer_keys]
        return {"ends": drawn(kind, config, ends_key), "layers": layers}

    key = jax.random.key(seed)
    params = stack(modules.Ends, config, key)
    if config.encoder_layers is not None:
        params["encoder"] = stack(modules.EncoderEnds, config.encoder, jax.random.fold_in(key, 1))
    if config.exit_heads is not None:
        params["exits"] = init_exits(config, jax.random.fold_in(key, 2), params["ends"], dtype)
    return params


def init_exits(config: ModelConfig, key: jax.Array, ends: Params, dtype: Any) -> Params:
    """Parameters for `config.exit_heads` under which every exit computes what the shared head does; `ends` are those
    whose final norm they start from."""
    assert config.exit_heads is not None
    exits = {}
    for layer in config.exit_heads.layers:
        module = modules.ExitHead(config, rngs=nnx.Rngs(jax.random.fold_in(key, layer)))
        tree = jax.tree.map(lambda leaf: leaf.astype(dtype), nnx.to_pure_dict(nnx.split(module)[1]))
        if "norm" in tree:
            tree["norm"] = jax.tree.map(lambda leaf: leaf.astype(dtype), ends["final_norm"])
        exits[str(layer)] = tree
    return exits


def execution_of(params: Params) -> Execution:
    return "unrolled" if isinstance(params["layers"], list) else "scanned"


def stack_layers(params: Params) -> Params:
    """The parameters in scanned form. Empties the given lists of layers array by array, so that at no time two copies
    of all weights exist."""
    stacked = {**params, "layers": _stacked(params["layers"])}
    if "encoder" in params:
        stacked["encoder"] = {**params["encoder"], "layers": _stacked(params["encoder"]["layers"])}
    return stacked


def _stacked(layers: list[Any]) -> Any:
    structure: Any = jax.tree.structure(layers[0])
    columns = [jax.tree.leaves(layer) for layer in layers]
    layers.clear()
    stacked = []
    for index in range(structure.num_leaves):
        stacked.append(jnp.stack([column[index] for column in columns]))
        for column in columns:
            column[index] = None
    return jax.tree.unflatten(structure, stacked)


def unstack_layers(params: Params) -> Params:
    """The parameters in unrolled form; inverse of `stack_layers`."""

    def apart(layers):
        count = jax.tree.leaves(layers)[0].shape[0]
        return [jax.tree.map(lambda leaf, i=index: leaf[i], layers) for index in range(count)]

    apart_params = {**params, "layers": apart(params["layers"])}
    if "encoder" in params:
        apart_params["encoder"] = {**params["encoder"], "layers": apart(params["encoder"]["layers"])}
    return apart_params


def ends_of(config: ModelConfig, params: Params) -> modules.Ends:
    """The embedding, final norm and head, ready to call inside a traced function."""
    return nnx.merge(_definition(modules.Ends, config)[0], params["ends"])


def exit_head_of(config: ModelConfig, params: Params, layer: int) -> modules.ExitHead | None:
    """What the exit after `layer` layers has of its own, or None."""
    if config.exit_heads is None or layer not in config.exit_heads.layers:
        return None
    return nnx.merge(_definition(modules.ExitHead, config)[0], params["exits"][str(layer)])


def exit_logits(config: ModelConfig, params: Params, h: jax.Array, layer: int) -> jax.Array:
    """float32 logits [..., V] of h [..., D] after `layer` layers (static): by the exit's own head if it has one, by the
    final norm and LM head otherwise and after the last layer."""
    ends, head = ends_of(config, params), exit_head_of(config, params, layer)
    return ends.head_logits(ends.normed(h) if head is None else head.normed(h, ends))


def rotation_at(config: ModelConfig, positions: jax.Array) -> modules.Rotation | None:
    return None if config.rope is None else modules.rotation(config.rope, config.head_size, positions)


class Memory(NamedTuple):
    """What the decoder of an encoder-decoder model sees of a source.

    Attributes:
      states: [B, S, D], the encoder's output.
      allowed: bool [B, 1, S], False on padding.
    """

    states: jax.Array
    allowed: jax.Array


def run_layers(
    config: ModelConfig,
    layers: Any,
    first: int,
    last: int,
    h: jax.Array,
    rotation: modules.Rotation | None,
    attend: Callable[[Any, Any], modules.Attend],
    carry: Any,
    *,
    recall: Callable[[Any], modules.Recall] | None = None,
    rematerialise: bool = False,
    keep_all: bool = False,
) -> tuple[jax.Array, Any]:
    """Runs layers [first, last) (static) on h [B, T, D].

    `attend(carry, layer)` gives the attention of one layer; what that carries out is the next `carry` (a cache).
    `recall(layer)` gives its cross-attention. With carry None the run keeps nothing and can be differentiated in either
    execution. `rematerialise` recomputes activations in the backward pass instead of keeping them. `keep_all`, only
    with carry None, returns the states after each layer [last - first, B, T, D] in place of the last.
    """
    graph = _definition(modules.Block, config)[0]

    def run_block(layer_params, layer, h, carry):
        block = nnx.merge(graph, layer_params)
        return block(h, rotation, attend(carry, layer), None if recall is None else recall(layer))

    if rematerialise:
        run_block = jax.checkpoint(run_block, static_argnums=(1,) if isinstance(layers, list) else ())
    if isinstance(layers, list):
        kept = []
        for layer in range(first, last):
            h, carry = run_block(layers[layer], layer, h, carry)
            kept.append(h)
        return (jnp.stack(kept) if keep_all else h), carry
    if first >= last:
        return h, carry
    if carry is None:
        # Differentiable: layers as scan inputs, so that each layer's gradient lands in its own slice.
        sliced = jax.tree.map(lambda leaf: leaf[first:last], layers)

        def scan_body(h, layer_params):
            h = run_block(layer_params, 0, h, None)[0]
            return h, h if keep_all else None

        h, states = jax.lax.scan(scan_body, h, sliced)
        return (states if keep_all else h), None

    # Generation: index the stacked weights inside the loop. Scan inputs would be copied out of the stack first.
    def loop_body(layer, state):
        layer_params = jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, layer, keepdims=False), layers)
        return run_block(layer_params, layer, *state)

    return jax.lax.fori_loop(first, last, loop_body, (h, carry))


def encode(
    config: ModelConfig, params: Params, tokens: jax.Array, padding: jax.Array, *, rematerialise: bool = False
) -> Memory:
    """Runs the encoder over left-padded sources: tokens int32 [B, S], padding int32 [B] -> `Memory`."""
    encoder, weights = config.encoder, params["encoder"]
    ends = nnx.merge(_definition(modules.EncoderEnds, encoder)[0], weights["ends"])
    columns = jnp.arange(tokens.shape[1], dtype=jnp.int32)
    positions = jnp.maximum(columns[None] - padding[:, None], 0)
    h = ends_of(config, params).embed(tokens, positions)
    allowed = columns[None, None, :] >= padding[:, None, None]
    bias = None
    if ends.relative_bias is not None and encoder.relative is not None:
        table = ends.relative_bias[...]
        bias = modules.relative_bias(table, encoder.relative, columns[None], columns, both_ways=True)

    attend, rotation, layers = _attend_fresh(config, allowed, bias), rotation_at(encoder, positions), weights["layers"]
    h, _ = run_layers(encoder, layers, 0, encoder.num_layers, h, rotation, attend, None, rematerialise=rematerialise)
    return Memory(ends.final_norm(h), allowed)


def block_of(config: ModelConfig, params: Params, layer: Any) -> modules.Block:
    """One layer of the decoder, ready to call in a traced function; `layer` may be traced where layers are stacked."""
    layers = params["layers"]
    weights = layers[layer] if isinstance(layers, list) else jax.tree.map(lambda leaf: leaf[layer], layers)
    return nnx.merge(_definition(modules.Block, config)[0], weights)


def recall_from(config: ModelConfig, memory: Memory | None) -> Callable[[Any], modules.Recall] | None:
    """Cross-attention that projects the encoder's states anew in every layer, as teacher forcing does."""
    if memory is None:
        return None

    def recall(cross, query):
        keys, values = cross.keys_and_values(memory.states)
        return attention(query, keys, values, memory.allowed, "bskh", scaled=config.scale_attention)

    return lambda layer: recall


def decoder_bias(config: ModelConfig, params: Params, queries: jax.Array, length: int) -> jax.Array | None:
    """Relative position bias float32 [B or 1, N, T, S] of queries in columns int32 [B or 1, T] for the first `length`
    columns; None where the model has none."""
    if config.relative is None:
        return None
    columns = jnp.arange(length, dtype=jnp.int32)
    return modules.relative_bias(params["ends"]["relative_bias"], config.relative, queries, columns, both_ways=False)


class Columns(NamedTuple):
    """A left-padded batch before the decoder's first layer, and what all its layers share.

    Attributes:
      h: [B, C, D], embedded tokens.
      rotation: of their positions; None without rotary embedding.
      allowed: bool [B, C, C], causal.
      bias: float32 [1, N, C, C], relative position bias; None where there is none.
    """

    h: jax.Array
    rotation: modules.Rotation | None
    allowed: jax.Array
    bias: jax.Array | None


def embed_columns(config: ModelConfig, params: Params, tokens: jax.Array, padding: jax.Array) -> Columns:
    """tokens int32 [B, C] with `padding` (int32 [B]) columns at the left of each row."""
    total = tokens.shape[1]
    columns = jnp.arange(total, dtype=jnp.int32)[None]
    positions = jnp.maximum(columns - padding[:, None], 0)
    return Columns(
        h=ends_of(config, params).embed(tokens, positions),
        rotation=rotation_at(config, positions),
        allowed=causal(padding, total),
        bias=decoder_bias(config, params, columns, total),
    )


def decoder_prompt(config: ModelConfig, prompts: jax.Array, padding: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The columns int32 [B, P] that the decoder begins with, and their padding int32 [B]: the prompts, or where those
    go to an encoder the start token."""
    if config.encoder_layers is None:
        return prompts, padding
    assert config.start_id is not None, "an encoder-decoder model has a start token"
    return jnp.full((prompts.shape[0], 1), config.start_id, jnp.int32), jnp.zeros_like(padding)


def teacher_forced(
    config: ModelConfig,
    params: Params,
    tokens: jax.Array,
    padding: jax.Array,
    columns: tuple[int, ...],
    *,
    memory: Memory | None = None,
    rematerialise: bool = False,
) -> jax.Array:
    """Hidden states after the last layer for a whole left-padded batch, each layer run on a prefix of the columns only.

    `h[l + 1] = where(active[l], block_l(h[l]), h[l])`, SkipDecode's mask in training, equals cached decoding: active
    columns never read the keys of inactive ones. Since layers that skip are nested, the active columns of a layer
    are a prefix, so a static slice does the work of the `where` and skipped columns cost nothing.

    Args:
      tokens: int32 [B, C].
      padding: int32 [B], padded columns at the left of each row.
      columns: static, one per layer: how many leading columns it runs on; after a drop never falls again.
      memory: of the encoder, for an encoder-decoder model.
    Returns:
      h [B, C, D], before the final norm.
    """
    total = tokens.shape[1]
    h, turned, allowed, bias = embed_columns(config, params, tokens, padding)
    waiting = h[:, total:]  # columns that later layers take up again, with the state the last active layer gave them
    groups = layer_groups(columns)
    pieces = _cut_layers(params["layers"], [last for (_, last), _ in groups])
    for ((first, last), length), layers in zip(groups, pieces, strict=True):
        active = h.shape[1]
        if length < active:
            waiting = jnp.concatenate([h[:, length:], waiting], axis=1)
            h = h[:, :length]
        elif length > active:
            h = jnp.concatenate([h, waiting[:, : length - active]], axis=1)
            waiting = waiting[:, length - active :]
        part = None if turned is None else (turned[0][:, :length], turned[1][:, :length])
        near = None if bias is None else bias[:, :, :length, :length]
        attend = _attend_fresh(config, allowed[:, :length, :length], near)
        recall = recall_from(config, memory)
        h, _ = run_layers(
            config, layers, 0, last - first, h, part, attend, None, recall=recall, rematerialise=rematerialise
        )
    return jnp.concatenate([h, waiting], axis=1)


def hidden_states(
    config: ModelConfig,
    params: Params,
    tokens: jax.Array,
    padding: jax.Array,
    *,
    memory: Memory | None = None,
    rematerialise: bool = False,
) -> jax.Array:
    """States after every layer at full depth, [L, B, C, D], before any norm. Arguments as in `teacher_forced`."""
    h, turned, allowed, bias = embed_columns(config, params, tokens, padding)
    attend, recall = _attend_fresh(config, allowed, bias), recall_from(config, memory)
    layers, count = params["layers"], config.num_layers
    states, _ = run_layers(
        config, layers, 0, count, h, turned, attend, None, recall=recall, rematerialise=rematerialise, keep_all=True
    )
    return states


def _attend_fresh(
    config: ModelConfig, allowed: jax.Array, bias: jax.Array | None
) -> Callable[[Any, Any], modules.Attend]:
    """Attention to the keys and values just computed, without a cache."""

    def attend(carry, layer):
        return lambda q, k, v: (
            attention(q, k, v, allowed, "bskh", scaled=config.scale_attention, bias=bias),
            carry,
        )

    return attend


def _cut_layers(layers: Any, ends: list[int]) -> list[Any]:
    """The layers in consecutive groups that end before layers `ends`. Stacked arrays are split all at once, since the
    gradient of a split is one concatenation, and that of many slices a sum of many whole arrays."""
    if isinstance(layers, list):
        return [layers[first:last] for first, last in zip([0, *ends], ends, strict=False)]
    split = jax.tree.map(lambda leaf: jnp.split(leaf, ends[:-1]), layers)
    return [jax.tree.map(lambda _, parts, i=i: parts[i], layers, split) for i in range(len(ends))]

"""Pure functions over a decoder's parameters: make them, run ranges of layers, teacher forcing.

Parameters are a plain pytree: {"ends": {...}, "layers": ...}. "layers" is a list of one tree per layer (execution
"unrolled") or one tree whose arrays have a leading layer axis ("scanned"). The flax.nnx modules are merged with them at
the top of each traced function and gone when it ends.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx

from skipjax import modules
from skipjax.attention import attention, causal
from skipjax.config import DecoderConfig
from skipjax.plan import layer_groups

Params = dict[str, Any]
Execution = Literal["unrolled", "scanned"]


@functools.cache
def _definitions(config: DecoderConfig) -> tuple[Any, Any, Any, Any]:
    """Static graph and abstract float32 parameters of the ends and of one block."""
    parts = []
    for kind in (modules.Ends, modules.Block):
        graph, state = nnx.split(nnx.eval_shape(lambda kind=kind: kind(config, rngs=nnx.Rngs(0))))
        parts += [graph, nnx.to_pure_dict(state)]
    ends_graph, ends, block_graph, block = parts
    return ends_graph, ends, block_graph, block


def abstract_params(config: DecoderConfig, dtype: Any = jnp.float32, execution: Execution = "unrolled") -> Params:
    """Shapes and dtypes of the parameters, as `jax.ShapeDtypeStruct`s."""
    _, ends, _, block = _definitions(config)

    def shaped(tree, leading=()):
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((*leading, *leaf.shape), dtype), tree)

    if execution == "scanned":
        return {"ends": shaped(ends), "layers": shaped(block, (config.num_layers,))}
    return {"ends": shaped(ends), "layers": [shaped(block) for _ in range(config.num_layers)]}


@functools.partial(jax.jit, static_argnums=(0, 2))
def init_params(config: DecoderConfig, seed: int | jax.Array, dtype: Any = jnp.float32) -> Params:
    """Fresh random parameters (unrolled), normal with standard deviation 0.02, smaller before each residual sum."""
    ends_key, *layer_keys = jax.random.split(jax.random.key(seed), config.num_layers + 1)

    def pure(module):
        return jax.tree.map(lambda leaf: leaf.astype(dtype), nnx.to_pure_dict(nnx.split(module)[1]))

    return {
        "ends": pure(modules.Ends(config, rngs=nnx.Rngs(ends_key))),
        "layers": [pure(modules.Block(config, rngs=nnx.Rngs(key))) for key in layer_keys],
    }


def execution_of(params: Params) -> Execution:
    return "unrolled" if isinstance(params["layers"], list) else "scanned"


def stack_layers(params: Params) -> Params:
    """The parameters in scanned form. Empties the given list of layers array by array, so that at no time two copies of
    all weights exist."""
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(params["layers"][0])[0]]
    structure = jax.tree.structure(params["layers"][0])
    columns = [jax.tree.leaves(layer) for layer in params["layers"]]
    params["layers"].clear()
    stacked = []
    for index in range(len(paths)):
        stacked.append(jnp.stack([column[index] for column in columns]))
        for column in columns:
            column[index] = None
    return {"ends": params["ends"], "layers": jax.tree.unflatten(structure, stacked)}


def unstack_layers(params: Params, num_layers: int) -> Params:
    """The parameters in unrolled form; inverse of `stack_layers`."""
    layers = [jax.tree.map(lambda leaf, i=index: leaf[i], params["layers"]) for index in range(num_layers)]
    return {"ends": params["ends"], "layers": layers}


def ends_of(config: DecoderConfig, params: Params) -> modules.Ends:
    """The embedding, final norm and head, ready to call inside a traced function."""
    return nnx.merge(_definitions(config)[0], params["ends"])


def rotation_at(config: DecoderConfig, positions: jax.Array) -> modules.Rotation | None:
    return None if config.rope is None else modules.rotation(config.rope, config.head_size, positions)


def run_layers(
    config: DecoderConfig,
    layers: Any,
    first: int,
    last: int,
    h: jax.Array,
    rotation: modules.Rotation | None,
    attend: Callable[[Any, Any], modules.Attend],
    carry: Any,
    *,
    rematerialise: bool = False,
) -> tuple[jax.Array, Any]:
    """Runs layers [first, last) (static) on h [B, T, D].

    `attend(carry, layer)` gives the attention of one layer; what that carries out is the next `carry` (a cache). With
    carry None the run keeps nothing and can be differentiated in either execution. `rematerialise` recomputes
    activations in the backward pass instead of keeping them.
    """
    graph = _definitions(config)[2]

    def run_block(layer_params, layer, h, carry):
        return nnx.merge(graph, layer_params)(h, rotation, attend(carry, layer))

    if rematerialise:
        run_block = jax.checkpoint(run_block, static_argnums=(1,) if isinstance(layers, list) else ())
    if isinstance(layers, list):
        for layer in range(first, last):
            h, carry = run_block(layers[layer], layer, h, carry)
        return h, carry
    if first >= last:
        return h, carry
    if carry is None:
        # Differentiable: layers as scan inputs, so that each layer's gradient lands in its own slice.
        sliced = jax.tree.map(lambda leaf: leaf[first:last], layers)

        def scan_body(h, layer_params):
            return run_block(layer_params, 0, h, None)[0], None

        return jax.lax.scan(scan_body, h, sliced)[0], None

    # Generation: index the stacked weights inside the loop. Scan inputs would be copied out of the stack first.
    def loop_body(layer, state):
        layer_params = jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, layer, keepdims=False), layers)
        return run_block(layer_params, layer, *state)

    return jax.lax.fori_loop(first, last, loop_body, (h, carry))


def teacher_forced(
    config: DecoderConfig,
    params: Params,
    tokens: jax.Array,
    padding: jax.Array,
    columns: tuple[int, ...],
    *,
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
    Returns:
      h [B, C, D], before the final norm.
    """
    total = tokens.shape[1]
    positions = jnp.maximum(jnp.arange(total, dtype=jnp.int32)[None] - padding[:, None], 0)
    h = ends_of(config, params).embed(tokens, positions)
    turned = rotation_at(config, positions)
    allowed = causal(padding, total)
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

        def attend(carry, layer, visible=allowed[:, :length, :length]):
            return lambda q, k, v: (attention(q, k, v, visible, "bskh"), carry)

        h, _ = run_layers(config, layers, 0, last - first, h, part, attend, None, rematerialise=rematerialise)
    return jnp.concatenate([h, waiting], axis=1)


def _cut_layers(layers: Any, ends: list[int]) -> list[Any]:
    """The layers in consecutive groups that end before layers `ends`. Stacked arrays are split all at once, since the
    gradient of a split is one concatenation, and that of many slices a sum of many whole arrays."""
    if isinstance(layers, list):
        return [layers[first:last] for first, last in zip([0, *ends], ends, strict=False)]
    split = jax.tree.map(lambda leaf: jnp.split(leaf, ends[:-1]), layers)
    return [jax.tree.map(lambda _, parts, i=i: parts[i], layers, split) for i in range(len(ends))]

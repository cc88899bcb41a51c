"""How many bytes decoding must read: weights of the layers that run, the LM head, and the keys and values of earlier
columns. It follows from a model's config, dtype and plan alone; divided by the memory bandwidth it is the least time
that decoding can take.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import numpy as np

from skipjax import decoder
from skipjax.config import ModelConfig
from skipjax.generation import Generation
from skipjax.methods import Calm, Free, Full, Method, SkipDecode, StaticExit
from skipjax.plan import Plan, Segment


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Bytes read.

    Attributes:
      weights: of parameters, embedding rows and LM head included.
      cache: of keys and values, those of an encoder's states included.
    """

    weights: int = 0
    cache: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.cache

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.weights + other.weights, self.cache + other.cache)


@dataclasses.dataclass(frozen=True)
class DecodeTraffic:
    """What decode steps of one batch read. No weights need to exist.

    Counted is what no program can avoid: every weight once per step, whatever the batch, and of each row the columns
    up to the step's own. Padding to buckets, keys and values beyond a step's own column, and whatever is written, are
    not.

    Attributes:
      config: of the model.
      dtype: of weights and cache.
      batch: rows that were asked for.
      prompt_length: tokens of each prompt, or of each source of an encoder-decoder model.
    """

    config: ModelConfig
    dtype: Any
    batch: int
    prompt_length: int

    @functools.cached_property
    def layer(self) -> int:
        """Bytes of one decoder layer's parameters that a step reads. Projections of an encoder's states to keys and
        values belong to the prompt pass."""
        block = self._params["layers"][0]
        total = nbytes(block)
        if "cross_attention" in block:
            total -= nbytes([block["cross_attention"][name] for name in ("key", "value")])
        return total

    @functools.cached_property
    def layer_keys_and_values(self) -> int:
        """Bytes of what a layer's keys and values are projected with alone (CALM, for layers that it skips)."""
        block = self._params["layers"][0]
        parts = [block["attention"]["key"], block["attention"]["value"]]
        return nbytes([*parts, block["attention_norm"]] if self.config.norm_before else parts)

    def head(self, exit_layer: int) -> int:
        """Bytes of what gives logits after `exit_layer` layers: a final norm and the LM head, which is the token
        embedding where they are tied."""
        ends = self._params["ends"]
        own = self._params.get("exits", {}).get(str(exit_layer), {}) if exit_layer < self.config.num_layers else {}
        shared = [ends["tokens"] if self.config.tied else ends["head"], ends.get("project_out")]
        return nbytes([*shared, own, None if "norm" in own else ends.get("final_norm")])

    @functools.cached_property
    def embedding(self) -> int:
        """Bytes read before the first layer: one row of the tables for each row of the batch, the projection of narrow
        embeddings, and the table of relative positions."""
        config, ends = self.config, self._params["ends"]
        row = config.embed_size + (config.hidden_size if config.learned_positions else 0)
        return self.batch * row * self._itemsize + nbytes([ends.get("project_in"), ends.get("relative_bias")])

    def keys_and_values(self, columns: int) -> int:
        """Bytes of the keys and values of `columns` columns of the whole batch in one layer."""
        return 2 * self.batch * columns * self.config.num_kv_heads * self.config.head_size * self._itemsize

    def layers(self, count: int, columns: int) -> Traffic:
        """`count` layers over queries that see `columns` columns, their own included, and the encoder's states."""
        source = 0 if self.config.encoder_layers is None else self.prompt_length
        return Traffic(count * self.layer, count * self.keys_and_values(columns + source))

    def columns(self, step: int) -> int:
        """Columns that a plan's decode step reads, its own included: the decoder's prompt (of an encoder-decoder model
        the start token alone), and the tokens up to the one it consumes."""
        return (self.prompt_length if self.config.encoder_layers is None else 1) + step + 1

    def step(self, segment: Segment, columns: int) -> Traffic:
        """One decode step of a plan's segment that sees `columns` columns."""
        ends = Traffic(self.embedding + self.head(segment.ranges[-1][1]))
        return self.layers(segment.depth, columns) + ends

    def segment(self, segment: Segment) -> Traffic:
        """All steps of a plan's segment."""
        steps = range(segment.first_step, segment.last_step)
        return sum((self.step(segment, self.columns(step)) for step in steps), Traffic())

    def plan(self, plan: Plan) -> Traffic:
        """All decode steps of a plan."""
        return sum(map(self.segment, plan.segments), Traffic())

    def free(self, method: Free, tokens: int, steps: int, deep_passes: int) -> Traffic:
        """`steps` shallow steps and `deep_passes` runs of the deep layers, with a head each, that generated `tokens`
        tokens. Each is taken to see the mean number of columns, since the counts do not say when they were."""
        first = self._first_stepped
        columns = round(np.mean([self.columns(first - 1 + token) for token in range(tokens - first)]))
        shallow = self.layers(method.shallow_layers, columns)
        deep = self.layers(self.config.num_layers - method.shallow_layers, columns)
        shallow += Traffic(self.embedding + self.head(method.shallow_layers))
        deep += Traffic(self.head(self.config.num_layers))
        return _times(steps, shallow) + _times(deep_passes, deep)

    def calm(self, method: Calm, depths: np.ndarray) -> Traffic:
        """Steps whose rows left after `depths` layers (int [B, T], column t for token t, 0 on pads): the layers of the
        deepest row, a head for each exit asked, and the projections of the layers skipped."""
        total, first = Traffic(), self._first_stepped
        for token, depth in enumerate(depths.max(axis=0).tolist()[first:]):
            if depth:
                skipped = (self.config.num_layers - depth) * self.layer_keys_and_values
                heads = sum(self.head(layer) for layer in range(method.min_depth, depth + 1))
                ends = Traffic(self.embedding + heads + skipped)
                total += self.layers(depth, self.columns(first - 1 + token)) + ends
        return total

    def realised(self, method: Method, out: Generation) -> Traffic:
        """All decode steps of a generation of this batch that ran to its full length."""
        tokens = out.tokens.shape[1]
        match method:
            case Full() | SkipDecode() | StaticExit():
                return self.plan(method.resolve(tokens).plan(self.config.num_layers, tokens - 1))
            case Free():
                assert out.stats.deep_passes is not None
                return self.free(method, tokens, out.stats.decode_steps, out.stats.deep_passes)
            case Calm():
                return self.calm(method, out.depths)
        raise TypeError(f"nothing is known of what {method!r} reads")

    @property
    def _first_stepped(self) -> int:
        """The first token that an ordinary step makes where exits are taken by confidence: 1, or 0 where the start
        token counts as one."""
        return int(self.config.encoder_layers is None)

    @functools.cached_property
    def _params(self) -> decoder.Params:
        return decoder.abstract_params(self.config, self.dtype)

    @property
    def _itemsize(self) -> int:
        return np.dtype(self.dtype).itemsize


def nbytes(tree: Any) -> int:
    """Of all arrays of a tree, or of what only has their shapes and dtypes."""
    return sum(math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(tree))


def _times(count: int, traffic: Traffic) -> Traffic:
    return Traffic(count * traffic.weights, count * traffic.cache)

"""How well an exit's confidence predicts that the full model says the same: exit shares at a wanted agreement.

One teacher-forced pass over texts answers it for every threshold at once, since what a token is fed does not depend on
where earlier ones left.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from skipjax import checks
from skipjax.confidence import Confidence, ExitView, confidence_named
from skipjax.config import ModelConfig
from skipjax.decoder import Params, embed_columns, exit_head_of, exit_logits, hidden_states
from skipjax.language_model import LanguageModel
from skipjax.methods import Free
from skipjax.tables import markdown
from skipjax.training.batches import Batch, bucket_sizes, make_batch
from skipjax.training.data import Examples
from skipjax.training.loss import decoder_inputs, real_targets


@dataclasses.dataclass(frozen=True)
class ExitCurve:
    """What one exit does on the target tokens of some texts.

    Attributes:
      layer: layers before the exit.
      confidence: name of the measure.
      confidences: float32 [n], of each token.
      agreements: bool [n], whether the exit's token is the last layer's.
    """

    layer: int
    confidence: str
    confidences: np.ndarray
    agreements: np.ndarray

    def exits_above(self, threshold: float) -> tuple[float, float | None]:
        """Share of the tokens that leave at a threshold, and the share of those that agree (None if none leaves)."""
        leaving = self.confidences > threshold
        return float(leaving.mean()), float(self.agreements[leaving].mean()) if leaving.any() else None

    def threshold_for(self, agreement: float) -> float:
        """The lowest threshold at which at least a share `agreement` of the tokens that leave agree; infinity if there
        is none.

        Worked: confidences .9, .8, .7, .6 with agreements 1, 1, 0, 1: for agreement 1 it is .7, and two tokens leave;
        for .75 it is just below .6, and all leave.
        """
        order = np.argsort(-self.confidences, kind="stable")
        sorted_, agreeing = self.confidences[order], np.cumsum(self.agreements[order])
        counts = np.arange(1, len(order) + 1)
        # A threshold cannot part equal confidences: only the last of them is a place to cut.
        last = np.append(sorted_[1:] < sorted_[:-1], True)
        good = np.flatnonzero(last & (agreeing >= agreement * counts - 1e-9))
        if not len(good):
            return float("inf")
        cut = int(good[-1]) + 1
        return float(sorted_[cut]) if cut < len(order) else float(np.nextafter(sorted_[-1], np.float32(-np.inf)))


def exit_curves(
    lm: LanguageModel,
    examples: Examples,
    layers: Sequence[int],
    confidences: Sequence[str] = ("margin",),
    *,
    batch_size: int = 8,
) -> list[ExitCurve]:
    """One curve per layer and confidence, over all target tokens of the examples.

    Raises ValueError for layers the model cannot leave after, and for a confidence it has not.
    """
    checks.integer("batch_size", batch_size, 1)
    for layer in layers:
        checks.integer("layers", layer, 1, lm.config.num_layers - 1)
        for name in confidences:
            Free(layer, confidence=name).check(lm.config)
    measures = tuple(confidence_named(name) for name in confidences)
    shape = tuple(bucket_sizes([len(row) for row in rows], 1)[0] for rows in (examples.prompts, examples.targets))
    parts: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in range(len(layers) * len(measures))]
    for first in range(0, len(examples), batch_size):
        indices = range(first, min(first + batch_size, len(examples)))
        batch = make_batch(examples, indices, (shape[0], shape[1]), batch_size, lm.config.pad_id or 0)
        real = np.asarray(real_targets(batch))
        results = _exits(lm.config, tuple(layers), measures, lm.params, batch)
        for part, (sure, agree) in zip(parts, results, strict=True):
            part.append((np.asarray(sure)[real], np.asarray(agree)[real]))
    names = [(layer, name) for layer in layers for name in confidences]
    return [
        ExitCurve(layer, name, np.concatenate([sure for sure, _ in part]), np.concatenate([agree for _, agree in part]))
        for (layer, name), part in zip(names, parts, strict=True)
    ]


@functools.partial(jax.jit, static_argnames=("config", "layers", "measures"))
def _exits(
    config: ModelConfig, layers: tuple[int, ...], measures: tuple[Confidence, ...], params: Params, batch: Batch
) -> list[tuple[jax.Array, jax.Array]]:
    """(confidence float32, agreement bool), both [B, T], per layer and measure."""
    tokens, padding, memory, prompt_size = decoder_inputs(config, params, batch)
    embedded = embed_columns(config, params, tokens, padding).h[:, prompt_size - 1 :]
    states = hidden_states(config, params, tokens, padding, memory=memory)[:, :, prompt_size - 1 :]
    final = jnp.argmax(exit_logits(config, params, states[-1], config.num_layers), axis=-1)
    results = []
    for layer in layers:
        state = states[layer - 1]
        previous = states[layer - 2] if layer > 1 else embedded
        logits = exit_logits(config, params, state, layer)
        agree = jnp.argmax(logits, axis=-1) == final
        view = ExitView(logits, state, previous, exit_head_of(config, params, layer))
        results += [(measure(view), agree) for measure in measures]
    return results


def table(curves: Sequence[ExitCurve], agreement: float) -> str:
    """A Markdown table: at the lowest threshold that gives the agreement, how many tokens leave."""
    rows = []
    for curve in curves:
        # Rounded up as it is printed, so that what is printed can be used.
        threshold = math.ceil(min(curve.threshold_for(agreement), 2.0) * 1e6) / 1e6
        share, reached = curve.exits_above(threshold)
        rows.append(
            [
                *(str(curve.layer), curve.confidence, f"{curve.agreements.mean():.1%}"),
                "-" if reached is None else f"{threshold:.6f}",
                *(f"{share:.1%}", "-" if reached is None else f"{reached:.1%}"),
            ]
        )
    header = ["exit after", "confidence", "agreement of all", "threshold", "exit share", "agreement of exits"]
    return markdown(header, rows)

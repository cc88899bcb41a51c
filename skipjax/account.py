"""What comparisons of methods read off finished generations: seconds per step, and how tokens left early."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from skipjax.config import ModelConfig
from skipjax.generation import Generation
from skipjax.methods import Method
from skipjax.tables import cell


def seconds_per_step(out: Generation, config: ModelConfig) -> float | None:
    """Seconds of decoding over the decode steps that the longest text needs; None if it needs none.

    Measured speed-ups are ratios of these. Steps whose tokens were taken back (`Free` with verify or rollback) cost
    seconds and do not count as steps.
    """
    steps = out.stats.decode_steps
    if out.stats.deep_passes is not None:
        # Token 0 of a decoder-only model comes from the prompt pass.
        steps = int(out.lengths.max()) - (config.encoder_layers is None)
    return out.stats.decode_seconds / steps if steps else None


@dataclasses.dataclass(frozen=True)
class Exits:
    """How tokens left before the last layer, in one or several batches. None where a method has no such thing.

    Attributes:
      threshold: confidence above which a token leaves, in the last batch (an adaptive one moves between batches).
      exit_share: tokens that left early, of all generated.
      deep_passes: runs of the deep layers over buffered positions (`Free`).
      tokens_per_deep_pass: positions of a row computed by one; mean over batches, weighted by their passes.
      acceptance_rate: share of exited tokens that stood when they were checked (`Free` with verify or rollback); mean
        over batches, weighted by their tokens.
    """

    threshold: float | None
    exit_share: float | None
    deep_passes: int | None
    tokens_per_deep_pass: float | None
    acceptance_rate: float | None

    @classmethod
    def of(cls, method: Method, outs: Sequence[Generation]) -> Exits:
        """Of batches that one method generated with one model, at least one."""
        stats = [out.stats for out in outs]
        tokens = [int(out.lengths.sum()) for out in outs]
        exits = sum(int(one.exits.sum()) for one in stats)
        passes = [one.deep_passes for one in stats if one.deep_passes is not None]
        return cls(
            threshold=stats[-1].threshold,
            exit_share=exits / sum(tokens) if method.exit_layers(stats[0].num_layers) else None,
            deep_passes=sum(passes) if passes else None,
            tokens_per_deep_pass=_mean([(one.tokens_per_deep_pass, one.deep_passes or 0) for one in stats]),
            acceptance_rate=_mean([(one.acceptance_rate, n) for one, n in zip(stats, tokens, strict=True)]),
        )

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def cells(self) -> dict[str, str]:
        """For tables, under their headers; "-" for None."""
        return {
            "exits": cell(self.exit_share, ".1%"),
            "threshold": cell(self.threshold, ".2f"),
            "tokens/pass": cell(self.tokens_per_deep_pass, ".1f"),
            "accepted": cell(self.acceptance_rate, ".1%"),
        }


def exit_columns(rows: Sequence[Exits]) -> tuple[list[str], list[list[str]]]:
    """Headers of a table's columns about exits, and the cells of each row; columns that would be empty are left out."""
    cells = [exits.cells() for exits in rows]
    header = [name for name in cells[0] if any(row[name] != "-" for row in cells)]
    return header, [[row[name] for name in header] for row in cells]


def _mean(weighted: Sequence[tuple[float | None, float]]) -> float | None:
    known = [(value, weight) for value, weight in weighted if value is not None and weight]
    return sum(value * weight for value, weight in known) / sum(weight for _, weight in known) if known else None

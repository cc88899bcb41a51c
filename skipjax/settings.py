"""What evaluations and benchmarks set against full depth: methods, and the speed-ups they were asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TypeVar

from skipjax import flags
from skipjax.methods import Full, SkipDecode

Number = TypeVar("Number", int, float)


@dataclasses.dataclass(frozen=True)
class Setting:
    """One row of a comparison.

    Attributes:
      method: how deep to decode.
      speedup: the target speed-up that was asked for; None where depths were given instead.
    """

    method: Full | SkipDecode
    speedup: float | None = None

    @property
    def name(self) -> str:
        """The method as flags spell it: "full", "skipdecode"."""
        return type(self.method).__name__.lower()

    @property
    def label(self) -> str:
        """For tables: "full", "skipdecode 2x", or "skipdecode 12/6" where depths were given."""
        if isinstance(self.method, Full):
            return self.name
        asked = f"{self.method.max_depth}/{self.method.min_depth}" if self.speedup is None else f"{self.speedup:g}x"
        return f"{self.name} {asked}"

    def depths(self, num_layers: int) -> tuple[int, int]:
        """(max_depth, min_depth) in a decoder of `num_layers` layers."""
        if isinstance(self.method, Full):
            return num_layers, num_layers
        return self.method.max_depth, self.method.min_depth


FULL = Setting(Full(), 1.0)


def against_full(settings: Sequence[Setting]) -> list[Setting]:
    """`FULL`, the yardstick, and then the others."""
    return [FULL, *(setting for setting in settings if not isinstance(setting.method, Full))]


def settings_from_flags(
    name: str | None,
    speedups: Sequence[float],
    *,
    num_layers: int,
    recorded: Full | SkipDecode | None = None,
    max_depth: int | None = None,
    min_depth: int | None = None,
    warmup_layers: int | None = None,
    horizon: int | None = None,
) -> list[Setting]:
    """The settings besides full depth that flags ask for: one per speed-up, or the one that `method_from_flags` makes
    of the other flags. A speed-up of 1 is full depth, so it adds none.

    Raises ValueError as `skipjax.flags.method_from_flags`.
    """
    settings = []
    for speedup in dict.fromkeys(speedups) or (None,):
        method = flags.method_from_flags(
            name,
            num_layers=num_layers,
            recorded=recorded,
            speedup=speedup,
            max_depth=max_depth,
            min_depth=min_depth,
            warmup_layers=warmup_layers,
            horizon=horizon,
        )
        method.check(num_layers)
        if speedup != 1 and not isinstance(method, Full):
            settings.append(Setting(method, speedup))
    return settings


def numbers(flag: str, texts: Sequence[str], kind: type[Number]) -> list[Number]:
    """The values of a flag that may be repeated and may hold several, comma-separated: ["1,2", "5"] is 1, 2, 5.

    Raises ValueError that names the flag.
    """
    parts = [part.strip() for text in texts for part in text.split(",")]
    try:
        return [kind(part) for part in parts]
    except ValueError:
        what = {int: "whole numbers", float: "numbers"}[kind]
        raise ValueError(f"{flag} must be {what} separated by commas, got {', '.join(texts)!r}") from None

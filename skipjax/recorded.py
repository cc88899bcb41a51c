"""What a checkpoint's weights were trained for, kept beside them so that generation can warn before it skips layers."""

from __future__ import annotations

import dataclasses
from typing import Any

from skipjax.methods import METHODS, Free, Full, SkipDecode, name_of

_TRAINED_FOR = ("full", "skipdecode", "free")  # names of the methods that weights can be recorded for


@dataclasses.dataclass(frozen=True)
class Recorded:
    """The method a checkpoint was trained for, which is also the one generation programs use by default.

    Attributes:
      method: `Full()`, a `SkipDecode` with its horizon filled in, or a `Free`.
      speedup_range: (lowest, highest) target speed-up where schedules were drawn from a range, all with the warm-up
        layers, horizon, shape and segments of `method`; None for a single schedule.
      exit_layers: after how many layers exits were trained (FREE, multi-exit training).
    """

    method: Full | SkipDecode | Free
    speedup_range: tuple[float, float] | None = None
    exit_layers: tuple[int, ...] = ()

    def covers(self, method: Full | SkipDecode, num_layers: int) -> bool:
        """Whether a resolved `method` is one these weights were trained for. Full depth always is, and so is a trained
        schedule with fewer segments, whose depths are all among the trained ones."""
        if isinstance(method, Full):
            return True
        ways = (method, dataclasses.replace(method, max_segments=None))
        if self.method in ways:
            return True
        if self.speedup_range is None or not isinstance(self.method, SkipDecode):
            return False
        alike = dataclasses.replace(self.method, max_depth=method.max_depth, min_depth=method.min_depth) in ways
        low, high = self.speedup_range
        # Depths are whole layers, so the target of a drawn schedule can miss the drawn speed-up by half a layer.
        half_layer = 0.5 / num_layers
        return alike and 1 / high - half_layer <= 1 / method.target_speedup(num_layers) <= 1 / low + half_layer

    def describe(self) -> str:
        """For messages: "SkipDecode(...)", with the range of target speed-ups where there is one."""
        if self.speedup_range is None:
            return repr(self.method)
        low, high = self.speedup_range
        return f"schedules like {self.method!r} at target speed-ups from {low:g} to {high:g}"

    def to_json(self) -> dict[str, Any]:
        own = {"speedup_range": self.speedup_range, "exit_layers": list(self.exit_layers)}
        return {"method": name_of(self.method), **dataclasses.asdict(self.method), **own}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Recorded:
        """Inverse of `to_json`. Raises ValueError for an unknown method or fields it does not have."""
        try:
            fields = dict(data)
            name, span = fields.pop("method"), fields.pop("speedup_range")
            if name not in _TRAINED_FOR:
                raise KeyError(name)
            exits = tuple(int(layer) for layer in fields.pop("exit_layers", ()))
            low, high = (1.0, 1.0) if span is None else map(float, span)
            method: Any = METHODS[name](**fields)
            return cls(method, None if span is None else (low, high), exits)
        except (KeyError, TypeError, ValueError):
            raise ValueError(f"recorded method: {data!r} is not one this version knows") from None

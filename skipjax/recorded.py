"""What a checkpoint's weights were trained for, kept beside them so that generation can warn before it skips layers."""

from __future__ import annotations

import dataclasses
from typing import Any

from skipjax.methods import Full, Method, SkipDecode

_METHODS = {"full": Full, "skipdecode": SkipDecode}


@dataclasses.dataclass(frozen=True)
class Recorded:
    """The method a checkpoint was trained for, which is also the one generation programs use by default.

    Attributes:
      method: `Full()` or a `SkipDecode` with its horizon filled in.
      speedup_range: (lowest, highest) target speed-up where schedules were drawn from a range, all with the warm-up
        layers, horizon and shape of `method`; None for a single schedule.
    """

    method: Full | SkipDecode
    speedup_range: tuple[float, float] | None = None

    def covers(self, method: Method, num_layers: int) -> bool:
        """Whether a resolved `method` is one these weights were trained for. Full depth always is."""
        if isinstance(method, Full) or method == self.method:
            return True
        if self.speedup_range is None or not (isinstance(method, SkipDecode) and isinstance(self.method, SkipDecode)):
            return False
        alike = dataclasses.replace(self.method, max_depth=method.max_depth, min_depth=method.min_depth) == method
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
        name = next(name for name, kind in _METHODS.items() if isinstance(self.method, kind))
        return {"method": name, **dataclasses.asdict(self.method), "speedup_range": self.speedup_range}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Recorded:
        """Inverse of `to_json`. Raises ValueError for an unknown method or fields it does not have."""
        try:
            fields = dict(data)
            kind, span = _METHODS[fields.pop("method")], fields.pop("speedup_range")
            low, high = (1.0, 1.0) if span is None else map(float, span)
            return cls(kind(**fields), None if span is None else (low, high))
        except (KeyError, TypeError, ValueError):
            raise ValueError(f"recorded method: {data!r} is not one this version knows") from None

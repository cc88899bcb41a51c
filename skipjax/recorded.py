"""What a checkpoint's weights were trained for, kept beside them so that generation can warn before it skips layers."""

from __future__ import annotations

import dataclasses
from typing import Any

from skipjax.methods import METHODS, Free, Full, Method, SkipDecode, name_of

_TRAINED_FOR = ("full", "skipdecode", "free")  # names of the methods that weights can be recorded for


@dataclasses.dataclass(frozen=True)
class Recorded:
    """The method a checkpoint was trained for, and the one that generation programs use by default.

    Attributes:
      method: what it was trained for: `Full()`, a `SkipDecode` with its horizon filled in, or a `Free`.
      speedup_range: (lowest, highest) target speed-up where schedules were drawn from a range, all with the warm-up
        layers, horizon, shape and segments of `method`; None for a single schedule.
      exit_layers: after how many layers exits were trained (FREE, multi-exit training).
      recommended: any method that was found to be good for these weights, as by `skipjax evaluate --recommend`. It says
        nothing about what they were trained for.
    """

    method: Full | SkipDecode | Free
    speedup_range: tuple[float, float] | None = None
    exit_layers: tuple[int, ...] = ()
    recommended: Method | None = None

    @property
    def preferred(self) -> tuple[Method, ...]:
        """What to decode with where nothing else is asked for, and after it the method trained for."""
        return (self.method,) if self.recommended is None else (self.recommended, self.method)

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
        own: dict[str, Any] = {"speedup_range": self.speedup_range, "exit_layers": list(self.exit_layers)}
        if self.recommended is not None:
            own["recommended"] = _to_json(self.recommended)
        return {**_to_json(self.method), **own}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Recorded:
        """Inverse of `to_json`. Raises ValueError for an unknown method or fields it does not have."""
        try:
            fields = dict(data)
            span, recommended = fields.pop("speedup_range"), fields.pop("recommended", None)
            if fields["method"] not in _TRAINED_FOR:
                raise KeyError(fields["method"])
            exits = tuple(int(layer) for layer in fields.pop("exit_layers", ()))
            low, high = (1.0, 1.0) if span is None else map(float, span)
            method: Any = _from_json(fields)
            return cls(
                method,
                None if span is None else (low, high),
                exits,
                None if recommended is None else _from_json(recommended),
            )
        except (KeyError, TypeError, ValueError):
            raise ValueError(f"recorded method: {data!r} is not one this version knows") from None


def _to_json(method: Method) -> dict[str, Any]:
    return {"method": name_of(method), **dataclasses.asdict(method)}  # type: ignore[call-overload]  # all are dataclasses


def _from_json(fields: dict[str, Any]) -> Method:
    arguments = dict(fields)
    return METHODS[arguments.pop("method")](**arguments)

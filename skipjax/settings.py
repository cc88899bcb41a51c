"""What evaluations and benchmarks set against full depth: methods, and the speed-ups they were asked for."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, TypeVar

from skipjax.methods import Calm, Free, Full, Method, SkipDecode, StaticExit, name_of

Number = TypeVar("Number", int, float)


def details_of(method: Method) -> str:
    """What tells methods of one kind apart in tables: "8/4", "8/4 in 3" segments; "0.5 exact", "adaptive"; "3"; "" for
    full depth."""
    match method:
        case SkipDecode():
            cut = "" if method.max_segments is None else f" in {method.max_segments}"
            return f"{method.max_depth}/{method.min_depth}{cut}"
        case StaticExit():
            return str(method.depth)
        case Free():
            parts = ["adaptive" if method.adaptive else f"{method.threshold:g}"]
            parts += ["exact"] if method.verify else []
            return " ".join(parts + ([] if method.rollback is None else [f"rollback {method.rollback:g}"]))
        case Calm():
            return f"{method.threshold:g}" + ("" if method.decay is None else f" decay {method.decay:g}")
    return ""


@dataclasses.dataclass(frozen=True)
class Setting:
    """One row of a comparison.

    Attributes:
      method: how deep to decode.
      speedup: the target speed-up that was asked for; None where it was not the speed-up that was given.
    """

    method: Method
    speedup: float | None = None

    @property
    def name(self) -> str:
        return name_of(self.method)

    @property
    def label(self) -> str:
        """For tables: "full", "skipdecode 2x" or, where depths were given, "skipdecode 12/6"; "free 0.9", "free 0.5
        exact", "free adaptive"; "static-exit 3"; "calm 0.9"."""
        asked = self.speedup is not None and isinstance(self.method, SkipDecode)
        return f"{self.name} {f'{self.speedup:g}x' if asked else details_of(self.method)}".rstrip()

    def depths(self, num_layers: int) -> tuple[int, int]:
        """(max_depth, min_depth), the most and fewest layers of a decode step, in a decoder of `num_layers` layers. A
        schedule joined into `max_segments` may not come down to min_depth."""
        match self.method:
            case SkipDecode():
                return self.method.max_depth, self.method.min_depth
            case StaticExit():
                return self.method.depth, self.method.depth
        return num_layers, min(self.method.exit_layers(num_layers), default=num_layers)

    def depths_label(self, num_layers: int) -> str:
        """For tables: "8/4", most and fewest of a schedule; "3/12", shallow and all; "3-12", any from 3 on; "12"."""
        most, fewest = self.depths(num_layers)
        match self.method:
            case SkipDecode():
                return f"{most}/{fewest}"
            case Free():
                return f"{fewest}/{most}"
            case Calm():
                return f"{fewest}-{most}"
        return str(most)

    def to_json(self) -> dict[str, Any]:
        """A flat object, but for "arguments", all those of the method."""
        arguments = dataclasses.asdict(self.method)  # type: ignore[call-overload]  # every method is a dataclass
        # JSON knows no infinity; a rollback of infinity is none.
        arguments = {name: None if value == math.inf else value for name, value in arguments.items()}
        return {
            "method": self.name,
            "speedup": self.speedup,
            "confidence": arguments.get("confidence"),
            "arguments": arguments,
        }


FULL = Setting(Full(), 1.0)


def against_full(settings: Sequence[Setting]) -> list[Setting]:
    """`FULL`, the yardstick, and then the others."""
    return [FULL, *(setting for setting in settings if not isinstance(setting.method, Full))]


def numbers(flag: str, texts: Sequence[str], kind: type[Number]) -> list[Number]:
    """The values of a flag that may be repeated and may hold several, comma-separated: ["1,2", "5"] is 1, 2, 5.

    Raises ValueError that names the flag.
    """
    parts = words(texts)
    try:
        return [kind(part) for part in parts]
    except ValueError:
        what = {int: "whole numbers", float: "numbers"}[kind]
        raise ValueError(f"{flag} must be {what} separated by commas, got {', '.join(texts)!r}") from None


def words(texts: Sequence[str]) -> list[str]:
    """As `numbers`, but words: ["a, b", "c"] is a, b, c."""
    return [part.strip() for text in texts for part in text.split(",")]

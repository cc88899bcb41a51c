"""Argument checks: each raises a ValueError of one sentence that names the argument, what came and what is allowed."""

from __future__ import annotations

import difflib
import math
import operator
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def integer(name: str, value: Any, at_least: int, at_most: int | None = None) -> int:
    """`value` as int if it is a whole number (numpy's included, bool not) in the closed range."""
    allowed = f"an integer of at least {at_least}" if at_most is None else f"an integer from {at_least} to {at_most}"
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or number < at_least or (at_most is not None and number > at_most):
        raise ValueError(f"{name} must be {allowed}, got {value!r}")
    return number


def real(
    name: str,
    value: Any,
    at_least: float,
    at_most: float = math.inf,
    *,
    above: bool = False,
    below: bool = False,
    allow_infinite: bool = False,
) -> float:
    """`value` as float if it is a real number in the range, finite unless `allow_infinite`; `above` and `below` leave
    out the range's ends."""
    low = f"above {at_least:g}" if above else f"at least {at_least:g}" if at_least > -math.inf else "that is finite"
    high = "" if at_most == math.inf else f" and below {at_most:g}" if below else f" and at most {at_most:g}"
    try:
        if isinstance(value, (bool, str)):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a number {low}{high}, got {value!r}") from None
    too_low = number <= at_least if above else number < at_least
    too_high = number >= at_most if below else number > at_most
    finite = not math.isnan(number) if allow_infinite else math.isfinite(number)
    if not finite or too_low or too_high:
        raise ValueError(f"{name} must be a number {low}{high}, got {value!r}")
    return number


def choice(name: str, value: Any, allowed: Iterable[str]) -> str:
    """`value` if it is one of `allowed`; the error suggests the nearest one."""
    allowed = list(allowed)
    if isinstance(value, str) and value in allowed:
        return value
    near = difflib.get_close_matches(value, allowed, n=1) if isinstance(value, str) else []
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}{hint}")


def directory(name: str, path: Path) -> Path:
    """`path`, made if it is not there. The error says why it cannot be."""
    if path.exists() and not path.is_dir():
        raise ValueError(f"{name} must be a directory, got the file {str(path)!r}")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{name} {path}: cannot be made ({error.strerror})") from None
    return path

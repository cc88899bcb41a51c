"""Counts what XLA compiles inside a `with` block."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import jax

_EVENT = "/jax/core/compile/backend_compile_duration"  # also sent when a compiled program comes from the disk cache
_totals = {"compilations": 0}


def _listen(event: str, _seconds: float, **_details: object) -> None:
    _totals["compilations"] += event == _EVENT


jax.monitoring.register_event_duration_secs_listener(_listen)


@contextlib.contextmanager
def counting() -> Iterator[list[int]]:
    """Yields a list that holds, after the block, the number of programs compiled in it."""
    before, result = _totals["compilations"], []
    yield result
    result.append(_totals["compilations"] - before)

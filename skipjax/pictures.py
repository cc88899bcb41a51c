"""Pictures, which need the extra "plot"."""

from __future__ import annotations

from typing import Any


def new_figure(width: float, height: float) -> Any:
    """An empty matplotlib figure, sizes in inches. Raises ValueError if matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError(
            "plot needs matplotlib, which is not installed: pip install 'skipjax[plot]' brings it"
        ) from None
    return Figure(figsize=(width, height), layout="constrained")

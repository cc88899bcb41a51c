"""Results and samples as evaluations write them, made up."""

from __future__ import annotations

from typing import Any

LAYERS = 12


def result(label: str, speedup: float, rouge: float, **changes: Any) -> dict[str, Any]:
    """An object of results.json: ROUGE-L with an interval of -2 and +1, realised half of the speed-up measured."""
    method = label.split()[0]
    row = {
        "label": label,
        "method": method,
        "confidence": "margin" if method in ("free", "calm") else None,
        "num_layers": LAYERS,
        "rougeL": rouge,
        "rougeL_interval": [rouge - 2, rouge + 1],
        "bleu": rouge - 10,
        "target_speedup": 2 * speedup,
        "realised_speedup": speedup / 2,
        "measured_speedup": speedup,
        "mean_depth": LAYERS / speedup,
        "share_of_full": rouge / 80,
        "share_of_full_interval": [rouge / 80 - 0.01, rouge / 80 + 0.01],
        "threshold": None,
    }
    return {**row, **changes}


FULL = result("full", 1.0, 80.0)
SEVERAL = [
    FULL,
    result("skipdecode 5x", 4.0, 70.0),
    result("skipdecode 2x", 1.5, 79.0),
    result("free 0.5", 2.0, 75.0),
    result("static-exit 6", 1.9, 40.0, rougeL_interval=None),
]


def positions(
    tokens: list[int], depths: list[float], exits: list[float] | None = None, sure: list[float | None] | None = None
) -> dict[str, Any]:
    return {"tokens": tokens, "mean_depth": depths, "exit_share": exits, "confidence": sure}


def sample(prompt: str, **changes: Any) -> dict[str, Any]:
    """An object of samples.jsonl."""
    tokens = {"pieces": ["a", " b", ""], "depths": [12, 3, 6]}
    row = {"prompt": prompt, "references": ["one", "two"], "texts": {"full": "a b"}, "tokens": {"full": tokens}}
    return {**row, **changes}

"""What `skipjax generate` prints: texts shaded by the layers of each token, the exits, and the three speed-ups."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from skipjax.account import seconds_per_step
from skipjax.adaptive import AdaptiveThreshold
from skipjax.generation import Generation, generate
from skipjax.language_model import LanguageModel
from skipjax.methods import Full, Method
from skipjax.prompts import Prompt
from skipjax.settings import details_of
from skipjax.tokenizer import Tokenizer

_REPEATS = 5

# 256-colour codes from shallow (bright green) to full depth (dim white).
SHADES = (46, 82, 118, 154, 190, 226, 220, 214, 208, 250)
_RESET = "\x1b[0m"


def token_pieces(tokenizer: Tokenizer, tokens: np.ndarray) -> list[str]:
    """The text each token (int32 [n]) adds to what comes before; together they are the decoded text."""
    stream = tokenizer.stream()
    pieces = [stream.push(int(token)) for token in tokens]
    if pieces:
        pieces[-1] += stream.flush()
    return pieces


def shade_of(depth: int, num_layers: int) -> int:
    """Which of `SHADES` a depth from 1 to `num_layers` has; only full depth has the last."""
    return depth * (len(SHADES) - 1) // num_layers


def colour_by_depth(pieces: list[str], depths: Iterable[int], num_layers: int) -> str:
    """The text with one terminal colour per depth, in layers."""
    shaded = []
    for piece, depth in zip(pieces, depths, strict=True):
        shade = SHADES[shade_of(int(depth), num_layers)]
        shaded.append(f"\x1b[38;5;{shade}m{piece}")
    return "".join(shaded) + _RESET


def depth_line(depths: Iterable[int]) -> str:
    """Depths as runs, layers x tokens: 12 12 8 8 8 is "12x2 8x3"."""
    return " ".join(f"{depth}x{len(list(run))}" for depth, run in itertools.groupby(depths))


def records(prompts: Sequence[str], out: Generation) -> list[dict[str, Any]]:
    """One JSON object per prompt: prompt, text, tokens, depths and confidences (None where there is none) of the real
    tokens, and finish_reason."""
    return [
        {
            "prompt": prompt,
            "text": None if out.texts is None else out.texts[index],
            "tokens": out.tokens[index, : out.lengths[index]].tolist(),
            "depths": out.depths[index, : out.lengths[index]].tolist(),
            "confidences": [
                None if np.isnan(sure) else float(sure) for sure in out.confidences[index, : out.lengths[index]]
            ],
            "finish_reason": out.finish_reasons[index],
        }
        for index, prompt in enumerate(prompts)
    ]


def shaded_texts(
    lm: LanguageModel, prompts: Sequence[str], labels: Sequence[str], outs: Sequence[Generation]
) -> list[dict[str, Any]]:
    """One object per prompt, as `skipjax.pages.write_texts` takes them, with the text and tokens of each label's
    generation. Needs a tokenizer."""
    assert lm.tokenizer is not None, "a prompt in words has one"
    samples = []
    for index, prompt in enumerate(prompts):
        texts, tokens = {}, {}
        for label, out in zip(labels, outs, strict=True):
            assert out.texts is not None, "there is a tokenizer"
            length = out.lengths[index]
            texts[label] = out.texts[index]
            tokens[label] = {
                "pieces": token_pieces(lm.tokenizer, out.tokens[index, :length]),
                "depths": out.depths[index, :length].tolist(),
            }
        samples.append({"prompt": prompt, "references": [], "texts": texts, "tokens": tokens})
    return samples


def in_turn(
    lm: LanguageModel,
    prompts: Sequence[Prompt],
    methods: Sequence[Method],
    estimators: Sequence[AdaptiveThreshold | None],
    **arguments: Any,
) -> Iterator[Generation]:
    """One generation per method, each from its estimator (None for those without); compiles and runs a method when its
    generation is asked for."""
    for method, estimator in zip(methods, estimators, strict=True):
        yield generate(lm, prompts, method, adaptive_threshold=estimator, **arguments)


def timed(lm: LanguageModel, run: Callable[[], Iterable[Generation]]) -> list[Generation]:
    """Runs several methods several times in turn: of each the generation of median time per step."""

    def seconds(out: Generation) -> float:
        return seconds_per_step(out, lm.config) or 0.0

    runs = [list(run()) for _ in range(_REPEATS)]
    return [sorted(outs, key=seconds)[len(outs) // 2] for outs in zip(*runs, strict=True)]


def show(
    lm: LanguageModel,
    prompts: Sequence[str],
    methods: Sequence[Method],
    coming: Iterator[Generation],
    show_line: Callable[[str], None],
) -> list[Generation]:
    """Shows each prompt with the text of every method, and returns the generations of the methods.

    The next one is taken from `coming` only when it is to be shown, so that the first text need not wait for the
    others. `typer.echo` strips the colours where output is no terminal.
    """
    outs: list[Generation] = []
    for index, prompt in enumerate(prompts):
        for place, method in enumerate(methods):
            if place == len(outs):
                outs.append(next(coming))
            if place == 0:
                show_line(prompt)
            length = outs[place].lengths[index]
            tokens, depths = outs[place].tokens[index, :length], outs[place].depths[index, :length]
            if lm.tokenizer is None:
                text = " ".join(map(str, tokens))
            else:
                text = colour_by_depth(token_pieces(lm.tokenizer, tokens), depths, lm.config.num_layers)
            show_line(f"  {_name(method)}: {text}\n    layers x tokens: {depth_line(depths)}")
        show_line("")
    return outs


def costs(lm: LanguageModel, methods: Sequence[Method], outs: Sequence[Generation]) -> str:
    """A few lines for each method: layers, speed, exits, and the three speed-ups."""
    full = next((out for method, out in zip(methods, outs, strict=True) if isinstance(method, Full)), None)
    return "\n".join(_cost(lm, method, out, full) for method, out in zip(methods, outs, strict=True))


def _name(method: Method) -> str:
    """ "Full", "SkipDecode 8/4" with the most and fewest layers of a decode step, "Free 0.9"."""
    return f"{type(method).__name__} {details_of(method)}".rstrip()


def _cost(lm: LanguageModel, method: Method, out: Generation, full: Generation | None) -> str:
    stats, seconds = out.stats, seconds_per_step(out, lm.config)
    step = "no decode step" if seconds is None else f"{1000 * seconds:.2f} ms per step"
    cache = stats.kv_cache_bytes / stats.full_kv_cache_bytes
    lines = [
        f"{_name(method)}: {stats.mean_depth:.1f} of {stats.num_layers} layers per token, {step},"
        f" {stats.tokens_per_second:.0f} tokens/s, KV cache {cache:.0%} of full"
    ]
    if method.exit_layers(stats.num_layers):
        lines.append(_exits(out))
    if isinstance(method, Full):
        return "\n".join(lines)
    yardstick = None if full is None else seconds_per_step(full, lm.config)
    measured = "run with full beside it, as in --method full,free, to compare"
    if yardstick is not None and seconds is not None:
        measured = f"{yardstick / seconds:.2f}x"
    lines.append(
        f"  speed-up: target {stats.target_speedup:.2f}x, realised {stats.realised_speedup:.2f}x (layers of the tokens"
        f" generated), measured {measured} (seconds per decode step)"
    )
    return "\n".join(lines)


def _exits(out: Generation) -> str:
    stats = out.stats
    parts = [f"{stats.exit_share:.0%} of tokens"]
    if stats.threshold is not None:
        parts.append(f"threshold {stats.threshold:.2f}")
    if stats.deep_passes is not None:
        per_pass = "" if stats.tokens_per_deep_pass is None else f" of {stats.tokens_per_deep_pass:.1f} tokens"
        parts.append(f"{stats.deep_passes} deep passes{per_pass}")
    if stats.acceptance_rate is not None:
        parts.append(f"{stats.acceptance_rate:.0%} stood when checked")
    return f"  exits: {', '.join(parts)}"

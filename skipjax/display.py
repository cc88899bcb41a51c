"""What `skipjax generate` prints: texts shaded by the layers that produced each token, and the three speed-ups."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from skipjax.generation import Generation, generate
from skipjax.language_model import LanguageModel
from skipjax.methods import Full, Method, SkipDecode
from skipjax.prompts import Prompt
from skipjax.tokenizer import Tokenizer

_REPEATS = 5  # of each method when two are compared

# 256-colour codes from shallow (bright green) to full depth (dim white).
_SHADES = (46, 82, 118, 154, 190, 226, 220, 214, 208, 250)
_RESET = "\x1b[0m"


def token_pieces(tokenizer: Tokenizer, tokens: np.ndarray) -> list[str]:
    """The text each token (int32 [n]) adds to what comes before; together they are the decoded text."""
    stream = tokenizer.stream()
    pieces = [stream.push(int(token)) for token in tokens]
    if pieces:
        pieces[-1] += stream.flush()
    return pieces


def colour_by_depth(pieces: list[str], depths: Iterable[int], num_layers: int) -> str:
    """The text with one terminal colour per depth, in layers."""
    shaded = []
    for piece, depth in zip(pieces, depths, strict=True):
        shade = _SHADES[min(int(depth) * len(_SHADES) // (num_layers + 1), len(_SHADES) - 1)]
        shaded.append(f"\x1b[38;5;{shade}m{piece}")
    return "".join(shaded) + _RESET


def depth_line(depths: Iterable[int]) -> str:
    """Depths as runs, layers x tokens: 12 12 8 8 8 is "12x2 8x3"."""
    return " ".join(f"{depth}x{len(list(run))}" for depth, run in itertools.groupby(depths))


def records(prompts: Sequence[str], out: Generation) -> list[dict[str, Any]]:
    """One JSON object per prompt: prompt, text, tokens, depths (of the real tokens) and finish_reason."""
    return [
        {
            "prompt": prompt,
            "text": None if out.texts is None else out.texts[index],
            "tokens": out.tokens[index, : out.lengths[index]].tolist(),
            "depths": out.depths[index, : out.lengths[index]].tolist(),
            "finish_reason": out.finish_reasons[index],
        }
        for index, prompt in enumerate(prompts)
    ]


def timed(
    lm: LanguageModel, prompts: Sequence[Prompt], methods: Sequence[Method], **arguments: Any
) -> list[Generation]:
    """One generation per method. Two or more are repeated in turn; each keeps its run of median time per step."""
    runs = [[generate(lm, prompts, method, **arguments) for method in methods]]
    if len(methods) > 1:
        runs += [[generate(lm, prompts, method, **arguments) for method in methods] for _ in range(_REPEATS)]
        runs = runs[1:]
    return [sorted(outs, key=_step_seconds)[len(outs) // 2] for outs in zip(*runs, strict=True)]


def report(lm: LanguageModel, prompts: Sequence[str], methods: Sequence[Method], outs: Sequence[Generation]) -> str:
    """Each prompt with the text of every method, then one line of cost per method. `typer.echo` strips the colours
    where output is no terminal."""
    lines = []
    for index, prompt in enumerate(prompts):
        lines.append(prompt)
        for method, out in zip(methods, outs, strict=True):
            length = out.lengths[index]
            depths = out.depths[index, :length]
            if lm.tokenizer is None:
                text = " ".join(map(str, out.tokens[index, :length]))
            else:
                pieces = token_pieces(lm.tokenizer, out.tokens[index, :length])
                text = colour_by_depth(pieces, depths, lm.config.num_layers)
            lines += [f"  {_name(method)}: {text}", f"    layers x tokens: {depth_line(depths)}"]
        lines.append("")
    full = next((out for method, out in zip(methods, outs, strict=True) if isinstance(method, Full)), None)
    return "\n".join(lines + [_cost(method, out, full) for method, out in zip(methods, outs, strict=True)])


def _name(method: Method) -> str:
    """ "Full", or "SkipDecode 8-4" with the most and fewest layers of a decode step."""
    if isinstance(method, SkipDecode):
        return f"SkipDecode {method.max_depth}-{method.min_depth}"
    return type(method).__name__


def _step_seconds(out: Generation) -> float:
    return out.stats.decode_seconds / max(out.stats.decode_steps, 1)


def _cost(method: Method, out: Generation, full: Generation | None) -> str:
    stats = out.stats
    cost = (
        f"{_name(method)}: {stats.mean_depth:.1f} of {stats.num_layers} layers per token,"
        f" {1000 * _step_seconds(out):.2f} ms per step, {stats.tokens_per_second:.0f} tokens/s,"
        f" KV cache {stats.kv_cache_bytes / stats.full_kv_cache_bytes:.0%} of full"
    )
    if out is full:
        return cost
    measured = "run --method full to compare" if full is None else f"{_step_seconds(full) / _step_seconds(out):.2f}x"
    return (
        f"{cost}\n  speed-up: target {stats.target_speedup:.2f}x, realised {stats.realised_speedup:.2f}x (layers of the"
        f" tokens generated), measured {measured} (seconds per decode step)"
    )

"""Web pages of generated texts, each token shaded by the layers it took."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from skipjax.display import SHADES, shade_of

_DOCTYPE = "<!DOCTYPE html>"
_WHITE = 0.45  # mixed into the terminal's shades, so that black text is easy to read on each

# Tokens keep their own black on light shades in dark mode and in print.
_STYLE = """
:root { color-scheme: light dark; }
body { max-width: 54rem; margin: 2rem auto; padding: 0 1rem; line-height: 1.5; font-family: system-ui, sans-serif; }
h1 { font-size: 1.4rem; }
section { border-top: 1px solid #8888; padding: 0.5rem 0; }
h2, h3 { font-size: 1rem; margin: 0.8rem 0 0.2rem; break-after: avoid; }
h3 small { font-weight: normal; }
p, ol { margin: 0.2rem 0 0.6rem; }
.text { white-space: pre-wrap; overflow-wrap: anywhere; }
.text span, .legend span {
  color: black; print-color-adjust: exact; -webkit-print-color-adjust: exact;
  box-decoration-break: clone; -webkit-box-decoration-break: clone; padding: 0.1em 0;
}
.legend span { display: inline-block; padding: 0.1em 0.5em; }
"""


def check_place(argument: str, path: Path) -> None:
    """Raises ValueError that names the argument if no file can be written at `path`; what is there stays."""
    existed = path.exists()
    try:
        path.open("a").close()
    except OSError as error:
        raise ValueError(f"{argument} {path}: cannot be written ({error.strerror})") from None
    if not existed:
        path.unlink()


def check_page(argument: str, path: Path) -> None:
    """`check_place` for a page, which may replace an earlier one but no other file."""
    check_place(argument, path)
    if not path.exists():
        return
    with path.open("rb") as file:
        beginning = file.read(len(_DOCTYPE))
    if beginning not in (b"", _DOCTYPE.encode()):
        raise ValueError(f"{argument} {path}: exists and is no web page: give another place, or move it away")


def write_texts(samples: Sequence[Mapping[str, Any]], num_layers: int, path: Path) -> None:
    """Writes one HTML page that needs nothing else: prompts, references and texts, with the depth of each token.

    A shade stands for a depth, in the order of the terminal's; a token's title says it in words, and each text has its
    mean depth.
    Args:
      samples: objects of samples.jsonl: "prompt"; "references", a list that may be empty; "texts" {label: text}; and
        "tokens" {label: {"pieces": [text, ...], "depths": [layers, ...]}}, one of each per token. Texts without tokens
        are shown without shades.
      num_layers: of the model's decoder.
      path: of the page.
    """
    sections = "\n".join(_section(number, sample, num_layers) for number, sample in enumerate(samples, 1))
    page = f"""{_DOCTYPE}
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Texts by depth</title>
<style>{_STYLE}{_shade_rules()}</style>
</head>
<body>
<h1>Texts by depth</h1>
<p class="legend">Decoder layers run for a token: {_legend(num_layers)}</p>
{sections}
</body>
</html>
"""
    path.write_text(page, encoding="utf-8")


def _section(number: int, sample: Mapping[str, Any], num_layers: int) -> str:
    parts = [f"<section>\n<h2>Prompt {number}</h2>\n{_paragraph(html.escape(sample['prompt']))}"]
    if sample["references"]:
        items = "\n".join(f'<li dir="auto">{html.escape(reference)}</li>' for reference in sample["references"])
        parts.append(
            f"<details open>\n<summary>References ({len(sample['references'])})</summary>\n<ol>{items}</ol>\n</details>"
        )
    for label, text in sample["texts"].items():
        tokens = sample.get("tokens", {}).get(label)
        if tokens is None:
            parts.append(f"<h3>{html.escape(label)}</h3>\n{_paragraph(html.escape(text))}")
        else:
            parts.append(_shaded(label, tokens["pieces"], tokens["depths"], num_layers))
    return "\n".join([*parts, "</section>"])


def _shaded(label: str, pieces: Sequence[str], depths: Sequence[int], num_layers: int) -> str:
    spans = []
    for piece, depth in zip(pieces, depths, strict=True):
        if piece:  # special tokens have no text
            shade, title = shade_of(depth, num_layers), f"{depth} of {num_layers} layers"
            spans.append(f'<span class="s{shade}" title="{title}">{html.escape(piece)}</span>')
    mean = sum(depths) / len(depths)
    cost = f"<small>mean depth {mean:.1f} of {num_layers} layers, {len(depths)} tokens</small>"
    return f"<h3>{html.escape(label)} {cost}</h3>\n{_paragraph(''.join(spans))}"


def _paragraph(content: str) -> str:
    return f'<p class="text" dir="auto">{content}</p>'


def _legend(num_layers: int) -> str:
    depths: dict[int, list[int]] = {}
    for depth in range(1, num_layers + 1):
        depths.setdefault(shade_of(depth, num_layers), []).append(depth)
    names = {shade: f"{of[0]}-{of[-1]}" if len(of) > 1 else f"{of[0]}" for shade, of in depths.items()}
    return " ".join(f'<span class="s{shade}">{name}</span>' for shade, name in names.items())


def _shade_rules() -> str:
    return "".join(f".s{shade} {{ background: {_colour(code)}; }}\n" for shade, code in enumerate(SHADES))


def _colour(code: int) -> str:
    """Of the terminal's 256 colours one of the cube or of the greys, mixed with white."""
    if code >= 232:
        parts = [8 + 10 * (code - 232)] * 3
    else:
        levels = (0, 95, 135, 175, 215, 255)
        parts = [levels[(code - 16) // scale % 6] for scale in (36, 6, 1)]
    return "#" + "".join(f"{round((1 - _WHITE) * part + _WHITE * 255):02x}" for part in parts)

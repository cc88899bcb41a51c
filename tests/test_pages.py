"""The page of texts shaded by depth."""

from __future__ import annotations

import html.parser
import re
from pathlib import Path
from typing import Any

import pytest
from evaluated import LAYERS, sample

from skipjax import pages
from skipjax.display import SHADES, shade_of


class Page(html.parser.HTMLParser):
    """Tags must nest. Keeps the text with the tags it is in, spans with their attributes, and all tags."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.spans: list[tuple[dict[str, Any], str]] = []
        self.texts: dict[str, list[str]] = {}
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag != "meta":
            self.open.append(tag)
        if tag == "span":
            self.spans.append((dict(attributes), ""))
        else:
            self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        inner = [tag for tag in self.open if tag != "span"]
        if inner:
            self.texts[inner[-1]][-1] += data
        if "span" in self.open:
            attributes, text = self.spans[-1]
            self.spans[-1] = attributes, text + data

    @property
    def tokens(self) -> list[tuple[str, str, str]]:
        """Class, title and text of the shaded tokens, without the legend."""
        return [(span["class"], span["title"], text) for span, text in self.spans if "title" in span]


def write(path: Path, *samples: dict[str, Any], num_layers: int = LAYERS) -> Page:
    pages.write_texts(samples, num_layers, path)
    return Page(path)


def test_tokens_are_shaded_by_their_depth(tmp_path: Path) -> None:
    page = write(tmp_path / "texts.html", sample("a prompt"))
    # The last token has no text, as the end of sequence, and counts in the mean.
    assert page.tokens == [("s9", "12 of 12 layers", "a"), ("s2", "3 of 12 layers", " b")]
    assert page.texts["small"] == ["mean depth 7.0 of 12 layers, 3 tokens"]
    assert page.texts["p"][1:] == ["a prompt", "a b"]
    assert page.texts["li"] == ["one", "two"]
    assert (page.texts["h2"], page.texts["h3"]) == (["Prompt 1"], ["full "])


def test_several_samples_and_settings(tmp_path: Path) -> None:
    both = {"full": {"pieces": ["x"], "depths": [12]}, "free 0.5": {"pieces": ["y"], "depths": [3]}}
    first = sample("one", texts={"full": "x", "free 0.5": "y"}, tokens=both)
    last = sample("two", references=[], texts={"full": "without tokens"})
    del last["tokens"]
    page = write(tmp_path / "texts.html", first, last)
    assert page.texts["h2"] == ["Prompt 1", "Prompt 2"]
    assert page.texts["h3"] == ["full ", "free 0.5 ", "full"]
    assert page.texts["p"][1:] == ["one", "x", "y", "two", "without tokens"]
    assert page.tokens == [("s9", "12 of 12 layers", "x"), ("s2", "3 of 12 layers", "y")]
    assert len(page.texts["summary"]) == 1


def test_texts_are_escaped(tmp_path: Path) -> None:
    evil = '<script>alert("1")</script> &amp; \'é\n  日本'
    tokens = {evil: {"pieces": [evil, "</span>"], "depths": [1, 2]}}
    page = write(tmp_path / "texts.html", sample(evil, references=[evil], texts={evil: evil}, tokens=tokens))
    assert "script" not in page.tags
    assert page.texts["p"][1:] == [evil, evil + "</span>"]
    assert page.texts["li"] == [evil]
    assert page.texts["h3"] == [evil + " "]
    assert [text for _, _, text in page.tokens] == [evil, "</span>"]


def test_the_page_stands_alone(tmp_path: Path) -> None:
    page = write(tmp_path / "texts.html", sample("p"))
    assert page.source.startswith("<!DOCTYPE html>\n")
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert not re.search(r"https?:|url\(|@import|\bsrc=|\bhref=", page.source)
    assert "color-scheme: light dark" in page.source
    assert "print-color-adjust: exact" in page.source


@pytest.mark.parametrize(
    ("num_layers", "names"),
    [
        (2, ["1", "2"]),
        (10, [str(depth) for depth in range(1, 11)]),
        (12, ["1", "2", "3", "4-5", "6", "7", "8-9", "10", "11", "12"]),
    ],
)
def test_legend(tmp_path: Path, num_layers: int, names: list[str]) -> None:
    page = write(tmp_path / "texts.html", num_layers=num_layers)
    shades = list(dict.fromkeys(shade_of(depth, num_layers) for depth in range(1, num_layers + 1)))
    legend = [(int(span["class"][1:]), text) for span, text in page.spans]
    assert legend == list(zip(shades, names, strict=True))
    assert legend[-1][0] == len(SHADES) - 1


def test_black_can_be_read_on_every_shade(tmp_path: Path) -> None:
    page = write(tmp_path / "texts.html")
    rules = re.findall(r"^\.s(\d) \{ background: #(\w{6}); \}$", page.source, re.MULTILINE)
    assert [int(shade) for shade, _ in rules] == list(range(len(SHADES)))
    colours = [colour for _, colour in rules]
    assert (colours[0], colours[5], colours[-1]) == ("73ff73", "ffff73", "dadada")
    assert len(set(colours)) == len(SHADES)
    for colour in colours:
        red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (0, 2, 4))
        luminance = 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2
        assert (luminance + 0.05) / 0.05 > 7  # contrast with black; 4.5 is called enough


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    page = tmp_path / "x.html"
    pages.check_page("--html", page)
    assert not page.exists()
    page.write_text("old")
    pages.check_place("--html", page)
    assert page.read_text() == "old"
    with pytest.raises(ValueError, match=r"^--html .*x.html: exists and is no web page: give another place"):
        pages.check_page("--html", page)
    assert page.read_text() == "old"
    for earlier in ("", write(tmp_path / "page.html").source):
        page.write_text(earlier)
        pages.check_page("--html", page)
        assert page.read_text() == earlier
    with pytest.raises(ValueError, match=r"^--html .*: cannot be written \(Is a directory\)$"):
        pages.check_place("--html", tmp_path)
    with pytest.raises(ValueError, match=r"^--html .*x.html: cannot be written \(No such file or directory\)$"):
        pages.check_place("--html", tmp_path / "nowhere" / "x.html")

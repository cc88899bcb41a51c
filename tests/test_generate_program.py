"""`skipjax generate` as a user meets it: flags, output, and one sentence for each mistake."""

from __future__ import annotations

import dataclasses
import json
import sys

import pytest
import tokenizers
from tiny_models import tiny_lm

import skipjax
from skipjax import flags, main
from skipjax.checkpoint import save
from skipjax.display import colour_by_depth, depth_line, token_pieces
from skipjax.generation import generate
from skipjax.language_model import LanguageModel
from skipjax.methods import Full, SkipDecode
from skipjax.recorded import Recorded
from skipjax.tokenizer import Tokenizer

RECORDED = SkipDecode(4, 2, horizon=6)
TEMPLATE = "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"


@pytest.fixture(scope="session")
def model(tmp_path_factory) -> str:
    """A checkpoint of the tiny model with one token per letter, digit or sign."""
    vocabulary = {"<s>": 0, "<pad>": 1, "</s>": 2}
    vocabulary |= {chr(code): index for index, code in enumerate(range(33, 33 + 94), 3)}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [], unk_token="<pad>"))
    backend.decoder = tokenizers.decoders.Fuse()
    backend.add_special_tokens(["<s>", "<pad>", "</s>"])
    tokenizer = Tokenizer(backend, {"eos_token": "</s>", "pad_token": "<pad>"}, TEMPLATE)
    lm = LanguageModel(tiny_lm().config, tiny_lm().params, tokenizer, Recorded(RECORDED, (1.0, 2.0)))
    directory = tmp_path_factory.mktemp("model") / "tiny"
    save(lm, directory)
    return str(directory)


def run(monkeypatch, capsys, *arguments: str) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of `skipjax ARGUMENTS`."""
    monkeypatch.setattr(sys, "argv", ["skipjax", *arguments])
    with pytest.raises(SystemExit) as ended:
        main.main()
    return ended.value.code or 0, *capsys.readouterr()


def test_json_has_one_object_per_prompt_and_is_what_the_library_gives(model, monkeypatch, capsys):
    status, out, _ = run(
        monkeypatch, capsys, "generate", "abc", "de", "--model", model, "--max-new-tokens", "9", "--json"
    )
    assert status == 0
    expected = generate(skipjax.load(model), ["abc", "de"], RECORDED, max_new_tokens=9)
    for index, line in enumerate(out.splitlines()):
        record = json.loads(line)
        length = expected.lengths[index]
        assert record == {
            "prompt": ["abc", "de"][index],
            "text": expected.texts[index],
            "tokens": expected.tokens[index, :length].tolist(),
            "depths": expected.depths[index, :length].tolist(),
            "finish_reason": expected.finish_reasons[index],
        }
    assert len(out.splitlines()) == 2


def test_report_names_the_method_and_its_depths(model, monkeypatch, capsys):
    status, out, _ = run(
        monkeypatch, capsys, "generate", "abc", "--model", model, "--method", "full", "--max-new-tokens", "9"
    )
    assert status == 0
    assert "layers x tokens: 4x" in out
    assert "Full: 4.0 of 4 layers per token" in out


def test_prompts_files_and_standard_input_give_the_same(model, monkeypatch, capsys, tmp_path):
    plain, objects = tmp_path / "prompts.txt", tmp_path / "prompts.jsonl"
    plain.write_text("abc\n\nde\nfgh\n")
    objects.write_text("".join(json.dumps({"prompt": prompt, "id": 1}) + "\n" for prompt in ("abc", "de", "fgh")))
    common = ["--model", model, "--max-new-tokens", "5", "--json", "--batch-size", "2"]
    outs = [run(monkeypatch, capsys, "generate", "--prompts-file", str(path), *common)[1] for path in (plain, objects)]
    with plain.open() as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        outs.append(run(monkeypatch, capsys, "generate", "--prompts-file", "-", *common)[1])
    assert outs[0] == outs[1] == outs[2]
    assert [json.loads(line)["prompt"] for line in outs[0].splitlines()] == ["abc", "de", "fgh"]


def test_chat_template_is_put_around_the_prompt(model, monkeypatch, capsys):
    common = ["--model", model, "--max-new-tokens", "5", "--json"]
    chat = json.loads(run(monkeypatch, capsys, "generate", "hi", "--chat", *common)[1])
    plain = json.loads(run(monkeypatch, capsys, "generate", "[user]hi", *common)[1])
    assert (chat["prompt"], chat["tokens"]) == ("hi", plain["tokens"])


def test_streamed_pieces_join_to_the_text(model):
    lm = skipjax.load(model)
    out = generate(lm, ["abc"], RECORDED, max_new_tokens=9)
    pieces = list(skipjax.stream(lm, "abc", RECORDED, max_new_tokens=9))
    assert "".join(pieces) == out.texts[0]
    assert len(pieces) > 1
    assert "".join(token_pieces(lm.tokenizer, out.tokens[0])) == out.texts[0]


MISTAKES = [
    (["--method", "skip", "x"], "--method must be one of 'full', 'skipdecode', got 'skip'"),
    (["--method", "full", "--speedup", "2", "x"], "--method full runs every layer, so it takes no --speedup"),
    (["--speedup", "2", "--max-depth", "3", "x"], "give either --speedup or --max-depth and --min-depth, not both"),
    (["--max-depth", "3", "x"], "--method skipdecode needs --speedup, or both --max-depth and --min-depth"),
    (["--max-depth", "9", "--min-depth", "2", "x"], "max_depth must be at most the model's 4 layers, got 9"),
    (["--speedup", "0.2", "x"], "speedup must be a number at least 1, got 0.2"),
    (["--batch-size", "0", "x"], "--batch-size must be an integer of at least 1, got 0"),
    (["--temperature", "-1", "x"], "temperature must be a number at least 0 and at most 1e+06, got -1.0"),
    (["--top-p", "2", "x"], "top_p must be a number above 0 and at most 1, got 2.0"),
    (["--max-new-tokens", "100", "x"], "prompt 0 has 1 tokens; with max_new_tokens=100 that is beyond the model's 64"),
    ([], "nothing to continue: give a prompt"),
    (["--prompts-file", "absent.txt"], "--prompts-file absent.txt: no such file"),
    (["--prompts-file", "absent.txt", "x"], "give prompts either as arguments or with --prompts-file, not both"),
    (["--dtype", "int8", "x"], "dtype must be 'auto', 'float32', 'bfloat16', 'float16', got 'int8'"),
    (["--execution", "fast", "x"], "execution must be one of 'auto', 'unrolled', 'scanned', got 'fast'"),
]


@pytest.mark.parametrize(("arguments", "said"), MISTAKES)
def test_mistakes_get_one_sentence_and_status_2(model, monkeypatch, capsys, arguments, said):
    status, out, err = run(monkeypatch, capsys, "generate", "--model", model, *arguments)
    assert (status, out) == (2, "")
    assert err.startswith("skipjax: ")
    assert said in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.txt", b"\n\n", "holds no prompt"),
        ("b.txt", b"\xff\xfe", "is not UTF-8 text"),
        ("c.jsonl", b'{"prompt": "a"}\n{"text": "b"}\n', 'line 2: expected an object with a text "prompt"'),
        ("d.jsonl", b"not json\n", 'line 1: expected an object with a text "prompt"'),
    ],
)
def test_damaged_prompts_files_are_named(model, monkeypatch, capsys, tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    status, _, err = run(monkeypatch, capsys, "generate", "--model", model, "--prompts-file", str(tmp_path / name))
    assert status == 2
    assert said in err


def test_method_flags_fall_back_on_the_recorded_method():
    def of(*arguments, recorded=RECORDED, **given):
        return flags.method_from_flags(*(arguments or (None,)), num_layers=12, recorded=recorded, **given)

    assert of() == RECORDED
    assert of(recorded=None) == Full()
    assert of("full") == Full()
    assert of(speedup=2.0) == SkipDecode(8, 4, horizon=6)
    assert of(speedup=2.0, recorded=None) == SkipDecode(8, 4)
    assert of("skipdecode", horizon=20) == dataclasses.replace(RECORDED, horizon=20)
    assert of(max_depth=6, min_depth=5, warmup_layers=2) == SkipDecode(6, 5, 2, 6)


def test_depths_are_shown_as_runs_and_shades():
    assert depth_line([12, 12, 8, 8, 8, 4]) == "12x2 8x3 4x1"
    shaded = colour_by_depth(["ab", "c"], [12, 2], 12)
    assert shaded == "\x1b[38;5;250mab\x1b[38;5;82mc\x1b[0m"

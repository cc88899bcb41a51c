"""`skipjax generate` as a user meets it: flags, output, and one sentence for each mistake."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from letters import letters_lm
from tiny_models import tiny_lm

import skipjax
from skipjax import display, main, pages
from skipjax.adaptive import AdaptiveThreshold
from skipjax.checkpoint import save
from skipjax.display import colour_by_depth, costs, depth_line, in_turn, records, show, timed, token_pieces
from skipjax.generation import generate
from skipjax.methods import Free, Full, SkipDecode

RECORDED = SkipDecode(4, 2, horizon=6)
FREE = Free(2, threshold=0.9, buffer_size=2)
METHODS = [Full(), Free(1, -1.0, buffer_size=2), Free(1, -1.0, buffer_size=2, verify="exact")]
FREE_FLAGS = ["--method", "free", "--shallow-layers", "2", "--buffer-size", "2"]


@pytest.fixture(scope="session")
def model(tmp_path_factory) -> str:
    """A checkpoint of the tiny model with one token per letter, digit or sign."""
    directory = tmp_path_factory.mktemp("model") / "tiny"
    save(letters_lm(RECORDED), directory)
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
            "confidences": [None] * length,
            "finish_reason": expected.finish_reasons[index],
        }
    assert len(out.splitlines()) == 2


def test_json_of_a_method_with_exits(model, monkeypatch, capsys):
    common = ["--model", model, "--max-new-tokens", "9", "--json", *FREE_FLAGS, "--threshold", "0.9"]
    status, out, _ = run(monkeypatch, capsys, "generate", "abc", "de", *common)
    assert status == 0
    expected = generate(skipjax.load(model), ["abc", "de"], FREE, max_new_tokens=9)
    records = [json.loads(line) for line in out.splitlines()]
    for index, record in enumerate(records):
        length = expected.lengths[index]
        assert record["tokens"] == expected.tokens[index, :length].tolist()
        assert record["depths"] == expected.depths[index, :length].tolist()
        assert record["confidences"] == expected.confidences[index, :length].tolist()
    assert {depth for record in records for depth in record["depths"]} == {2, 4}


def test_report_names_the_method_and_its_depths(model, monkeypatch, capsys):
    status, out, _ = run(
        monkeypatch, capsys, "generate", "abc", "--model", model, "--method", "full", "--max-new-tokens", "9"
    )
    assert status == 0
    assert "layers x tokens: 4x" in out
    assert "Full: 4.0 of 4 layers per token" in out


def test_methods_are_set_beside_each_other(model, monkeypatch, capsys):
    flags = ["--method", "full,free", "--shallow-layers", "2", "--buffer-size", "2", "--threshold", "0.9"]
    status, out, _ = run(monkeypatch, capsys, "generate", "abc", "--model", model, *flags, "--max-new-tokens", "9")
    assert status == 0
    assert re.search(r"^  Full: .*\n    layers x tokens: 4x\d", out, re.MULTILINE)
    assert re.search(r"^  Free 0\.9: .*\n    layers x tokens: 4x\d 2x\d", out, re.MULTILINE)
    assert re.search(
        r"^Free 0\.9: \d\.\d of 4 layers per token, .*\n"
        r"  exits: \d+% of tokens, threshold 0\.90, \d deep passes of \d\.\d tokens\n"
        r"  speed-up: target 2\.00x, realised \d\.\d\dx .*, measured \d\.\d\dx ",
        *(out, re.MULTILINE),
    )


def test_what_an_adaptive_threshold_learns_goes_from_batch_to_batch_and_run_to_run(
    model, monkeypatch, capsys, tmp_path
):
    drawn = []
    monkeypatch.setattr(AdaptiveThreshold, "plot", lambda self, path: drawn.append((self, path)))
    state, lm, expected = tmp_path / "state.json", skipjax.load(model), [AdaptiveThreshold()]
    method = Free(2, buffer_size=2, adaptive=True)
    for prompt in ["abc", "de", "abc", "de"]:
        out = generate(lm, [prompt], method, max_new_tokens=9, adaptive_threshold=expected[-1])
        expected.append(out.adaptive_threshold)
    flags = [*FREE_FLAGS, "--adaptive", "--batch-size", "1", "--max-new-tokens", "9", "--json"]
    flags += ["--adaptive-state", str(state), "--threshold-plot", "plot.png"]
    for learnt in (expected[2], expected[4]):
        status, _, err = run(monkeypatch, capsys, "generate", "abc", "de", "--model", model, *flags)
        assert (status, err) == (0, "")
        assert AdaptiveThreshold.load(state) == learnt
    assert len(expected[4].confidences) > len(expected[2].confidences) > 0
    assert drawn == [(expected[index], Path("plot.png")) for index in (0, 2, 2, 4)]


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


def test_sampled_texts_do_not_depend_on_the_batches(model, monkeypatch, capsys, tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text("abc\nde\nabc\nabc\nde\n")
    common = ["generate", "--model", model, "--prompts-file", str(path), "--max-new-tokens", "9", "--temperature", "1"]
    outs = [run(monkeypatch, capsys, *common, "--json", "--batch-size", size)[1] for size in ("5", "2")]
    assert outs[0] == outs[1]
    texts = [json.loads(line)["text"] for line in outs[0].splitlines()]
    assert len({texts[0], *texts[2:4]}) == 3  # of the same prompt
    output = tmp_path / "answers.jsonl"
    assert run(monkeypatch, capsys, *common, "--batch-size", "3", "--output", str(output))[0] == 0
    assert output.read_text() == outs[0]


def test_output_takes_the_answers_and_a_second_run_finds_them(model, monkeypatch, capsys, tmp_path):
    path, output = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    fields = [
        {"id": index, "prompt": prompt, "more": {"é": 1}} for index, prompt in enumerate(["hi", "abcdefghijk", "de"])
    ]
    path.write_text("".join(json.dumps(one) + "\n" for one in fields))
    flags = ["generate", "--prompts-file", str(path), "--model", model, "--max-new-tokens", "9"]
    flags += ["--chat", "--batch-size", "2", "--output", str(output)]
    status, out, err = run(monkeypatch, capsys, *flags)
    assert (status, out, err) == (0, f"{output}: 3 answers, 3 of them new\n", "")
    prompts = [f"[user]{one['prompt']}" for one in fields]
    expected = records(prompts, generate(skipjax.load(model), prompts, RECORDED, max_new_tokens=9))
    answers = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    assert answers == [{**record, **one} for record, one in zip(expected, fields, strict=True)]
    assert run(monkeypatch, capsys, *flags)[1] == f"{output}: 3 answers, 0 of them new\n"
    before = output.read_bytes()
    status, out, err = run(monkeypatch, capsys, *flags, "--temperature", "0.5")
    assert (status, out) == (2, "")
    assert err == (
        f"skipjax: {output}.progress is of answers with temperature 0.0, and this one has 0.5: give another --output,"
        " or remove the file to begin anew\n"
    )
    assert output.read_bytes() == before


def test_mistakes_with_output_show_before_anything_is_loaded(monkeypatch, capsys, tmp_path):
    path, output = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    path.write_text('{"prompt": "a"}\n{"prompt": "b", "text": "c"}\n')
    monkeypatch.setattr(skipjax, "load", None)
    common = ["generate", "--output", str(output), "--prompts-file", str(path)]
    together = "--output goes with --prompts-file, and without --json and --html"
    for arguments, said in [
        (common, f'--prompts-file {path}, line 2: the field "text" is one of the answer, rename it'),
        ([*common, "--json"], together),
        ([*common, "--html", str(tmp_path / "a.html")], together),
        (["generate", "a", "--output", str(output)], together),
        (["generate", "--output", str(output)], together),
    ]:
        assert run(monkeypatch, capsys, *arguments) == (2, "", f"skipjax: {said}\n")
    assert [entry.name for entry in tmp_path.iterdir()] == ["prompts.jsonl"]


def test_mistakes_with_output_leave_nothing_behind(model, monkeypatch, capsys, tmp_path):
    path, output = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    path.write_text(json.dumps({"prompt": "a"}) + "\n\n" + json.dumps({"prompt": "b" * 60}) + "\n")
    common = ["generate", "--model", model, "--output", str(output), "--prompts-file", str(path)]
    for arguments, said in [
        (
            ["--max-new-tokens", "5"],
            f"--prompts-file {path}, line 3 has 60 tokens; with max_new_tokens=5 that is beyond",
        ),
        (["--max-new-tokens", "0"], "max_new_tokens must be an integer of at least 1, got 0"),
        (["--method", "full,skipdecode"], "--output takes the texts of one method, got full, skipdecode 4/2"),
        ([*FREE_FLAGS, "--adaptive"], "--output goes without an adaptive threshold"),
    ]:
        status, out, err = run(monkeypatch, capsys, *common, *arguments)
        assert (status, out, len(err.splitlines())) == (2, "", 1)
        assert said in err
    assert [entry.name for entry in tmp_path.iterdir()] == ["prompts.jsonl"]


def test_the_page_holds_every_prompt_and_method(model, monkeypatch, capsys, tmp_path):
    pages_written = []
    monkeypatch.setattr(pages, "write_texts", lambda *given: pages_written.append(given))
    path = tmp_path / "texts.html"
    flags = ["--method", "full,free", "--shallow-layers", "2", "--buffer-size", "2", "--threshold", "0.9"]
    flags += ["--batch-size", "1", "--max-new-tokens", "9", "--html", str(path)]
    status, _, err = run(monkeypatch, capsys, "generate", "abc", "de", "--model", model, *flags)
    assert (status, err) == (0, "")
    ((samples, num_layers, written),) = pages_written
    assert (num_layers, written, path.exists()) == (4, path, False)
    lm, methods = skipjax.load(model), {"full": Full(), "free 0.9": FREE}
    for index, (sample, prompt) in enumerate(zip(samples, ["abc", "de"], strict=True)):
        assert (sample["prompt"], sample["references"]) == (prompt, [])
        assert list(sample["texts"]) == list(sample["tokens"]) == list(methods)
        for label, method in methods.items():
            out = generate(lm, ["abc", "de"], method, max_new_tokens=9)
            assert sample["texts"][label] == out.texts[index] == "".join(sample["tokens"][label]["pieces"])
            assert sample["tokens"][label]["depths"] == out.depths[index, : out.lengths[index]].tolist()


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
    (["--method", "fre", "x"], "'static-exit', 'calm', got 'fre' (did you mean 'free'?)"),
    (["--method", "full", "--speedup", "2", "x"], "--speedup goes with --method skipdecode, not with full"),
    (["--method", "free", "x"], "--method free needs --shallow-layers"),
    (["--method", "full,skipdecode", "--json", "x"], "--json prints the texts of one method, got full, skipdecode 4/2"),
    (["--adaptive-state", "s.json", "x"], "--adaptive-state goes with --method free --adaptive"),
    (["--heads", "absent", "x"], "heads: 'absent' holds no exits"),
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
    (["--html", "nowhere/x.html", "x"], "--html nowhere/x.html: cannot be written (No such file or directory)"),
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


def test_depths_are_shown_as_runs_and_shades():
    assert depth_line([12, 12, 8, 8, 8, 4]) == "12x2 8x3 4x1"
    shaded = colour_by_depth(["ab", "c"], [12, 2], 12)
    assert shaded == "\x1b[38;5;250mab\x1b[38;5;82mc\x1b[0m"
    # Full depth is grey however few layers there are, and nothing else is.
    for num_layers in (1, 2, 4, 12, 48):
        grey = [depth for depth in range(1, num_layers + 1) if "250m" in colour_by_depth(["a"], [depth], num_layers)]
        assert grey == [num_layers]


def test_the_report_says_what_tokens_did():
    lm, prompts = tiny_lm(num_layers=2), [[5, 6, 7], [8, 9]]
    lm.warned.update(method.static() for method in METHODS)
    lines: list[str] = []
    coming = in_turn(lm, prompts, METHODS, [None] * len(METHODS), max_new_tokens=5, stop_at_eos=False)
    outs = show(lm, ["5 6 7", "8 9"], METHODS, coming, lines.append)
    text = "\n".join([*lines, costs(lm, METHODS, outs)])
    assert outs[0].tokens.tolist() == outs[2].tokens.tolist()
    exact = outs[2].stats
    for line in [
        "  Full: " + " ".join(map(str, outs[0].tokens[0])),
        "    layers x tokens: 2x1 1x4",
        "  exits: 80% of tokens, threshold -1.00",
        f"deep passes of {exact.tokens_per_deep_pass:.1f} tokens, {exact.acceptance_rate:.0%} stood when checked",
        "  speed-up: target 2.00x, realised 1.67x (layers of the tokens generated), measured ",
    ]:
        assert line in text
    assert text.count("  exits: ") == 2
    alone = costs(lm, METHODS[1:2], outs[1:2])
    assert "measured run with full beside it, as in --method full,free, to compare" in alone
    assert lines.index("5 6 7") < lines.index("8 9")
    (first, _) = records(["5 6 7", "8 9"], outs[1])
    assert first["text"] is None
    assert first["confidences"] == [None if np.isnan(one) else one for one in outs[1].confidences[0]]


def test_the_first_text_does_not_wait_for_the_second_method():
    lm, seen = tiny_lm(num_layers=2), []
    out = generate(lm, [[5, 6, 7]], Full(), max_new_tokens=5)

    def coming():
        yield out
        seen.append("second")
        yield out

    show(lm, ["5 6 7"], METHODS[:2], coming(), seen.append)
    assert [line.split()[0] for line in seen if line] == ["5", "Full:", "second", "Free"]


def test_timed_keeps_the_median_run_of_each_method():
    out = generate(tiny_lm(num_layers=2), [[5, 6, 7]], Full(), max_new_tokens=5)
    took = iter([3.0, 1.0, 5.0, 2.0, 4.0])

    def run():
        stats = dataclasses.replace(out.stats, decode_seconds=next(took))
        return [dataclasses.replace(out, stats=stats)]

    assert [one.stats.decode_seconds for one in timed(tiny_lm(num_layers=2), run)] == [3.0]


def test_prompts_of_the_user_are_generated_once(model, monkeypatch, capsys):
    made = []
    monkeypatch.setattr(display, "generate", lambda *given, **more: made.append(given[1]) or generate(*given, **more))
    flags = ["--method", "full,free", "--shallow-layers", "2", "--buffer-size", "2", "--threshold", "0.9"]
    status, _, _ = run(monkeypatch, capsys, "generate", "abc", "--model", model, *flags, "--max-new-tokens", "9")
    assert status == 0
    assert made == [[[67, 68, 69]], [[67, 68, 69]]]

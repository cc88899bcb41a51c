"""Rows from files, prompts from templates, tokens from both."""

import dataclasses
import gzip
import json

import numpy as np
import pytest
from tiny_models import tiny_config
from tiny_training import T5

from skipjax.tokenizer import Tokenizer
from skipjax.training.data import Template, as_text, load_rows, prompts_and_targets, targets_of, tokenize
from skipjax.training.vocabulary import train_tokenizer

ROWS = [{"mr": "name[A b], ok", "ref": "A b is ok."}, {"mr": "NA", "ref": ""}, {"mr": "é  x", "ref": "007"}]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    directory = tmp_path_factory.mktemp("words") / "tokenizer"
    train_tokenizer(["name[Aa], food[x] -> Aa serves x."] * 3, 300, directory)
    return Tokenizer.from_directory(directory)


CONFIG = tiny_config(vocab_size=300, bos_id=0, eos_ids=(1,), pad_id=2)


def csv_text():
    return 'mr,ref\n"name[A b], ok",A b is ok.\nNA,\né  x,007\n'


def write_parquet(path):
    import datasets

    datasets.Dataset.from_list(ROWS).to_parquet(path)


WRITERS = {
    "rows.csv": lambda path: path.write_text(csv_text(), encoding="utf-8"),
    "rows.csv.gz": lambda path: path.write_bytes(gzip.compress(csv_text().encode())),
    "rows.tsv": lambda path: path.write_text("mr\tref\nname[A b], ok\tA b is ok.\nNA\t\né  x\t007\n", encoding="utf-8"),
    "rows.json": lambda path: path.write_text(json.dumps(ROWS), encoding="utf-8"),
    "rows.jsonl": lambda path: path.write_text("\n".join(map(json.dumps, ROWS)), encoding="utf-8"),
    "rows.jsonl.gz": lambda path: path.write_bytes(gzip.compress("\n".join(map(json.dumps, ROWS)).encode())),
    "rows.parquet": write_parquet,
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_kind_of_file(tmp_path, name):
    path = tmp_path / name
    WRITERS[name](path)
    rows = load_rows(path)
    assert prompts_and_targets(rows, "{mr}|", "ref") == (
        ["name[A b], ok|", "NA|", "é  x|"],
        ["A b is ok.", "", "007"],
    )
    assert len(load_rows(path, limit=2)) == 2


def test_template():
    template = Template.parse("{{mr}}: {mr} / {the ref}. ")
    assert template.columns == ["mr", "the ref"]
    assert template.fill({"mr": "{x}", "the ref": 3}) == "{mr}: {x} / 3. "
    assert Template.parse("no field").fill({}) == "no field"


def test_cells_as_text():
    assert [as_text(cell) for cell in ("a", None, 3, 2.5, ["A é.", "B."], ["a", 1], {"a": 1})] == [
        "a",
        "",
        "3",
        "2.5",
        "A é. B.",
        '["a", 1]',
        '{"a": 1}',
    ]


def test_target_cells_of_several_texts():
    cells = ["a", None, 3, ["a", "b", "a"], [], {"text": ["a", "b"], "answer_start": [1, 2]}, [{"text": "a"}], [1, 2]]
    assert [targets_of(cell) for cell in cells] == [
        ["a"],
        [""],
        ["3"],
        ["a", "b"],
        [""],
        ["a", "b"],
        ["a"],
        ["[1, 2]"],
    ]


def test_rows_with_several_targets_give_one_pair_each():
    import datasets

    rows = datasets.Dataset.from_list([{"source": ["A.", "B."], "target": ["a", "b"]}, {"source": [], "target": []}])
    assert prompts_and_targets(rows, "{source} ->", "target") == (["A. B. ->", "A. B. ->", "[] ->"], ["a", "b", ""])


def test_questions_of_squads_nested_file(tmp_path):
    answers = [{"text": "308", "answer_start": 3}, {"text": "of 308", "answer_start": 1}]
    asked = [{"id": "q1", "question": "How many?", "answers": answers}, {"id": "q2", "question": "Who?", "answers": []}]
    article = {"title": "T", "paragraphs": [{"context": "C", "qas": asked}]}
    path = tmp_path / "squad.json"
    path.write_text(json.dumps({"data": [article], "version": "1.1"}))
    rows = load_rows(path)
    assert rows[0] == {
        "title": "T",
        "context": "C",
        "id": "q1",
        "question": "How many?",
        "answers": {"text": ["308", "of 308"], "answer_start": [3, 1]},
    }
    assert prompts_and_targets(rows, "{context} {question}", "answers") == (
        ["C How many?", "C How many?", "C Who?"],
        ["308", "of 308", ""],
    )


def tokens_of(tokenizer, rows, config=CONFIG, **changes):
    import datasets

    table = datasets.Dataset.from_list(rows)
    return tokenize(table, tokenizer, config, **{"prompt_template": "{mr} ->", "target_column": "ref", **changes})


def test_tokens(tokenizer):
    examples = tokens_of(tokenizer, ROWS)
    assert len(examples) == 2
    assert examples.dropped == {"empty target": 1}
    assert examples.prompts[0].tolist() == tokenizer.encode("name[A b], ok ->")
    assert examples.prompts[0][0] == CONFIG.bos_id
    assert examples.targets[0].tolist() == [*tokenizer.encode("A b is ok.", add_special_tokens=False), 1]
    assert CONFIG.bos_id not in examples.targets[0]
    assert {array.dtype for array in (*examples.prompts, *examples.targets)} == {np.dtype("int32")}


def test_long_rows_are_left_out_and_counted(tokenizer):
    rows = [{"mr": "z" * number, "ref": "y" * number} for number in (1, 10, 20, 50)]
    examples = tokens_of(tokenizer, rows, max_prompt_tokens=30, max_target_tokens=15)
    assert [len(target) for target in examples.targets] == [2, 11]
    assert examples.dropped == {"target over 15 tokens": 1, "prompt over 30 tokens": 1}
    assert tokens_of(tokenizer, rows).dropped == {"over the model's 64 positions": 1}


def test_relative_positions_have_no_end(tokenizer):
    config = dataclasses.replace(T5, vocab_size=300, eos_ids=(1,))
    rows = [{"mr": "z" * 200, "ref": "y" * 200}]
    examples = tokens_of(tokenizer, rows, config, max_prompt_tokens=1000)
    assert len(examples) == 1
    assert len(examples.prompts[0]) > 200


def test_tokenizer_round_trip(tokenizer, tmp_path):
    texts = ["name[Aa], food[x]", "  two  spaces ", "tab\tnew\n\nline\r\n", "é 中文 🙂 e\u0301", "Aa.Bb", ""]
    for text in texts:
        assert tokenizer.decode(tokenizer.encode(text)) == text
    pieces = [tokenizer.decode([token]) for token in tokenizer.encode(" food[x]", add_special_tokens=False)]
    assert pieces == [" food[x]"]  # cut at spaces only
    assert tokenizer.encode("")[0] == tokenizer.bos_id == 0
    assert (tokenizer.eos_id, tokenizer.pad_id) == (1, 2)


def test_transformers_reads_the_tokenizer(tmp_path):
    transformers = pytest.importorskip("transformers")
    train_tokenizer(["a b, c d"] * 3, 270, tmp_path / "words")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "words")
    ours = Tokenizer.from_directory(tmp_path / "words")
    assert ours is not None
    for text in ("a b, c", " é  x"):
        assert theirs(text)["input_ids"] == ours.encode(text)
        assert theirs.decode(ours.encode(text), skip_special_tokens=True) == text
    assert (theirs.bos_token_id, theirs.eos_token_id, theirs.pad_token_id) == (0, 1, 2)


def refusal(call, kind=ValueError):
    with pytest.raises(kind) as error:
        call()
    assert "\n" not in str(error.value)
    return str(error.value)


def test_refused_files(tmp_path):
    text = tmp_path / "rows.txt"
    text.write_text("a")
    kinds = ".csv, .tsv, .json, .jsonl, .parquet"
    assert (
        refusal(lambda: load_rows(text)) == f"data must be a {kinds} file (or one of them with .gz), got {str(text)!r}"
    )
    assert "got the directory" in refusal(lambda: load_rows(tmp_path))
    missing = str(tmp_path / "no.csv")
    assert refusal(lambda: load_rows(missing), FileNotFoundError) == f"data: there is no file {missing!r}"
    damaged = tmp_path / "rows.json"
    damaged.write_text('{"a": ')
    assert refusal(lambda: load_rows(damaged)).startswith(f"data: {str(damaged)!r} cannot be read as json (")
    cut = tmp_path / "rows.csv.gz"
    cut.write_bytes(gzip.compress(csv_text().encode() * 100)[:-20])
    assert refusal(lambda: load_rows(cut)).startswith(f"data: {str(cut)!r} cannot be read as csv (")
    empty = tmp_path / "rows.csv"
    empty.write_text("mr,ref\n")
    assert refusal(lambda: load_rows(empty)) == f"data must have at least one row, {str(empty)!r} has none"
    assert refusal(lambda: load_rows(empty, limit=0)) == "limit must be an integer of at least 1, got 0"


def test_hub_name_without_network():
    message = refusal(lambda: load_rows("someone/some-data"), FileNotFoundError)
    assert message.startswith(
        "data must be a file or the name of a dataset on the Hugging Face hub that can be reached, got 'someone/some-"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt_template": "{name} ->"}, "prompt_template names the column 'name', but the data has 'mr', 'ref'"),
        ({"target_column": "text"}, "target_column names the column 'text', but the data has 'mr', 'ref'"),
        (
            {"prompt_template": "{mr"},
            "prompt_template must have balanced braces (expected '}' before end of string), got '{mr'",
        ),
        ({"prompt_template": "{}"}, "prompt_template may hold only plain {column} fields, got '{}'"),
        ({"prompt_template": "{mr:>9}"}, "prompt_template may hold only plain {column} fields, got '{mr:>9}'"),
        ({"max_prompt_tokens": 0}, "max_prompt_tokens must be an integer from 1 to 64, got 0"),
        ({"max_target_tokens": 65}, "max_target_tokens must be an integer from 1 to 64, got 65"),
        (
            {"max_target_tokens": 1},
            "data must have at least one usable row, all were left out: 2 with target over 1 tokens, "
            "1 with empty target",
        ),
    ],
)
def test_refused_templates_and_columns(tokenizer, changes, message):
    assert refusal(lambda: tokens_of(tokenizer, ROWS, **changes)) == message


def test_refused_models(tokenizer):
    import datasets

    rows = datasets.Dataset.from_list(ROWS)

    def tokens(config):
        return tokenize(rows, tokenizer, config, prompt_template="{mr}", target_column="ref")

    small = dataclasses.replace(CONFIG, vocab_size=100)
    assert refusal(lambda: tokens(small)).startswith("tokenizer must fit the model: it gives token id ")
    endless = dataclasses.replace(CONFIG, eos_ids=())
    assert refusal(lambda: tokens(endless)) == (
        "model must have an end-of-text token (eos_token_id in its config), it has none"
    )


def test_refused_vocabularies(tmp_path):
    assert refusal(lambda: train_tokenizer(["a"], 258, tmp_path / "new")) == (
        "vocab_size must be an integer of at least 259, got 258"
    )
    (tmp_path / "file").write_text("")
    assert refusal(lambda: train_tokenizer(["a"], 300, tmp_path)) == (
        f"out must be a new or empty directory, got {str(tmp_path)!r}"
    )

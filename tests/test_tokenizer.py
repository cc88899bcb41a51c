"""Tokenizers: the same ids and texts as transformers, from every form of files, and streams that join to the text."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from skipjax.tokenizer import Tokenizer

TEXTS = (
    "the quick brown fox",
    "  the fox. , quick !  don't",
    "naïve 日本語 🎉 fox\n\n\tquick",
    "<s>the fox</s> quick",
    "",
)
CORPUS = ["the quick brown fox jumps over the lazy dog", "don't stop , naïve fox ! quick quick quick"] * 5
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}\n"
    "[{{ message['role'] }}] {{ message['content'] }}{{ eos_token }}\n"
    "{% endfor %}\n"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)


def byte_level_bpe(prefix=None):
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "</s>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    if prefix is not None:
        ids = [(prefix, backend.token_to_id(prefix))]
        backend.post_processor = processors.TemplateProcessing(single=f"{prefix} $A", special_tokens=ids)
    return backend


def sentencepiece_bpe():
    """Llama's form: spaces are characters, unknown bytes are tokens, the first space is stripped when decoding."""
    backend = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special[:3], show_progress=False)
    backend.train_from_iterator(CORPUS, trainer)
    vocabulary = json.loads(backend.to_str())
    vocabulary["model"]["vocab"] |= {token: 400 + i for i, token in enumerate(special[3:])}
    return tokenizers.Tokenizer.from_str(json.dumps(vocabulary))


SETTINGS = {
    "bos_token": "<s>",
    "eos_token": {"__type": "AddedToken", "content": "</s>", "lstrip": False, "normalized": True, "rstrip": False},
    "pad_token": "<pad>",
    "tokenizer_class": "PreTrainedTokenizerFast",
}


@pytest.fixture
def directory(tmp_path):
    byte_level_bpe("<s>").save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(SETTINGS))
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    return tmp_path


def load(directory: Path) -> Tokenizer:
    tokenizer = Tokenizer.from_directory(directory)
    assert tokenizer is not None
    return tokenizer


def reference(directory):
    return pytest.importorskip("transformers").AutoTokenizer.from_pretrained(directory)


def assert_equal_to_transformers(ours, theirs):
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode(text)
        plain = theirs.encode(text, add_special_tokens=False)
        assert ours.encode(text, add_special_tokens=False) == plain
        assert ours.decode(plain) == theirs.decode(plain, skip_special_tokens=True)


def test_special_tokens(directory):
    tokenizer = load(directory)
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id) == (0, 1, 2)
    assert tokenizer.vocab_size == 300
    ids = tokenizer.encode("the fox")
    assert ids[0] == 0
    assert ids[1:] == tokenizer.encode("the fox", add_special_tokens=False)
    assert tokenizer.decode([*ids, 1, 2, 2]) == "the fox"


def test_equal_to_transformers(directory):
    assert_equal_to_transformers(load(directory), reference(directory))


def test_special_tokens_named_outside_the_file(directory):
    settings = {**SETTINGS, "pad_token": "[PAD]", "additional_special_tokens": ["<x>"]}
    settings["added_tokens_decoder"] = {"300": {"content": "[PAD]", "special": True}, "301": {"content": "<y>"}}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = load(directory)
    assert tokenizer.pad_id == 300
    assert tokenizer.encode("<y><x>[PAD]", add_special_tokens=False) == [301, 302, 300]
    assert tokenizer.decode([301, 302, 300]) == "<y>"


def test_special_tokens_map_alone(directory):
    (directory / "tokenizer_config.json").unlink()
    (directory / "special_tokens_map.json").write_text(json.dumps({"eos_token": "</s>"}))
    tokenizer = load(directory)
    assert (tokenizer.bos_id, tokenizer.eos_id) == (None, 1)


def test_truncation_and_padding_of_the_file_are_off(directory):
    backend = byte_level_bpe()
    backend.enable_truncation(3)
    backend.enable_padding(length=50)
    backend.save(str(directory / "tokenizer.json"))
    assert len(load(directory).encode("qqqqqqq")) == 7


@pytest.mark.parametrize("clean_up", [True, False])
def test_clean_up_of_spaces(directory, clean_up):
    (directory / "tokenizer_config.json").write_text(json.dumps({**SETTINGS, "clean_up_tokenization_spaces": clean_up}))
    tokenizer = load(directory)
    assert tokenizer.decode(tokenizer.encode("fox , don 't .")) == "fox , don 't .", "never done to BPE"
    words = tokenizers.Tokenizer(models.WordLevel({"fox": 0, ".": 1, "n't": 2, "do": 3}))
    words.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"clean_up_tokenization_spaces": clean_up}))
    assert load(directory).decode([0, 3, 2, 1]) == ("fox don't." if clean_up else "fox do n't .")


@pytest.mark.parametrize("add_bos_token", [True, False])
def test_vocabulary_and_merges_as_of_opt(tmp_path, add_bos_token):
    """The files of facebook/opt-*: no tokenizer.json, and `</s>` before every text."""
    byte_level_bpe().model.save(str(tmp_path))
    settings = {"add_bos_token": add_bos_token, "add_prefix_space": False, "tokenizer_class": "GPT2Tokenizer"}
    settings |= dict.fromkeys(("bos_token", "eos_token", "unk_token"), SETTINGS["eos_token"]) | {"pad_token": "<pad>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = load(tmp_path)
    assert (tokenizer.encode("fox")[0] == 1) == add_bos_token
    assert tokenizer.decode([1, *tokenizer.encode("the fox"), 1]) == "the fox"
    assert_equal_to_transformers(tokenizer, reference(tmp_path))
    tokenizer.save(tmp_path / "saved")
    assert_equal_to_transformers(load(tmp_path / "saved"), reference(tmp_path / "saved"))
    assert load(tmp_path / "saved").encode("fox") == tokenizer.encode("fox")


def test_other_files_go_through_transformers(tmp_path):
    pytest.importorskip("transformers")
    words = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]", "the", "fox", "##es"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    tokenizer = load(tmp_path)
    assert tokenizer.encode("The foxes") == [1, 5, 6, 7, 2]
    assert tokenizer.pad_id == 3
    tokenizer.save(tmp_path / "saved")
    assert (tmp_path / "saved" / "tokenizer.json").is_file()
    assert load(tmp_path / "saved").encode("The foxes") == [1, 5, 6, 7, 2]


def test_other_files_without_transformers(tmp_path, monkeypatch):
    (tmp_path / "spiece.model").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ValueError, match=r"has no tokenizer.json, .* need transformers, which is not installed"):
        load(tmp_path)


def test_none_where_there_are_no_files(tmp_path):
    assert Tokenizer.from_directory(tmp_path) is None


def test_save_and_load(directory, tmp_path):
    tokenizer = load(directory)
    tokenizer.save(tmp_path / "a" / "saved")
    again = load(tmp_path / "a" / "saved")
    assert again.settings == tokenizer.settings
    assert again.chat_template == TEMPLATE
    for text in TEXTS:
        assert again.encode(text) == tokenizer.encode(text)
    theirs = reference(tmp_path / "a" / "saved")
    assert_equal_to_transformers(again, theirs)
    assert theirs.chat_template == TEMPLATE


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("tokenizer.json", "{}", r"tokenizer.json: not a tokenizer that this version of tokenizers reads"),
        ("tokenizer.json", "", r"tokenizer.json: not a tokenizer that this version of tokenizers reads"),
        ("tokenizer_config.json", "{", r"tokenizer_config.json: not valid JSON"),
        ("tokenizer_config.json", "[]", r"tokenizer_config.json: must hold a JSON object"),
    ],
)
def test_damaged_files(directory, name, content, sentence):
    (directory / name).write_text(content)
    with pytest.raises(ValueError, match=sentence):
        load(directory)


def test_texts_that_cannot_be_encoded(directory):
    tokenizer = load(directory)
    with pytest.raises(ValueError, match="text must be a str, got int"):
        tokenizer.encode(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="text must be valid Unicode, got a lone surrogate at position 2"):
        tokenizer.encode("ab\ud800")


class TestChat:
    def test_prompt(self, directory):
        tokenizer = load(directory)
        expected = "<s>[user] hi</s>\n[assistant] "
        assert tokenizer.apply_chat_template("hi") == expected
        messages: list[dict[str, str | None]] = [
            {"role": "system", "content": "be kind"},
            {"role": "user", "content": "hi", "name": None},
        ]
        assert tokenizer.apply_chat_template(messages) == "<s>[system] be kind</s>\n[user] hi</s>\n[assistant] "
        ids = tokenizer.encode(expected, add_special_tokens=False)
        assert [token for token in ids if token == tokenizer.bos_id] == [0]
        theirs = reference(directory)
        assert theirs.apply_chat_template(messages[1:], add_generation_prompt=True, tokenize=False) == expected

    @pytest.mark.parametrize("template", [TEMPLATE, [{"name": "tool", "template": "x"}, {"name": "default"}]])
    def test_template_in_the_config(self, directory, template):
        (directory / "chat_template.jinja").unlink()
        if isinstance(template, list):
            template[1]["template"] = TEMPLATE
        (directory / "tokenizer_config.json").write_text(json.dumps({**SETTINGS, "chat_template": template}))
        assert load(directory).apply_chat_template("hi") == "<s>[user] hi</s>\n[assistant] "

    def test_what_templates_use(self, directory):
        (directory / "chat_template.jinja").write_text(
            "{% for m in messages %}{% generation %}{{ m.content | tojson }}{% endgeneration %}{% break %}{% endfor %}"
            "{{ strftime_now('%%') }}{{ tools is none }}"
        )
        tokenizer = load(directory)
        two = [{"role": "user", "content": "<é>"}, {"role": "user", "content": "b"}]
        assert tokenizer.apply_chat_template(two) == '"<é>"%True'

    @pytest.mark.parametrize(
        ("template", "sentence"),
        [
            (
                "{{ raise_exception('roles must alternate') }}",
                "chat template refuses these messages: roles must alternate",
            ),
            ("{% for %}", "chat template refuses these messages"),
            ("{{ ''.__class__.__mro__ }}", "chat template refuses these messages: access to attribute '__class__'"),
            ("{{ messages.append(1) }}", "chat template refuses these messages"),
        ],
    )
    def test_templates_that_fail(self, directory, template, sentence):
        (directory / "chat_template.jinja").write_text(template)
        with pytest.raises(ValueError, match=sentence):
            load(directory).apply_chat_template("hi")

    @pytest.mark.parametrize("messages", [[], ["hi"], [{"content": "hi"}], [{"role": "user", "content": object()}]])
    def test_bad_messages(self, directory, messages):
        with pytest.raises(ValueError, match=r"^messages must"):
            load(directory).apply_chat_template(messages)

    def test_no_template(self, directory):
        (directory / "chat_template.jinja").unlink()
        with pytest.raises(
            ValueError, match="chat needs a chat template, but the tokenizer of this checkpoint has none"
        ):
            load(directory).apply_chat_template("hi")


class TestStream:
    @pytest.mark.parametrize("make", [byte_level_bpe, sentencepiece_bpe])
    @pytest.mark.parametrize("text", [*TEXTS[:3], "日本語", "🎉🎉", " fox", "a\ufffdb"])
    def test_pieces_join_to_the_text(self, make, text):
        tokenizer = Tokenizer(make(), {"eos_token": "</s>"})
        ids, special = tokenizer.encode(text), tokenizer.eos_id
        assert special is not None
        ids = [special, *ids[:2], special, *ids[2:], special]  # adds nothing
        stream = tokenizer.stream()
        pieces = [stream.push(token) for token in ids]
        assert "".join(pieces) + stream.flush() == tokenizer.decode(ids)
        assert text.strip() in tokenizer.decode(ids)
        if "\ufffd" not in text:
            assert not any("\ufffd" in piece for piece in pieces)

    def test_characters_are_held_back(self):
        tokenizer = Tokenizer(byte_level_bpe())
        ids = tokenizer.encode("€")
        assert len(ids) == 3
        stream = tokenizer.stream()
        assert [stream.push(token) for token in ids] == ["", "", "€"]
        assert stream.flush() == ""
        cut = tokenizer.stream()
        assert [cut.push(token) for token in ids[:2]] == ["", ""]
        assert cut.flush() == tokenizer.decode(ids[:2]) == "\ufffd"

    def test_window_stays_short(self):
        tokenizer = Tokenizer(byte_level_bpe())
        stream = tokenizer.stream()
        for token in tokenizer.encode("the lazy dog " * 20):
            stream.push(token)
            assert len(stream._ids) <= 4


def test_import_is_light():
    """Neither tokenizers nor transformers nor jinja2 is imported before it is needed."""
    script = "import sys, skipjax.tokenizer; print(sorted({'tokenizers', 'transformers', 'jinja2'} & set(sys.modules)))"
    output = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    assert output.strip() == "[]"


def test_smollm2(shared_dir: Path) -> None:
    directory = shared_dir / "models" / "smollm2-135m-instruct"
    ours, theirs = load(directory), reference(directory)
    assert (ours.bos_id, ours.eos_id, ours.pad_id) == (1, 2, 2)
    assert_equal_to_transformers(ours, theirs)
    prompt = [{"role": "user", "content": "What is a skipjack?"}]
    expected = theirs.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)
    assert ours.apply_chat_template(prompt) == expected
    ids = theirs.apply_chat_template(prompt, add_generation_prompt=True, return_dict=False)
    assert ours.encode(expected, add_special_tokens=False) == ids
    stream = ours.stream()
    assert "".join(stream.push(token) for token in ours.encode(TEXTS[2])) + stream.flush() == TEXTS[2]

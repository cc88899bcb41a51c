"""Known values of the metrics and of their intervals."""

from __future__ import annotations

import numpy as np
import pytest
import sacrebleu

from skipjax import metrics


def value(name: str, texts: list[str], references: list[list[str]]) -> float:
    score = metrics.score([name], texts, references)[name]
    assert score.value is not None
    if score.by_input is not None:
        assert len(score.by_input) == len(texts)
        assert score.value == pytest.approx(score.by_input.mean())
    return score.value


def test_rouge_known_values():
    # Longest common subsequence of 3 in 4 and 6 words: precision 3/4, recall 3/6, F1 0.6.
    assert value("rougeL", ["a b c x"], [["a y b z c w"]]) == pytest.approx(60)
    # No stemming; capitals and punctuation do not count; the best reference does.
    assert value("rougeL", ["cats sit"], [["cat sits"]]) == 0
    assert value("rougeL", ["A cat sits."], [["nothing alike", "a cat sits"]]) == pytest.approx(100)
    assert value("rougeL", ["a b", "q"], [["a b"], ["r"]]) == pytest.approx(50)
    assert value("rougeL", [""], [["a b"]]) == 0
    # Order does not matter to single words: 3 of 3 and 3 of 4. Pairs: one of 2 and of 3.
    assert value("rouge1", ["c a b"], [["a b c d"]]) == pytest.approx(100 * 6 / 7)
    assert value("rouge2", ["c a b"], [["a b c d"]]) == pytest.approx(40)
    # Each metric takes its own best reference.
    scores = metrics.score(["rouge2", "rouge1"], ["c a b"], [["a b c d", "b a c"]])
    assert list(scores) == ["rouge2", "rouge1"]
    assert [score.value for score in scores.values()] == pytest.approx([40, 100])


def test_bleu_known_values():
    texts = ["the cat sat on the mat", "a b c d"]
    # n-gram precisions 9/10, 7/8, 5/6, 3/4 and no brevity penalty; a reference more changes nothing for the first text.
    expected = 100 * (9 / 10 * 7 / 8 * 5 / 6 * 3 / 4) ** 0.25
    assert value("bleu", texts, [["the cat sat on the mat", "no"], ["x b c d"]]) == pytest.approx(expected)
    assert value("bleu", texts, [["no", "the cat sat on the mat"], ["x b c d"]]) == pytest.approx(expected)
    assert value("bleu", texts, [["the cat sat on the mat"], ["x b c d", "a b c d"]]) == pytest.approx(100)


TEXTS = ["There is a cheap pub .", "", "It is by the river, near the café."]
REFERENCES = [["There is a cheap pub.", "A cheap pub is there."], ["Nothing."], ["It's by the river", "Near the Café"]]


@pytest.mark.parametrize("name", ["bleu", "chrf"])
def test_corpus_scores_are_sacrebleus(name):
    streams = [[several[0] for several in REFERENCES], [several[1] if several[1:] else None for several in REFERENCES]]
    official = sacrebleu.corpus_bleu if name == "bleu" else sacrebleu.corpus_chrf
    assert value(name, TEXTS, REFERENCES) == pytest.approx(official(TEXTS, streams).score)
    assert 0 < value(name, TEXTS, REFERENCES) < 100


def test_answers_to_questions():
    assert metrics.normalise_answer(" The  Broncos' 24-10, an a theatre ") == "broncos 2410 theatre"
    assert value("exact_match", ["The Denver Broncos!", "308"], [["Panthers", "denver  broncos"], ["309"]]) == 50
    assert value("f1", ["the red house"], [["red brick house"]]) == pytest.approx(80)
    assert value("f1", ["red red house"], [["red"]]) == pytest.approx(50)
    assert value("f1", ["red house"], [["blue", "a house"]]) == pytest.approx(100 * 2 / 3)
    assert value("f1", [""], [["the"]]) == 100
    assert value("f1", ["red"], [["the"]]) == 0


def test_intervals_of_means():
    by_input = np.array([0.0, 1.0] * 50)
    low, high = metrics.bootstrap(np.mean, by_input)
    # Of a share of a half among 100: 0.5 -+ 1.96 * 0.05.
    assert low == pytest.approx(0.402, abs=0.02)
    assert high == pytest.approx(0.598, abs=0.02)
    assert metrics.bootstrap(np.mean, by_input) == (low, high)
    assert metrics.bootstrap(np.mean, [1.0]) is None
    assert metrics.bootstrap(np.mean, [2.0, 2.0]) == (2.0, 2.0)


def test_intervals_of_ratios_are_paired():
    full = np.linspace(1, 100, 50)
    # Input by input the ratio is the same, however much the inputs differ.
    assert metrics.bootstrap(metrics.ratio_of_means, 0.9 * full, full) == pytest.approx((0.9, 0.9))
    assert metrics.bootstrap(metrics.ratio_of_means, np.zeros(3), np.zeros(3)) is None


@pytest.mark.parametrize("name", ["rougeL", "f1", "bleu", "chrf"])
def test_intervals_hold_the_score(name):
    texts, references = TEXTS * 10, REFERENCES * 10
    score = metrics.score([name], texts, references)[name]
    assert score.value is not None
    assert score.interval is not None
    low, high = score.interval
    assert low < score.value < high
    assert high - low < 60
    assert metrics.score([name], texts[:1], references[:1])[name].interval is None


def test_bertscore_needs_an_encoder(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="needs a local encoder: give its directory, --bertscore-model DIR"):
        metrics.check_bertscore(None)
    with pytest.raises(FileNotFoundError, match="not a directory of a Hugging Face model"):
        metrics.check_bertscore(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'skipjax\[bertscore\]' brings it"):
        metrics.check_bertscore(tmp_path)


@pytest.mark.filterwarnings("ignore")
def test_bertscore(tmp_path):
    pytest.importorskip("bert_score")
    import torch
    from transformers import BertConfig, BertModel, BertTokenizerFast

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "red", "dog"]
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    BertModel(BertConfig(vocab_size=len(words), **sizes)).save_pretrained(tmp_path)
    BertTokenizerFast(vocab={word: index for index, word in enumerate(words)}).save_pretrained(tmp_path)
    texts, references = ["the cat", "red dog", "the cat", ""], [["the cat"], ["cat", "red dog"], ["red dog"], ["red"]]
    score = metrics.score(["bertscore"], texts, references, bertscore_model=tmp_path)["bertscore"]
    assert score.by_input is not None
    assert score.by_input[:2] == pytest.approx([100, 100], abs=1e-3)
    assert score.by_input[2] < 90
    assert score.by_input[3] == 0


def test_every_metric_has_a_title():
    assert set(metrics.DEFAULT) < metrics.TITLES.keys()

"""EM, F1 and thresholds: against the golden scores and against the definition written out."""

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detalbert.squad.error_groups import find_group
from detalbert.squad.example import Example
from detalbert.squad.metrics import exact_match, f1, score
from detalbert.squad.normalization import answer_words
from tests.conftest import max_examples

# Made-up answers, each line the gold answers and the prediction, drawn from words, articles and
# marks of each language; scored by the official mlqa_evaluation_v1.py of commit 5ef5c731. English
# has only what SQuAD's scorer takes alike: ASCII's punctuation, and words in each gold answer.
MLQA = json.loads(Path(__file__).with_name("mlqa_scores.json").read_text(encoding="utf-8"))
TEXTS = {
    "The  Quick, brown FOX!": "quick brown fox",
    "a theatre in an anthem": "theatre in anthem",
    "U.S.A. (the)": "usa",
    "l'an\t1066\u2014\u00a0the": "lan 1066\u2014",
    "a-the b": "athe b",
    "the a an": "",
}


WORDS = st.lists(st.sampled_from(["red", "blue", "the", "go", "go"]), max_size=5).map(" ".join)


def question(id_, *answers):
    """Return a question with these gold answers; none: an unanswerable one."""
    return Example(id_, "t", "context", "question", tuple((answer, 0) for answer in answers))


def test_exact_match():
    for text, normalized in TEXTS.items():
        assert answer_words(text) == tuple(normalized.split())
        assert exact_match(text, normalized) == 1
        assert exact_match(text, f"{normalized} too") == 0
    assert exact_match("us army", "army us") == 0


@given(WORDS, WORDS)
@max_examples(150)
def test_f1_is_the_overlap_of_two_bags(prediction, gold):
    predicted = Counter(answer_words(prediction))
    expected = Counter(answer_words(gold))
    if predicted and expected:
        overlap = (predicted & expected).total()
        score = 2 * overlap / (predicted.total() + expected.total())
    else:
        score = float(predicted == expected)

    assert f1(prediction, gold) == pytest.approx(score, abs=1e-12)


def test_the_best_gold_answer_counts_and_no_blank_one():
    examples = [question("q", "the", "red blue", "red")]
    assert score(examples, {"q": "red"})["exact"] == 100.0
    assert score(examples, {"q": ""})["exact"] == 0.0  # "the" is no answer at all

    only_blank = [question("q", "the")]
    assert score(only_blank, {"q": ""})["HasAns_exact"] == 100.0


def test_questions_that_have_a_prediction_count():
    """If none is unanswerable (SQuAD 1.1), there are no scores of such ones."""
    examples = [question("a", "red"), question("b", "blue")]
    assert score(examples, {"b": "blue"}) == {
        "exact": 100.0,
        "f1": 100.0,
        "total": 1,
        "HasAns_exact": 100.0,
        "HasAns_f1": 100.0,
        "HasAns_total": 1,
    }
    assert score(examples, {}) == {"exact": 0.0, "f1": 0.0, "total": 0}


def test_abstaining_is_above_the_threshold():
    examples = [question("a", "red"), question("b")]
    predictions = {"a": "red", "b": "red"}
    odds = {"a": 1.5, "b": 1.5}

    answering = score(examples, predictions, odds, threshold=1.5)
    assert answering["HasAns_exact"] == 100.0
    assert answering["NoAns_exact"] == 0.0

    abstaining = score(examples, predictions, odds, threshold=1.4)
    assert abstaining["HasAns_exact"] == 0.0
    assert abstaining["NoAns_exact"] == 100.0


def plain_best(examples, predictions, odds, name):
    """Return the best score over all thresholds, in percent, and its threshold."""
    by_id = {example.id: example for example in examples}
    # Below all odds every question is abstained from; the threshold then passes one at a time.
    right = best = sum(not example.answers for example in examples)
    threshold = 0.0
    for id_ in sorted(odds, key=lambda id_: odds[id_]):
        if by_id[id_].answers:
            right += score([by_id[id_]], predictions)[name] / 100
        elif predictions[id_]:
            right -= 1
        if right > best:
            best = right
            threshold = odds[id_]
    return 100.0 * best / len(examples), threshold


@given(st.lists(st.tuples(st.integers(-3, 3), WORDS, WORDS), min_size=1, max_size=12), st.randoms())
@max_examples(150)
def test_best_thresholds(rows, random):
    examples = []
    predictions = {}
    shuffled_odds = []
    for number, (odds, gold, prediction) in enumerate(rows):
        id_ = str(number)
        examples.append(question(id_, gold) if gold else question(id_))
        predictions[id_] = prediction
        shuffled_odds.append((id_, float(odds)))
    random.shuffle(shuffled_odds)
    null_odds = dict(shuffled_odds)

    scores = score(examples, predictions, null_odds)

    for name in ("exact", "f1"):
        best, threshold = plain_best(examples, predictions, null_odds, name)
        assert scores[f"best_{name}"] == pytest.approx(best, abs=1e-9)
        assert scores[f"best_{name}_thresh"] == threshold


def test_golden_scores(golden_dir, dev):
    golden = json.loads((golden_dir / "scores_dev.json").read_text())
    decoded = json.loads((golden_dir / "predictions_dev.json").read_text())
    cases = {
        "scores": (golden["predictions"], None),
        "scores_with_null_scores_threshold_0": (golden["predictions"], golden["null_scores"]),
        "scores_of_predictions_file_threshold_0": (decoded["predictions"], decoded["null_odds"]),
    }
    examples, _ = dev
    for name, (predictions, odds) in cases.items():
        scores = score(examples, predictions, odds, threshold=0.0)
        assert list(scores) == list(golden[name])
        assert scores == pytest.approx(golden[name], abs=1e-9, rel=0), name


@pytest.mark.parametrize("language", MLQA)
def test_scores_of_a_language_are_those_of_mlqa(language):
    golden = MLQA[language]
    examples = []
    predictions = {}
    for number, (*gold, prediction) in enumerate(golden["pairs"]):
        examples.append(question(str(number), *gold))
        predictions[str(number)] = prediction
    scores = score(examples, predictions, language=language)
    assert (scores["exact"], scores["f1"]) == (golden["exact_match"], golden["f1"])


@pytest.mark.parametrize(
    ("language", "prediction", "gold", "overlap", "group"),
    [
        ("ja", "東京都庁", "東京都", 6 / 7, "span too long"),
        ("ja", "「カメラ」", "カメラ", 1, ""),
        ("th", "กรุงเทพ", "กรุง", 8 / 11, "span too long"),
        ("km", "ភ្នំពេញ", "ភ្នំពេញ។", 1, ""),
        ("lo", "ວຽງຈັນ", "ວຽງ", 6 / 9, "span too long"),
        ("my", "ရန်ကုန်", "ရန်ကုန်။", 1, ""),
        ("fr", "« la Seine »", "la Seine", 1, ""),
        ("fr", "la Seine", "Seine", 2 / 3, "span too long"),
        ("en", "“Seine”", "Seine", 0, "other span"),
        ("en", "Sein", "the Seine", 0, "span too short"),
        ("en", "Loire", "Seine", 0, "other span"),
        ("en", "the", "Seine", 0, "other span"),
    ],
)
def test_overlap_is_of_characters_without_spaces_and_else_of_words(
    language, prediction, gold, overlap, group
):
    assert f1(prediction, gold, language) == pytest.approx(overlap)
    assert find_group([gold], prediction, language) == group


def test_abstaining_is_right_in_every_language_where_there_is_no_answer():
    for language in ("en", "de", "zh"):
        scores = score([question("q")], {"q": ""}, language=language)
        assert (scores["NoAns_exact"], scores["NoAns_f1"]) == (100.0, 100.0)

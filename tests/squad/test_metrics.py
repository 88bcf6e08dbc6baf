"""EM, F1 and thresholds: against the golden scores and against the definition written out."""

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detalbert.squad.metrics import answer_words, exact_match, f1, score
from detalbert.squad.windows import Example
from tests.conftest import max_examples

TEXTS = {
    "The  Quick, brown FOX!": "quick brown fox",
    "a theatre in an anthem": "theatre in anthem",
    "U.S.A. (the)": "usa",
    "l'an\t1066\u2014\u00a0the": "lan 1066\u2014",
    "a-the b": "athe b",
    "the a an": "",
}


def question(id_: str, *answers: str) -> Example:
    return Example(id_, "t", "context", "question", tuple((answer, 0) for answer in answers))


def test_exact_match() -> None:
    for text, normal in TEXTS.items():
        assert answer_words(text) == tuple(normal.split())
        assert exact_match(text, normal) == 1 and exact_match(text, f"{normal} too") == 0
    assert exact_match("us army", "army us") == 0


WORDS = st.lists(st.sampled_from(["red", "blue", "the", "go", "go"]), max_size=5).map(" ".join)


@given(WORDS, WORDS)
@max_examples(150)
def test_f1_is_the_overlap_of_two_bags(prediction: str, gold: str) -> None:
    bags = [Counter(answer_words(text)) for text in (prediction, gold)]
    same, sizes = sum((bags[0] & bags[1]).values()), [sum(bag.values()) for bag in bags]
    want = 2 * same / sum(sizes) if all(sizes) else float(bags[0] == bags[1])
    assert f1(prediction, gold) == pytest.approx(want, abs=1e-12)


def test_what_counts() -> None:
    """The best gold answer, and no blank one; questions that have a prediction. Where none is
    unanswerable (SQuAD 1.1), nothing is said of such ones. Abstaining is above the threshold."""
    examples = [question("q", "the", "red blue", "red")]
    assert score(examples, {"q": "red"})["exact"] == 100.0
    assert score(examples, {"q": ""})["exact"] == 0.0  # "the" is no answer at all
    assert score([question("q", "the")], {"q": ""})["HasAns_exact"] == 100.0
    examples = [question("a", "red"), question("b", "blue")]
    right = {"exact": 100.0, "f1": 100.0, "total": 1}
    every = right | {f"HasAns_{name}": value for name, value in right.items()}
    assert score(examples, {"b": "blue"}) == every
    assert score(examples, {}) == {"exact": 0.0, "f1": 0.0, "total": 0}
    examples, odds = [question("a", "red"), question("b")], {"a": 1.5, "b": 1.5}
    predictions = {"a": "red", "b": "red"}
    at, below = (score(examples, predictions, odds, t) for t in (1.5, 1.4))
    assert (at["HasAns_exact"], at["NoAns_exact"]) == (100.0, 0.0)
    assert (below["HasAns_exact"], below["NoAns_exact"]) == (0.0, 100.0)


def plain_best(examples: Any, predictions: Any, odds: Any, name: str) -> tuple[float, float]:
    right = best = sum(not e.answers for e in examples)
    by_id, threshold = {e.id: e for e in examples}, 0.0
    for id_ in sorted(odds, key=lambda key: odds[key]):
        if by_id[id_].answers:
            right += score([by_id[id_]], predictions)[name] / 100
        elif predictions[id_]:
            right -= 1
        if right > best:
            best, threshold = right, odds[id_]
    return 100.0 * best / len(examples), threshold


@given(st.lists(st.tuples(st.integers(-3, 3), WORDS, WORDS), min_size=1, max_size=12), st.randoms())
@max_examples(150)
def test_best_thresholds(rows: list[tuple], random: Any) -> None:
    examples = [question(str(i), *([gold] if gold else [])) for i, (_, gold, _) in enumerate(rows)]
    predictions = {str(i): row[2] for i, row in enumerate(rows)}
    odds = [(str(i), float(row[0])) for i, row in enumerate(rows)]
    random.shuffle(odds)
    scores = score(examples, predictions, dict(odds))
    for name in ("exact", "f1"):
        best, threshold = plain_best(examples, predictions, dict(odds), name)
        assert scores[f"best_{name}"] == pytest.approx(best, abs=1e-9)
        assert scores[f"best_{name}_thresh"] == threshold


def test_golden_scores(shared: Any, dev: Any) -> None:
    files = [shared / "golden" / f"{name}_dev.json" for name in ("scores", "predictions")]
    golden, decoded = (json.loads(file.read_text()) for file in files)
    cases = {
        "scores": (golden["predictions"], None),
        "scores_with_null_scores_threshold_0": (golden["predictions"], golden["null_scores"]),
        "scores_of_predictions_file_threshold_0": (decoded["predictions"], decoded["null_odds"]),
    }
    for name, (predictions, odds) in cases.items():
        scores = score(dev[0], predictions, odds, threshold=0.0)
        assert list(scores) == list(golden[name])
        assert scores == pytest.approx(golden[name], abs=1e-9, rel=0), name

"""Calibrated probabilities: on made-up answers with known odds, and on a model's own."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detalbert.inference import answering
from detalbert.squad import calibration
from detalbert.squad.example import Example
from tests.fakes.questions import read_questions


def made_up(count, slope, offset=0.0, seed=1, wrong="oak"):
    """Return questions, lists and predictions: an answer with margin m is right with the
    probability sigmoid(slope * m + offset)."""
    rng = np.random.default_rng(seed)
    examples, n_best, predictions = [], {}, {}
    for number, margin in enumerate(rng.normal(1, 3, count).tolist()):
        is_right = rng.random() < 1 / (1 + np.exp(-slope * margin - offset))
        answers = (("ash" if is_right else wrong, 0),)
        examples.append(Example(str(number), "", context="", question="", answers=answers))
        share = 1 / (1 + np.exp(-margin))
        n_best[str(number)] = [
            {"text": "ash", "probability": share},
            {"text": "", "probability": 1 - share},
        ]
        predictions[str(number)] = "ash"
    return examples, n_best, predictions


@given(st.lists(st.tuples(st.floats(0, 1), *[st.booleans()] * 2), min_size=1, max_size=80))
def test_any_answers_have_a_fit(answers):
    """Newton's method ends where the loss is flat, however extreme the probabilities."""
    entries = [{"text": text * "ash", "probability": share} for share, text, _ in answers]
    right = np.array([is_right for *_, is_right in answers])
    features = calibration._features(entries)
    numbers = calibration._fit(features, right)
    surplus = 1 / (1 + np.exp(-numbers @ features)) - right
    assert features @ surplus + numbers == pytest.approx([1, 0, 0], abs=1e-5)


def test_abstaining_too_often_has_its_own_offset():
    """At one margin, answers are right nine times in ten, and "no answer" three times."""
    examples, n_best, predictions = [], {}, {}
    for number in range(400):
        is_null, is_right = number % 2 == 0, number % 20 < (6 if number % 2 == 0 else 18)
        gold = "ash" if is_right != is_null else ""
        name = str(number)
        examples.append(
            Example(name, "", context="", question="", answers=((gold, 0),) * bool(gold))
        )
        n_best[name] = [{"text": "ash", "probability": 0.5}, {"text": "", "probability": 0.5}]
        predictions[name] = "" if is_null else "ash"
    scores, fitted = calibration.fit_calibration(examples, n_best, predictions)
    assert fitted["0"] == pytest.approx(0.3, abs=0.03)
    assert fitted["1"] == pytest.approx(0.9, abs=0.03)
    entries = calibration.calibrated(n_best["0"], scores)
    assert [entry["probability"] for entry in entries] == [fitted["1"], fitted["0"]]


@pytest.mark.parametrize("count", [20, 49, 80, 160])
def test_few_questions_do_not_make_probabilities_calibrated(count):
    """On 600 other questions, over 20 draws of the few."""
    others = made_up(600, slope=0.4, offset=-0.5, seed=99)
    raw, right = outcomes(*others, {})
    losses = []
    for seed in range(20):
        fitted, _ = calibration.fit_calibration(*made_up(count, slope=0.4, offset=-0.5, seed=seed))
        confidence, _ = outcomes(*others, fitted)
        losses.append(surprise(confidence, right))
        if calibration.is_calibrated(fitted):
            assert count >= 50
            assert abs(confidence.mean() - right.mean()) <= 0.1
    assert np.mean(losses) < surprise(raw, right)


@pytest.mark.parametrize(
    ("count", "slope", "is_shown"),
    [(2000, 0.4, True), (60, 0.4, False), (40, 50.0, False), (60, 50.0, True)],
)
def test_probabilities_are_shown_by_many_questions_and_a_small_gap(count, slope, is_shown):
    scores, _ = calibration.fit_calibration(*made_up(count, slope))
    assert calibration.is_calibrated(scores) == is_shown


def outcomes(examples, n_best, predictions, scores):
    """Return the probability of each answer given, and whether it is right."""
    confidence = []
    for name, prediction in predictions.items():
        entries = calibration.calibrated(n_best[name], scores)
        confidence.append(calibration.given(entries, prediction)["probability"])
    right = [predictions[example.id] == example.answers[0][0] for example in examples]
    return np.array(confidence), np.array(right)


def surprise(confidence, right):
    """Return the mean negative log-likelihood of what is right."""
    return -np.log(np.where(right, confidence, 1 - confidence)).mean()


def test_bins_by_hand():
    confidence = np.array([0.1, 0.1, 0.9, 0.95, 1.0])
    right = np.array([False, True, True, True, False])
    # Bins of a 15th: |0.2 - 1|, |0.9 - 1|, |0.95 + 1.0 - 1|; over five answers.
    expected = (0.8 + 0.1 + 0.95) / 5
    assert calibration.calibration_error(confidence, right) == pytest.approx(expected)


def test_a_run_has_its_own_numbers_and_raw_goes_without(local_run, model):
    numbers = {calibration.SLOPE, calibration.OFFSET, calibration.NULL_OFFSET}
    assert numbers <= model.scores.keys()
    questions = list(read_questions(local_run.questions))[:40]
    answers = next(answering.answer(model, questions, 0.0))
    raw = next(answering.answer(model._replace(scores={}), questions, 0.0))

    # They change probabilities, and neither the answers nor their order.
    assert answers.predictions == raw.predictions
    assert answers.null_odds == raw.null_odds
    for name, entries in answers.n_best.items():
        assert sum(entry["probability"] for entry in raw.n_best[name]) == pytest.approx(1)
        texts = [entry["text"] for entry in entries]
        assert texts == [entry["text"] for entry in raw.n_best[name]]
    assert answers.n_best != raw.n_best


def test_what_is_right_in_part_is_wrong():
    in_part = calibration.fit_calibration(*made_up(100, slope=0.4, wrong="ash wood"))
    assert in_part == calibration.fit_calibration(*made_up(100, slope=0.4))


def test_no_answer_may_have_no_offset_of_its_own():
    _, n_best, _ = made_up(3, slope=0.4)
    numbers = {calibration.SLOPE: 0.5, calibration.OFFSET: 0.1}
    for entries in n_best.values():
        expected = calibration.calibrated(entries, {**numbers, calibration.NULL_OFFSET: 0.0})
        assert calibration.calibrated(entries, numbers) == expected

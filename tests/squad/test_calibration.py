"""Calibrated probabilities: on made-up answers with known odds, and on a model's own."""

import itertools
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detalbert.inference import answering
from detalbert.inference.reply import ask, keep_best
from detalbert.squad import calibration
from detalbert.squad.sources import read_questions
from detalbert.squad.windows import Example


class Answered(NamedTuple):
    """Questions with known answers, and a model's lists and predictions for them."""

    examples: list[Example]
    n_best: dict[str, list[dict]]
    predictions: dict[str, str]


def made_up(questions: int, span: float, null: float, offset: float = 0, seed: int = 1) -> Answered:
    """Return questions whose answers are as likely as a model says whose scores are `span` and
    `null` times too large, and whose log-odds of "no answer" are `offset` too small."""
    rng = np.random.default_rng(seed)
    answered = Answered([], {}, {})
    for number in range(questions):
        name = str(number)
        logits = rng.normal(0, 2, 4)
        null_logit = rng.normal(0, 2)  # the log-odds of "no answer"
        scores = logits * span
        null_score = np.logaddexp.reduce(scores) + (null_logit - offset) * null

        # The true answer is drawn by the logits, and not by the scores.
        probabilities = np.exp(logits) / np.exp(logits).sum()
        chosen = rng.choice(4, p=probabilities)
        silent = rng.random() < 1 / (1 + np.exp(-null_logit))
        answers = () if silent else ((f"w{chosen}", 0),)
        answered.examples.append(Example(name, "", context="", question="", answers=answers))

        entries = []
        for word, score in enumerate(scores):
            entries.append({"text": f"w{word}", "score": score, "probability": 0})
        best = max(entries, key=lambda entry: entry["score"])
        answered.predictions[name] = best["text"] if null_score <= best["score"] else ""
        entries.append({"text": "", "score": null_score, "probability": 0})
        answered.n_best[name] = sorted(entries, key=lambda entry: -entry["score"])
    return answered


@pytest.mark.parametrize(("span", "null"), [(1, 1), (3, 6), (0.5, 0.4)])
def test_temperatures_of_scores_that_are_too_large_are_found(span, null):
    answered = made_up(4000, span, null)
    fitted = calibration.fit_temperatures(**answered._asdict())

    assert fitted[calibration.SPAN] == pytest.approx(span, rel=0.1)
    assert fitted[calibration.NULL] == pytest.approx(null, rel=0.1)
    assert fitted[calibration.OFFSET] == pytest.approx(0, abs=0.1)
    assert fitted["calibration_error"] < 0.03
    assert calibration.is_calibrated(fitted)
    if null > 1:
        assert fitted["calibration_error"] < fitted["calibration_error_raw"] / 2

    # The order of the questions does not matter.
    order = np.random.default_rng(2).permutation(len(answered.examples))
    shuffled = answered._replace(examples=[answered.examples[number] for number in order])
    fitted_again = calibration.fit_temperatures(**shuffled._asdict())
    assert fitted_again == pytest.approx(fitted, abs=1e-6)


def test_a_model_that_abstains_too_seldom_gets_an_offset():
    answered = made_up(4000, span=1, null=1, offset=1.5)
    fitted = calibration.fit_temperatures(**answered._asdict())

    assert fitted[calibration.NULL] == pytest.approx(1, rel=0.1)
    assert fitted[calibration.OFFSET] == pytest.approx(1.5, abs=0.1)
    assert fitted["calibration_error"] < 0.03 < fitted["calibration_error_raw"]


@pytest.mark.parametrize("count", [20, 40, 80, 160])
def test_few_questions_help_and_do_not_make_probabilities_calibrated(count):
    """On 600 other questions, over 20 draws of the few."""
    others = made_up(600, span=3, null=6, offset=1, seed=99)
    raw = surprise(others, {calibration.SPAN: 1.0, calibration.NULL: 1.0})
    for seed in range(20):
        few = made_up(count, span=3, null=6, offset=1, seed=seed)
        fitted = calibration.fit_temperatures(**few._asdict())
        assert surprise(others, fitted) < raw
        if calibration.is_calibrated(fitted):
            assert gap(others, fitted) <= 0.1
        assert count > 40 or not calibration.is_calibrated(fitted)


def probabilities(answered: Answered, scores: dict[str, float]) -> tuple[np.ndarray, np.ndarray]:
    """Return the probability of each answer given, and whether it is right."""
    confidence = calibration.probabilities(answered.n_best, answered.predictions, scores)
    right = [
        answered.predictions[example.id] in ([text for text, _ in example.answers] or [""])
        for example in answered.examples
    ]
    return np.array([confidence[example.id] for example in answered.examples]), np.array(right)


def surprise(answered: Answered, scores: dict[str, float]) -> float:
    """Return the mean negative log-likelihood of what is right."""
    confidence, right = probabilities(answered, scores)
    return -np.log(np.where(right, confidence, 1 - confidence)).mean()


def gap(answered: Answered, scores: dict[str, float]) -> float:
    """Return the distance from probability to share, over answers that are likely."""
    confidence, right = probabilities(answered, scores)
    likely = confidence >= 0.5
    return abs(confidence[likely].mean() - right[likely].mean())


def test_without_questions_of_a_kind_no_answer_keeps_its_probability():
    answered = made_up(400, span=3, null=6)
    answerable = [example for example in answered.examples if example.answers]
    fitted = calibration.fit_temperatures(**answered._replace(examples=answerable)._asdict())
    assert fitted[calibration.NULL] == 1
    assert fitted[calibration.OFFSET] == 0

    nothing = calibration.fit_temperatures([], {}, {})
    assert nothing["calibration_error"] == 0
    assert nothing[calibration.UNCALIBRATED] == 1


@pytest.mark.parametrize("span, null, expected", [(1, 1, False), (1, 2, False), (3, 6, True)])
def test_scores_of_version_1_0_are_calibrated_if_both_temperatures_were_fitted(
    span, null, expected
):
    scores = {calibration.SPAN: span, calibration.NULL: null}
    assert calibration.is_calibrated(scores) == expected
    assert not calibration.is_calibrated({})


@given(st.lists(st.floats(-30, 30), min_size=1, max_size=6), st.floats(-30, 30))
def test_a_temperature_of_one_is_the_softmax(scores, null):
    entries = [{"text": "x", "score": score} for score in scores]
    entries.append({"text": "", "score": null})
    temperatures = {calibration.SPAN: 1.0, calibration.NULL: 1.0}

    calibrated = calibration.calibrated(entries, temperatures)

    exponentials = np.exp(np.array([*scores, null]) - max(*scores, null))
    softmax = exponentials / exponentials.sum()
    assert [entry["probability"] for entry in calibrated] == pytest.approx(softmax, abs=1e-9)


def test_bins_by_hand():
    confidence = np.array([0.1, 0.1, 0.9, 0.95, 1.0])
    right = np.array([False, True, True, True, False])
    # Bins of a 15th: |0.2 - 1|, |0.9 - 1|, |0.95 + 1.0 - 1|; over five answers.
    expected = (0.8 + 0.1 + 0.95) / 5
    assert calibration.calibration_error(confidence, right) == pytest.approx(expected)


def test_a_run_has_its_own_temperatures_and_raw_goes_without(local_run, model, capsys):
    assert {calibration.SPAN, calibration.NULL} <= model.scores.keys()
    questions = list(read_questions(local_run.questions))[:40]
    uncalibrated = model._replace(scores={})

    answers = next(answering.answer(model, questions, 0.0))
    raw = next(answering.answer(uncalibrated, questions, 0.0))

    # Temperatures change probabilities, and neither the answers nor their order.
    assert answers.predictions == raw.predictions
    assert answers.null_odds == raw.null_odds
    for name, entries in answers.n_best.items():
        assert sum(entry["probability"] for entry in entries) == pytest.approx(1)
        texts = [entry["text"] for entry in entries]
        assert texts == [entry["text"] for entry in raw.n_best[name]]
    assert answers.n_best != raw.n_best


@pytest.mark.parametrize("count", [1, 3])
def test_the_best_answers_do_not_overlap(count, model):
    context = "The Kalonda carried tar. The Garlen carried silk."
    reply = ask(model, "Which ship?", context, 1e9)

    choices = [choice for choice in keep_best(reply, count).n_best if choice.text]

    assert 1 <= len(choices) <= count
    assert choices[0].text == reply.answer
    choices.sort(key=lambda choice: choice.start)
    for before, after in itertools.pairwise(choices):
        assert before.end <= after.start

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


def made_up(questions: int, span: float, null: float) -> Answered:
    """Return questions whose answers are as likely as a model says whose scores are `span` and
    `null` times too large."""
    rng = np.random.default_rng(1)
    answered = Answered([], {}, {})
    for number in range(questions):
        name = str(number)
        logits = rng.normal(0, 2, 4)
        null_logit = rng.normal(0, 2)  # the log-odds of "no answer"
        scores = logits * span
        null_score = np.logaddexp.reduce(scores) + null_logit * null

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
    assert fitted["calibration_error"] < 0.03
    if null > 1:
        assert fitted["calibration_error"] < fitted["calibration_error_raw"] / 2

    # The order of the questions does not matter.
    order = np.random.default_rng(2).permutation(len(answered.examples))
    shuffled = answered._replace(examples=[answered.examples[number] for number in order])
    fitted_again = calibration.fit_temperatures(**shuffled._asdict())
    assert fitted_again == pytest.approx(fitted, abs=1e-6)


def test_with_few_questions_nothing_is_fitted():
    answered = made_up(40, span=3, null=6)
    fitted = calibration.fit_temperatures(**answered._asdict())
    assert fitted[calibration.SPAN] == 1
    assert fitted[calibration.NULL] == 1
    assert fitted["calibration_error"] == fitted["calibration_error_raw"]

    assert calibration.fit_temperatures([], {}, {})["calibration_error"] == 0


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

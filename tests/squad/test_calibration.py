"""Calibrated probabilities: on made-up answers with known odds, and on a model's own."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detalbert.inference import answering
from detalbert.inference.reply import ask, keep_best
from detalbert.squad import calibration
from detalbert.squad.sources import read_questions
from detalbert.squad.windows import Example


def made_up(questions: int, span: float, null: float) -> tuple[list, dict, dict]:
    """Questions whose answers are as likely as a model says whose scores are `span` and `null`
    times too large."""
    rng = np.random.default_rng(1)
    examples, n_best, predictions = [], {}, {}
    for number in range(questions):
        true, odds, name = rng.normal(0, 2, 4), rng.normal(0, 2), str(number)
        scores = true * span
        z = np.logaddexp.reduce(scores) + odds * null
        chosen = rng.choice(4, p=np.exp(true) / np.exp(true).sum())
        silent = rng.random() < 1 / (1 + np.exp(-odds))
        entries = [{"text": f"w{k}", "score": s, "probability": 0} for k, s in enumerate(scores)]
        entries.append({"text": "", "score": z, "probability": 0})
        n_best[name] = sorted(entries, key=lambda entry: -entry["score"])
        best = max(entries[:4], key=lambda entry: entry["score"])
        predictions[name] = best["text"] if z - best["score"] <= 0 else ""
        answers = () if silent else ((f"w{chosen}", 0),)
        examples.append(Example(name, "", "", "", answers))
    return examples, n_best, predictions


@pytest.mark.parametrize(("span", "null"), [(1, 1), (3, 6), (0.5, 0.4)])
def test_temperatures_of_scores_that_are_too_large_are_found(span, null):
    case = examples, n_best, predictions = made_up(4000, span, null)
    found = calibration.fit_temperatures(*case)
    assert found[calibration.SPAN] == pytest.approx(span, rel=0.1)
    assert found[calibration.NULL] == pytest.approx(null, rel=0.1)
    assert found["calibration_error"] < 0.03
    if null > 1:
        assert found["calibration_error"] < found["calibration_error_raw"] / 2
    shuffled = [examples[i] for i in np.random.default_rng(2).permutation(len(examples))]
    again = calibration.fit_temperatures(shuffled, n_best, predictions)
    assert again == pytest.approx(found, abs=1e-6)


def test_with_few_questions_nothing_is_fitted():
    found = calibration.fit_temperatures(*made_up(40, 3, 6))
    assert found[calibration.SPAN] == found[calibration.NULL] == 1
    assert found["calibration_error"] == found["calibration_error_raw"]
    assert calibration.fit_temperatures([], {}, {})["calibration_error"] == 0


@given(st.lists(st.floats(-30, 30), min_size=1, max_size=6), st.floats(-30, 30))
def test_a_temperature_of_one_is_the_softmax(scores, null):
    entries = [{"text": "x", "score": score} for score in scores] + [{"text": "", "score": null}]
    ones = {calibration.SPAN: 1.0, calibration.NULL: 1.0}
    found = [entry["probability"] for entry in calibration.calibrated(entries, ones)]
    values = np.exp(np.array([*scores, null]) - max(*scores, null))
    assert found == pytest.approx(values / values.sum(), abs=1e-9)


def test_bins_by_hand():
    sure, right = np.array([0.1, 0.1, 0.9, 0.95, 1.0]), np.array([0, 1, 1, 1, 0], bool)
    # Bins of a 15th: |0.2 - 1|, |0.9 - 1|, |0.95 + 1.0 - 1|; over five answers.
    assert calibration.calibration_error(sure, right) == pytest.approx((0.8 + 0.1 + 0.95) / 5)


def test_a_run_has_its_own_temperatures_and_raw_goes_without(local_run, model, capsys):
    assert {calibration.SPAN, calibration.NULL} <= model.scores.keys()
    some = list(read_questions(local_run.questions))[:40]
    ours, raw = (next(answering.answer(m, some, 0.0)) for m in (model, model._replace(scores={})))
    assert (ours.predictions, ours.null_odds) == (raw.predictions, raw.null_odds)
    for name, entries in ours.n_best.items():
        assert sum(entry["probability"] for entry in entries) == pytest.approx(1)
        texts = [[e["text"] for e in part] for part in (entries, raw.n_best[name])]
        assert texts[0] == texts[1]
    assert ours.n_best != raw.n_best


@pytest.mark.parametrize("count", [1, 3])
def test_the_best_answers_do_not_overlap(count, model):
    reply = ask(model, "Which ship?", "The Kalonda carried tar. The Garlen carried silk.", 1e9)
    kept = [choice for choice in keep_best(reply, count).n_best if choice.text]
    assert 1 <= len(kept) <= count and kept[0].text == reply.answer
    places = sorted((choice.start, choice.end) for choice in kept)
    assert all(a[1] <= b[0] for a, b in zip(places, places[1:], strict=False))

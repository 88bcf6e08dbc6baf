"""Advice on thresholds and probabilities: from enough answers alone, with their counts."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detalbert.run_page import advice, plots
from detalbert.run_page.outcomes import Bin, sweep_thresholds
from detalbert.run_page.thresholds import DIRECTION, describe_threshold, table_thresholds
from tests.run_page.test_outcomes import ROW, outcomes_of

RIGHT = ("pottery", "pottery")
WRONG = ("pottery", "Orvane")
NONE = ("", "Orvane")  # answered though there is none


def threshold_advice(rows: list[tuple[tuple[str, str], int, float]]) -> list[str]:
    """Sentences on (question, count, null odds) rows, at a threshold of 0."""
    questions = []
    for (answer, span), count, odds in rows:
        for number in range(count):
            questions.append((answer, span, odds + number / 1000))
    outcomes = outcomes_of(questions, threshold=0.0)
    return list(describe_threshold(outcomes, sweep_thresholds(outcomes)))


def test_the_head_of_the_page_has_both_kinds_and_the_model_that_does_nothing():
    rows = (
        [(*RIGHT, -1.0)] * 30 + [(*WRONG, -1.0)] * 30 + [(*NONE, 1.0)] * 20 + [(*NONE, -1.0)] * 20
    )
    right, kinds, nothing = advice.describe_result(outcomes_of(rows, threshold=0.0))
    assert right == (
        "50 of 100 results on held-out questions are right: 50 %, 40 to 60 % at 95 % confidence."
    )
    assert kinds == (
        "A result is an answer or an abstention: of 80 answers 30 are right, of 20 abstentions 20."
    )
    # Thirty questions were won, and twenty lost.
    assert nothing == (
        f"A model that always abstains would be right on 40 %: this one is {advice.NO_BETTER}"
    )
    assert "is of no use yet: begin with a model that has learned SQuAD" in nothing
    *_, nothing = advice.describe_result(outcomes_of(rows[:80], threshold=0.0))
    assert nothing == (
        "A model that always abstains would be right on 25 %: this one is clearly better."
    )
    *_, nothing = advice.describe_result(outcomes_of(rows, threshold=-9.0))
    assert "It answers nothing at its threshold." in nothing
    (right,) = advice.describe_result(outcomes_of(rows[:60], threshold=0.0))
    assert right.startswith("30 of 60 results")


def test_errors_have_their_kinds_and_the_shares_of_both_kinds_of_questions():
    questions = [(*RIGHT, -1.0)] * 60 + [(*WRONG, -1.0)] * 20 + [(*NONE, 1.0)] * 20
    wrong, with_answer, without, hold_for = advice.describe_errors(outcomes_of(questions, 0.0))
    assert wrong == "20 of 100 results are wrong: other span (20)."
    assert with_answer == (
        "Of 80 questions with an answer 60 are right: 75 %, 65 to 83 % at 95 % confidence."
    )
    assert without == (
        "Of 20 questions without an answer 20 are right: 100 %, 84 to 100 % at 95 % confidence."
    )
    assert hold_for == advice.HOLD_FOR
    all_right, _ = advice.describe_errors(outcomes_of(questions[:60], threshold=0.0))
    assert all_right == "All 60 results are right."


def test_few_questions_choose_no_threshold():
    own, few, stricter, all_answered = threshold_advice(
        [(RIGHT, 10, -5), (WRONG, 10, -2), (NONE, 1, -2), (NONE, 3, 2)]
    )
    assert own == (
        "At the threshold of this run, 0.00, the model answers 21 of 24 questions (10 of them "
        f"right) and abstains from 3 (3 of them rightly). {DIRECTION}"
    )
    assert few == (
        "24 held-out questions are too few to choose another by: 10 of 21 answers right mean 28 to "
        "68 % at 95 % confidence. Hold out 100 or more, on as many texts as you can: 90 of 100 "
        "mean 83 to 94 %."
    )
    # None is called the best, but what others would give is counted.
    assert stricter.startswith("For at most half the wrong answers: threshold -1.99")
    assert stricter.endswith("10 right answers in place of 10, and 5 wrong in place of 11.")
    assert all_answered == (
        "To answer every question: threshold 2.002 (answers more), with 10 right answers in place "
        "of 10, and 14 wrong in place of 11."
    )


def test_a_few_answers_choose_no_threshold_of_many_questions():
    # 29 answers and no others would give the best F1, and 100 % right.
    _, best, *_ = threshold_advice([(RIGHT, 29, -5), (WRONG, 31, -3), (NONE, 40, -2)])
    assert "with 29 right answers in place of 29, and 1 wrong in place of 71. Set" in best


def test_the_threshold_of_the_run_is_told_from_others_by_f1_and_beside_it():
    _, best, stricter, _ = threshold_advice([(RIGHT, 81, -5), (WRONG, 4, -3), (NONE, 15, 2)])
    assert best == "By F1 keep it: on these questions no other is better beyond chance."
    assert stricter == (
        "For at most half the wrong answers: threshold -2.999 (stricter), with 81 right answers in "
        "place of 81, and 2 wrong in place of 4."
    )
    # Without wrong answers none is stricter; without abstentions none answers more.
    (_, _, more) = threshold_advice([(RIGHT, 81, -5), (NONE, 19, 2)])
    assert more.startswith("To answer every question")
    _, _, less = threshold_advice([(RIGHT, 81, -5), (NONE, 19, -2)])
    assert less.startswith("For at most half the wrong answers: threshold -1.992 (stricter)")
    own, silent = threshold_advice([(RIGHT, 81, -5), (WRONG, 19, -2)])
    assert silent.startswith("All held-out questions have an answer, or none has")


def test_a_gain_that_may_be_chance_is_no_reason_for_another_threshold():
    # One question more is right, of 120.
    rows = [(RIGHT, 62, -5), (WRONG, 28, -3), (RIGHT, 1, 1), (NONE, 29, 2)]
    _, best, *_ = threshold_advice(rows)
    assert best == "By F1 keep it: on these questions no other is better beyond chance."
    # Twenty more are.
    _, best, *_ = threshold_advice([(RIGHT, 62, -5), (RIGHT, 20, 1), (NONE, 28, 2)])
    assert "18.2 points more and beyond chance" in best
    assert "Set hyperparameters.null_score_diff_threshold to it" in best


def test_a_threshold_as_printed_gives_the_answers_that_are_counted():
    rows = [(*RIGHT, -5 + number / 90_001) for number in range(60)]
    rows += [(*WRONG, -3.0), (*NONE, -2.0)] * 20
    outcomes = outcomes_of(rows, threshold=0.0)
    sweep = sweep_thresholds(outcomes)
    _, best, *_ = describe_threshold(outcomes, sweep)
    printed = float(re.search(r"threshold (\S+) \(stricter\), with 60 right answers", best)[1])
    assert sweep.given[sweep.at(printed)] == 60

    table, taken = table_thresholds(outcomes, sweep)
    assert table[taken]["threshold"] == "0.000 (this run)"
    for row in table[:taken]:
        printed, _, direction = row["threshold"].partition(" ")
        place = sweep.at(float(printed))
        assert direction == "(stricter)"
        assert row["answers"] == f"{sweep.given[place]}"
        assert int(row["right"]) + int(row["wrong"]) == sweep.given[place]
        assert int(row["right"]) == sweep.matches[place]
        assert float(row["F1 of all"]) == pytest.approx(sweep.f1[place], abs=0.06)


def test_the_table_has_rows_on_both_sides_of_the_run():
    # Few questions, of which most are answered.
    rows = [(*RIGHT, -5.0 + number / 10) for number in range(22)]
    rows += [(*WRONG, -1.0 + number / 10) for number in range(5)]
    rows += [(*NONE, 1.0 + number / 10) for number in range(5)]
    outcomes = outcomes_of(rows, threshold=0.0)
    table, taken = table_thresholds(outcomes, sweep_thresholds(outcomes))
    assert table[taken]["right of the answers"] == "81.5 % (63 to 92 %)"
    assert [row["answers"] for row in table] == ["6", "13", "19", "24", "26", "27", "32"]
    assert taken == 5


@given(st.lists(ROW, min_size=1, max_size=60), st.floats(-3, 3))
def test_any_validation_has_advice_and_a_table_that_agree(rows, threshold):
    outcomes = outcomes_of(rows, threshold)
    sweep = sweep_thresholds(outcomes)
    right, *_ = advice.describe_result(outcomes)
    assert right.startswith(f"{outcomes.right.sum()} of {len(rows)} results on held-out questions")
    assert next(advice.describe_errors(outcomes))
    own, *others = describe_threshold(outcomes, sweep)
    given_answers = int((outcomes.odds <= threshold).sum())
    assert f"the model answers {given_answers} of {len(rows)} questions" in own
    for sentence in others:
        assert "nan" not in sentence and "inf" not in sentence
    table, taken = table_thresholds(outcomes, sweep)
    assert table[taken]["answers"] == f"{given_answers}"
    answered = [int(row["answers"]) for row in table]
    assert answered == sorted(set(answered))


def test_the_curve_of_thresholds_begins_at_a_few_answers(monkeypatch):
    questions = [("", "Orvane", float(number)) for number in range(20)]
    outcomes = outcomes_of(questions, threshold=10.0)
    monkeypatch.setattr(plots, "inline_svg", lambda figure, title: figure)
    figure = plots.plot_thresholds(outcomes, sweep_thresholds(outcomes))
    right, f1, _ = figure.axes[0].lines
    assert (f1.get_xdata()[0], f1.get_xdata()[-1]) == (25, 100)  # percent: 5 of 20
    assert list(f1.get_ydata()[:2]) == [75, 70]
    assert set(right.get_ydata()) == {0}


GROUP = {"lowest": 0.6, "probability": 0.65}


@pytest.mark.parametrize(
    "group, words",
    [
        (Bin(**GROUP, matches=6, answers=7), advice.NO_FAULT),
        (Bin(**GROUP, matches=45, answers=70), advice.NO_FAULT),
        (Bin(**GROUP, matches=60, answers=70), "of 70 results with a probability from 0.6 on"),
    ],
)
def test_only_what_is_beyond_chance_is_a_fault_of_the_probabilities(group, words):
    scores = {"calibration_error": 0.01, "calibration_error_raw": 0.02}
    probabilities = np.array([0.65] * group.answers + [0.3] * 4)
    right = np.arange(len(probabilities)) < group.matches
    _, largest, sentence = advice.describe_probabilities(
        scores, probabilities, right=right, bins=[group]
    )
    wrong = group.answers - group.matches
    assert largest == (
        f"{wrong} of {group.answers} results with a probability of at least 0.6 are wrong, and 4 "
        "of 4 below it."
    )
    assert words in sentence

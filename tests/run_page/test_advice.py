"""Advice on thresholds and probabilities: from enough answers alone, with their counts."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detalbert.run_page import advice, plots
from detalbert.run_page.outcomes import Bin, sweep_thresholds
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
    return list(advice.describe_threshold(outcomes, sweep_thresholds(outcomes)))


def test_the_head_of_the_page_has_both_kinds_and_the_model_that_does_nothing():
    rows = (
        [(*RIGHT, -1.0)] * 30 + [(*WRONG, -1.0)] * 30 + [(*NONE, 1.0)] * 20 + [(*NONE, -1.0)] * 20
    )
    right, kinds, nothing = advice.describe_result(outcomes_of(rows, threshold=0.0))
    assert right == "Right on 50 of 100 held-out questions (50 %, known to within 9.8 points)."
    assert kinds == (
        "It gives 80 answers, of which 30 are right, and abstains from 20 questions, of which 20 "
        "have no answer."
    )
    # Thirty questions were won, and twenty lost.
    assert nothing == (
        "To abstain always would be right on 40 %, and these questions cannot tell the two apart."
    )
    *_, nothing = advice.describe_result(outcomes_of(rows[:80], threshold=0.0))
    assert nothing == "To abstain always would be right on 25 %, clearly less."
    *_, nothing = advice.describe_result(outcomes_of(rows, threshold=-9.0))
    assert "It answers nothing at its threshold." in nothing
    (right,) = advice.describe_result(outcomes_of(rows[:60], threshold=0.0))
    assert right.startswith("Right on 30 of 60")


def test_a_difference_within_the_error_may_be_chance():
    questions = [(*RIGHT, -1.0)] * 80 + [(*WRONG, -1.0)] * 20
    wrong, error = advice.describe_errors(outcomes_of(questions, threshold=0.0))
    assert wrong == "20 of 100 held-out questions are wrong: other span (20)."
    assert error == (
        "100 questions measure the share of right answers to within 7.9 points; two runs on "
        "different questions differ by up to 11.1 by chance, on the same questions by less. These "
        "questions chose the best step: on new ones the share may be a little lower."
    )
    (all_right,) = advice.describe_errors(outcomes_of(questions[:60], threshold=0.0))
    assert "All 60 held-out questions are answered right; of others up to 5.0 %" in all_right


def test_few_questions_choose_no_threshold():
    own, few = threshold_advice([(RIGHT, 1, -5), (WRONG, 10, -2), (NONE, 1, -2), (NONE, 3, 2)])
    assert own == (
        "At the threshold of this run, 0.00, the model answers 12 of 15 questions (1 of them "
        "right) and abstains from 3 (3 of them rightly). Its F1 is 26.67: to abstain rightly "
        "counts as a right answer, and an answer that is right in part counts in part. A higher "
        "threshold answers more questions, a lower one fewer (predict.py --threshold)."
    )
    assert few == (
        "15 held-out questions are too few to choose a threshold: even of 30 answers the share "
        "that is right is known only to within 11 points. Hold out at least 100."
    )


def test_a_few_answers_choose_no_threshold_of_many_questions():
    _, best, own, *sure = threshold_advice([(RIGHT, 29, -5), (WRONG, 31, -3), (NONE, 40, -2)])
    # 29 answers and no others would give the best F1, and 100 % right.
    assert "(29 of 30 answers right)" in best
    assert "29 % are right (29 of 100 answers right), known to within 9 points" in own
    assert "29 of 32 answers right on these" in sure[0]
    assert "known to within 10 points" in sure[0]
    _, _, _, sure = threshold_advice([(RIGHT, 20, -5), (WRONG, 40, -3), (NONE, 40, -2)])
    assert sure == (
        "That 90 % of the answers are right is out of reach: with at least 30 answers the best is "
        "20 of 30 answers right."
    )


def test_what_holds_at_the_threshold_of_the_run_is_told():
    _, best, own, sure = threshold_advice([(RIGHT, 41, -5), (WRONG, 4, -3), (NONE, 15, 2)])
    assert best == "No other threshold has a better F1 on these questions: keep it."
    assert own == (
        "Of the answers given at the threshold of this run 91 % are right (41 of 45 answers "
        "right), known to within 8 points."
    )
    assert sure.startswith("For 95 % of the answers to be right, take threshold -2.999: 41 of 43")


def test_a_gain_that_may_be_chance_is_no_reason_for_another_threshold():
    # One question more is right, of sixty.
    rows = [(RIGHT, 31, -5), (WRONG, 14, -3), (RIGHT, 1, 1), (NONE, 14, 2)]
    _, best, *_ = threshold_advice(rows)
    assert best == (
        "Keep it: the best on these questions, threshold 1.000 (32 of 46 answers right), has 1.7 "
        "points more F1, and 60 questions cannot tell 3.3 from chance."
    )
    # Twenty more are.
    _, best, *_ = threshold_advice([(RIGHT, 31, -5), (RIGHT, 20, 1), (NONE, 14, 2)])
    assert "30.8 points more and beyond chance" in best
    assert "set hyperparameters.null_score_diff_threshold to it" in best


def test_a_threshold_as_printed_gives_the_answers_that_are_counted():
    rows = [(*RIGHT, -5 + number / 90_001) for number in range(40)]
    rows += [(*WRONG, -3.0), (*NONE, -2.0)] * 20
    outcomes = outcomes_of(rows, threshold=0.0)
    sweep = sweep_thresholds(outcomes)
    _, best, *_ = advice.describe_threshold(outcomes, sweep)
    printed = float(re.search(r"at threshold (\S+) \(40 of 40 answers right\)", best)[1])
    assert sweep.given[sweep.at(printed)] == 40

    table, taken = advice.table_thresholds(sweep, threshold=0.0)
    assert table[taken]["threshold"] == "0.000, this run's"
    for row in table[:taken]:
        place = sweep.at(float(row["threshold"]))
        assert row["answered"] == f"{sweep.given[place]} of 80"
        assert int(row["right"]) + int(row["wrong"]) == sweep.given[place]
        assert int(row["right"]) == sweep.matches[place]
        assert float(row["F1 of all"]) == pytest.approx(sweep.f1[place], abs=0.06)


@given(st.lists(ROW, min_size=1, max_size=60), st.floats(-3, 3))
def test_any_validation_has_advice_and_a_table_that_agree(rows, threshold):
    outcomes = outcomes_of(rows, threshold)
    sweep = sweep_thresholds(outcomes)
    right, *_ = advice.describe_result(outcomes)
    assert right.startswith(f"Right on {outcomes.right.sum()} of {len(rows)} held-out questions")
    assert next(advice.describe_errors(outcomes))
    own, *others = advice.describe_threshold(outcomes, sweep)
    given_answers = int((outcomes.odds <= threshold).sum())
    assert f"the model answers {given_answers} of {len(rows)} questions" in own
    for sentence in others:
        assert "nan" not in sentence and "inf" not in sentence
    table, taken = advice.table_thresholds(sweep, threshold)
    assert table[taken]["answered"] == f"{given_answers} of {len(rows)}"
    answered = [int(row["answered"].split()[0]) for row in table]
    assert answered == sorted(set(answered))


def test_the_curve_of_thresholds_begins_at_a_few_answers(monkeypatch):
    questions = [("", "Orvane", float(number)) for number in range(20)]
    sweep = sweep_thresholds(outcomes_of(questions, threshold=10.0))
    monkeypatch.setattr(plots, "inline_svg", lambda figure, title: figure)
    figure = plots.plot_thresholds(sweep, threshold=10.0)
    f1, right, _ = figure.axes[0].lines
    assert (f1.get_xdata()[0], f1.get_xdata()[-1]) == (25, 100)  # percent: 5 of 20
    assert list(f1.get_ydata()[:2]) == [75, 70]
    assert set(right.get_ydata()) == {0}


@pytest.mark.parametrize(
    "group, words",
    [
        (Bin(probability=0.65, matches=6, answers=7), "groups of fewer than 30 could hardly show"),
        (Bin(probability=0.65, matches=45, answers=70), "larger than chance."),
        (Bin(probability=0.65, matches=60, answers=70), "of 70 results with a probability of"),
    ],
)
def test_only_what_is_beyond_chance_is_a_fault_of_the_probabilities(group, words):
    scores = {"calibration_error": 0.01, "calibration_error_raw": 0.02}
    _, largest, sentence = advice.describe_probabilities(scores, [group])
    assert f"{group.answers} results with a probability of about 0.65" in largest
    assert words in sentence

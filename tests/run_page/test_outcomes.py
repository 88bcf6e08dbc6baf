"""Thresholds, probabilities and samples of a validation, beside the scorer's own figures."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detalbert.run_page import samples
from detalbert.run_page.outcomes import (
    FEWEST,
    Outcomes,
    collect,
    reliability,
    sweep_thresholds,
)
from detalbert.run_page.samples import NONE, SHOWN, Sample, right_samples, wrong_samples
from detalbert.run_page.shares import margin_of_error, measure_share
from detalbert.squad.answers import Answers
from detalbert.squad.metrics import score
from detalbert.squad.windows import Example

CONTEXT = "The Zanto was loaded with pottery. The Belmira was built in Orvane, and sailed in 1802."
TEXTS = ["pottery", "Orvane", "the Belmira", "1802", "Zanto"]


def example(number: int, answer: str) -> Example:
    start = CONTEXT.find(answer)
    answers = ((answer, start),) if answer else ()
    return Example(str(number), title="", context=CONTEXT, question=f"{number}?", answers=answers)


def outcomes_of(
    rows: list[tuple[str, str, float]], threshold: float, probabilities: bool = False
) -> Outcomes:
    """Outcomes of (right answer, best span, null odds) rows."""
    examples = [example(number, answer) for number, (answer, _, _) in enumerate(rows)]
    spans = {str(number): span for number, (_, span, _) in enumerate(rows)}
    odds = {str(number): null for number, (_, _, null) in enumerate(rows)}
    predictions = {name: "" if odds[name] > threshold else spans[name] for name in odds}
    given_probabilities = {}
    if probabilities:
        given_probabilities = {name: 1 / (1 + int(name)) for name in odds}
    answers = Answers(predictions, odds, spans, given_probabilities)
    return collect(examples, answers, threshold)


def marks(sample: Sample) -> list[tuple[str, str]]:
    return [(passage.text, passage.marks) for passage in sample.passages if passage.marks]


ROW = st.tuples(
    st.sampled_from(["", *TEXTS]),
    st.sampled_from(TEXTS),
    st.sampled_from([-3.0, -1.0, 0.0, 0.5, 2.0]) | st.floats(-5, 5),
)


@given(st.lists(ROW, min_size=1, max_size=30))
def test_every_threshold_scores_as_the_scorer_does(rows: list[tuple[str, str, float]]) -> None:
    outcomes = outcomes_of(rows, threshold=0.0)
    sweep = sweep_thresholds(outcomes)
    assert list(sweep.thresholds) == sorted({*outcomes.odds, sweep.thresholds[0]})
    for place, threshold in enumerate(sweep.thresholds):
        expected = score(
            outcomes.examples,
            predictions=outcomes.answers.spans,
            null_odds=outcomes.answers.null_odds,
            threshold=threshold,
        )
        exact = sweep.matches[place] + sweep.rightly_abstained[place]
        assert 100 * exact / sweep.questions == pytest.approx(expected["exact"])
        assert sweep.f1[place] == pytest.approx(expected["f1"])
        given_answers = outcomes.odds <= threshold
        assert sweep.given[place] == given_answers.sum()
        assert sweep.matches[place] == outcomes.exact[given_answers].sum()
        assert sweep.at(threshold) == place

    best = score(
        outcomes.examples,
        predictions=outcomes.answers.spans,
        null_odds=outcomes.answers.null_odds,
    )
    # Between questions with equal odds the official scorer may stop; no threshold can.
    if len(set(outcomes.odds)) == len(rows):
        assert max(sweep.f1) == pytest.approx(best["best_f1"])
    else:
        assert max(sweep.f1) <= best["best_f1"] + 1e-9


def test_right_is_the_answer_given_or_to_abstain() -> None:
    rows = [
        ("pottery", "pottery", -1.0),  # answered, right
        ("pottery", "Orvane", -1.0),  # answered, wrong
        ("pottery", "pottery", 1.0),  # abstained from
        ("", "pottery", 1.0),  # abstained, right
        ("", "pottery", -1.0),  # answered without an answer
    ]
    assert list(outcomes_of(rows, threshold=0.0).right) == [True, False, False, True, False]


def test_bins_have_the_shares_of_their_answers() -> None:
    probabilities = np.repeat([0.05, 0.55, 0.95], [FEWEST, FEWEST - 1, 10])
    right = np.arange(len(probabilities)) % 2 == 0
    bins = reliability(probabilities, right)
    assert [group.answers for group in bins] == [FEWEST, 10]  # too few in the middle one
    assert [group.lowest for group in bins] == [0.0, 0.9]
    assert [group.probability for group in bins] == pytest.approx([0.05, 0.95])
    assert [group.matches for group in bins] == [right[:FEWEST].sum(), right[-10:].sum()]


def test_the_margin_of_error_holds_in_nineteen_of_twenty_draws() -> None:
    draws = np.random.default_rng(0).random((4_000, 100)) < 0.7
    own_texts = np.arange(100)
    margins = np.array([margin_of_error(draw.astype(float), own_texts) for draw in draws])
    distances = 100 * np.abs(draws.mean(1) - 0.7)
    assert 0.93 < (distances <= margins).mean() < 0.97
    assert margin_of_error(np.ones(1), own_texts[:1]) == 100


def test_questions_on_one_text_count_together() -> None:
    # Fifty texts, whose four questions are all right or all wrong.
    rng = np.random.default_rng(0)
    texts = np.arange(200) // 4
    draws = (rng.random((4_000, 50)) < 0.7).repeat(4, axis=1)
    margins = np.array([margin_of_error(draw.astype(float), texts) for draw in draws])
    distances = 100 * np.abs(draws.mean(1) - 0.7)
    assert 0.92 < (distances <= margins).mean() < 0.97
    # On one text alone they count as independent ones.
    one_text = np.zeros(200, dtype=int)
    assert margin_of_error(draws[0].astype(float), one_text) < margins[0]


@pytest.mark.parametrize("per_text", [1, 4])
@pytest.mark.parametrize("share", [0.7, 0.97])
def test_an_interval_holds_the_share_in_nineteen_of_twenty_draws(per_text, share):
    rng = np.random.default_rng(0)
    texts = np.arange(200) // per_text
    draws = (rng.random((2_000, 200 // per_text)) < share).repeat(per_text, axis=1)
    shares = [measure_share(draw, texts) for draw in draws]
    holds = np.mean([measured.low <= 100 * share <= measured.high for measured in shares])
    assert 0.92 < holds < 0.98


def test_an_interval_is_wilsons():
    # Brown, Cai and DasGupta (2001), as every calculator gives it.
    measured = measure_share(np.arange(32) < 27, texts=np.arange(32))
    assert (measured.percent, measured.interval) == ("84.4 %", "68 to 93 %")
    everything = measure_share(np.ones(5, dtype=bool), texts=np.arange(5))
    assert (everything.percent, everything.interval) == ("100 %", "57 to 100 %")
    # If all are right, four on one text may tell no more than one.
    alike = measure_share(np.ones(20, dtype=bool), texts=np.arange(20) // 4)
    assert alike.interval == everything.interval
    nothing = measure_share(np.zeros(0, dtype=bool), texts=np.zeros(0, dtype=int))
    assert (nothing.percent, nothing.interval) == ("0 %", "0 to 100 %")


def test_samples_are_the_surest_wrong_ones_and_all_kinds_of_right_ones() -> None:
    wrong = [("pottery", "Orvane", -1.0)] * 12
    right = [("Orvane", "Orvane", -1.0)] * 25
    outcomes = outcomes_of([*wrong, *right], threshold=0.0, probabilities=True)
    shown = wrong_samples(outcomes)
    assert [sample.question for sample in shown] == [f"{number}?" for number in range(SHOWN)]
    assert shown[0].expected == "pottery"
    assert shown[0].given == "Orvane"
    assert marks(shown[0]) == [("pottery", "expected"), ("Orvane", "given")]
    assert "".join(passage.text for passage in shown[0].passages) == CONTEXT
    assert shown[0].context == ""
    spread = [int(sample.question[:-1]) for sample in right_samples(outcomes)]
    assert spread[0] == 12
    assert spread[-1] == 36
    assert len(spread) == SHOWN


def test_a_sample_without_an_answer_marks_what_was_given() -> None:
    rows = [("", "Orvane", -1.0), ("", "Orvane", 1.0)]
    outcomes = outcomes_of(rows, threshold=0.0)
    (answered,) = wrong_samples(outcomes)
    assert (answered.expected, answered.given) == (NONE, "Orvane")
    assert marks(answered) == [("Orvane", "given")]
    assert answered.probability is None
    (abstained,) = right_samples(outcomes)
    assert (abstained.given, marks(abstained)) == (NONE, [])
    assert CONTEXT.startswith(abstained.passages[0].text)


def test_each_kind_of_error_is_among_the_samples_and_the_surest_come_first():
    rows = [("pottery", "Orvane", -1.0)] * 12 + [
        ("pottery", "with pottery", -1.0),
        ("", "Zanto", -1),
    ]
    outcomes = outcomes_of(rows, threshold=0.0, probabilities=True)
    shown = wrong_samples(outcomes)
    numbers = [int(sample.question[:-1]) for sample in shown]
    assert numbers == [*range(8), 12, 13]
    assert len({sample.group for sample in shown}) == 3


def test_a_text_that_is_cut_is_there_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "AROUND", 10)
    outcomes = outcomes_of([("", "Orvane", 1.0)], threshold=0.0)
    (cut,) = right_samples(outcomes)
    assert [passage.text for passage in cut.passages] == ["The Zanto was", " …"]
    assert cut.context == CONTEXT
    monkeypatch.setattr(samples, "LONGEST", len(CONTEXT) - 1)
    (long,) = right_samples(outcomes)
    assert long.context == ""


def test_a_passage_begins_where_its_sentence_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "AROUND", 12)
    (sample,) = right_samples(outcomes_of([("1802", "1802", -1.0)], threshold=0.0))
    # The sentence's start is too far before the year, so a word's is taken.
    assert [passage.text for passage in sample.passages][:2] == [
        "… ",
        "and sailed in ",
    ]
    monkeypatch.setattr(samples, "AROUND", 25)
    (sample,) = right_samples(outcomes_of([("1802", "1802", -1.0)], threshold=0.0))
    before = sample.passages[1].text
    assert before == "The Belmira was built in Orvane, and sailed in "
    (sample,) = right_samples(outcomes_of([("pottery", "pottery", -1.0)], threshold=0.0))
    assert sample.passages[0].text == "The Zanto was loaded with "


@pytest.mark.parametrize(
    "answer, span, expected",
    [
        ("Zanto", "Zant", ["Zant/expected given", "o/expected"]),
        ("Zanto", "The Zanto was", ["The /given", "Zanto/expected given", " was/given"]),
        ("1802", "1802", ["1802/expected given"]),
    ],
    ids=["cut", "long", "same"],
)
def test_both_answers_are_marked_where_they_stand(answer, span, expected):
    outcomes = outcomes_of([(answer, span, -1.0)], threshold=0.0)
    (sample,) = wrong_samples(outcomes) + right_samples(outcomes)
    assert [f"{text}/{kind}" for text, kind in marks(sample)] == expected
    assert "".join(passage.text for passage in sample.passages) == CONTEXT


def test_of_equal_texts_the_nearest_to_the_expected_answer_is_marked():
    (sample,) = wrong_samples(outcomes_of([("Orvane", "The", -1.0)], threshold=0.0))
    before, *_ = sample.passages
    assert before.text.endswith("pottery. ")
    assert marks(sample) == [("The", "given"), ("Orvane", "expected")]

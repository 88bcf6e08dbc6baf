"""The page of a run beside the scorer's figures, from any validation, in a browser, and refused."""

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detalbert.engine.history import History, TrainingLoss, Validated
from detalbert.run_page.excerpt import cut_sentence
from detalbert.run_page.outcomes import (
    collect,
    interval,
    reliability,
    sweep_thresholds,
)
from detalbert.run_page.page import SHOWN, choose_errors, render_report
from detalbert.run_page.run import REPORT, RunSummary
from detalbert.squad.answers import Answers
from detalbert.squad.example import Example
from detalbert.squad.metrics import score

OVERLAPS = Path(__file__).with_name("overlaps.js").read_text()
CUT = Path(__file__).with_name("cut.js").read_text()
CONTEXT = "The Zanto was loaded with pottery. The Belmira was built in Orvane, and sailed in 1802."
TEXTS = ["pottery", "Orvane", "the Belmira", "1802", "Zanto"]
ROW = st.tuples(
    st.sampled_from(["", *TEXTS]),
    st.sampled_from(TEXTS),
    st.sampled_from([-3.0, -1.0, 0.0, 0.5, 2.0]) | st.floats(-5, 5),
)


def example(name, answer, context=CONTEXT):
    labels = ((answer, context.find(answer)),) if answer else ()
    return Example(name, title="", context=context, question=f"{name}?", answers=labels)


def outcomes_of(rows, threshold=0.0, texts=1, fitted=False):
    """Outcomes of (right answer, best span, null odds) rows, on so many texts."""
    examples, spans, odds = [], {}, {}
    for number, (answer, span, null_odds) in enumerate(rows):
        name = str(number)
        examples.append(example(name, answer, CONTEXT + " " * (number % texts)))
        spans[name], odds[name] = span, null_odds
    predictions = {name: "" if odds[name] > threshold else spans[name] for name in odds}
    probabilities = {name: 1 / (1 + int(name)) for name in odds} if fitted else {}
    return collect(examples, Answers(predictions, odds, spans, probabilities), threshold)


@given(st.lists(ROW, min_size=1, max_size=30), st.floats(-3, 3))
def test_shares_and_thresholds_are_the_scorers(rows, threshold):
    outcomes = outcomes_of(rows, threshold)
    table = outcomes.table
    spans = {row.example.id: rows[int(row.example.id)][1] for row in table.itertuples()}
    odds = {row.example.id: row.odds for row in table.itertuples()}
    expected = score(list(table.example), spans, odds, threshold)
    assert 100 * table.exact.mean() == pytest.approx(expected["exact"])
    assert 100 * table.f1.mean() == pytest.approx(expected["f1"])
    for point in sweep_thresholds(table).itertuples():
        is_given = table.odds <= point.odds
        assert point.answered == pytest.approx(100 * is_given.mean())
        assert point.right == pytest.approx(100 * table.span_exact[is_given].mean())


def test_what_is_right_depends_on_the_language():
    answers = Answers({"0": "Elbe"}, {"0": -1.0}, {"0": "Elbe"}, {})
    for language, right in (("de", 1), ("en", 0)):
        outcomes = collect([example("0", "die Elbe", "Sie sah die Elbe.")], answers, 0.0, language)
        (row,) = outcomes.table.itertuples()
        assert (row.exact, row.span_exact, row.group == "") == (right, right, bool(right))


def test_an_interval_is_wilsons():
    # Brown, Cai and DasGupta (2001), as every calculator gives it.
    mean, low, high = interval(pd.Series(np.arange(32) < 27))
    assert (round(mean), round(low), round(high)) == (84, 68, 93)
    assert interval(pd.Series(np.ones(5))) == pytest.approx((100, 56.6, 100), abs=0.1)


def test_bins_have_the_shares_of_their_answers():
    right = np.arange(19) % 2 == 0
    probabilities = np.repeat([0.05, 0.55, 1.0], [5, 4, 10])
    bins = reliability(pd.DataFrame({"probability": probabilities, "exact": right}))
    assert list(bins["count"]) == [5, 10]  # too few in the middle one
    assert list(bins.right) == [right[:5].mean(), right[-10:].mean()]


def test_the_surest_wrong_answers_are_shown():
    rows = [("pottery", "Orvane", -1.0)] * 22 + [("Orvane", "Orvane", -1.0)] * 45
    outcomes = outcomes_of(rows, fitted=True)
    wrong = [int(sample["example"].id) for sample in choose_errors(outcomes)]
    assert wrong == list(range(SHOWN))


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ("One", ("", "One", ".")),
        ("is", ("Two ", "is", " here!")),
        (" is", ("Two ", "is", " here!")),
        ("Three?", ("", "Three?", "")),
        ("Two is here!  Three?", ("", "Two is here!  Three?", "")),
        ("Four", ("", "Four", f" {'x' * 199}")),
        ("", ("", "no answer", "")),
        ("not there", ("", "not there", "")),
    ],
)
def test_an_answer_stands_in_its_sentence(answer, sentence):
    text = "One. Two is here!  Three?\nFour " + "x" * 500
    assert cut_sentence(text, answer, text.find(answer)) == sentence


def history(*losses):
    curves = History(0)
    curves.reports = [TrainingLoss(step=10 * i, loss=1 + 1 / i) for i in range(1, 41)]
    for number, loss in enumerate(losses, start=1):
        curves.validations.append(Validated(step=100 * number, metrics={"loss": loss}))
    return curves


GOOD = [("pottery", "pottery", -1.0)] * 90 + [("", "Orvane", 1.0)] * 30 + [("", "1802", -2.0)] * 2
FAIR = GOOD + [("pottery", "Orvane", -1.0)] * 18
RUN = {
    "name": "shop",
    "model": "a model",
    "data": {"train": "shop.csv: 100 questions"},
    "metric": "loss",
    "best": {"steps": 300, "loss": 1.5, "calibration_error": 0.1},
    "history": history(1.9, 1.4, 1.39, 1.38),
    "outcomes": None,
    "shared": 0,
    "commands": {"ask it": "python predict.py --model a"},
}
LM = {"best": {**RUN["best"], "bits_per_byte": 1.5, "baseline_bits_per_byte": 2.4}}


def rendered(**changes):
    return render_report(RunSummary(**{**RUN, **changes}))


@pytest.mark.parametrize(
    ("changes", "present", "absent"),
    [
        (
            {"outcomes": outcomes_of(GOOD, texts=40)},
            ["Good:", "120 of 122", "language: en", "always abstaining", "26.2", "Read the surest"],
            ["of one text", "generated", "were trained on"],
        ),
        (
            {"outcomes": outcomes_of(GOOD[:4])},
            ["Too few", "of one text"],
            ["should it abstain", "number bad"],
        ),
        ({"outcomes": outcomes_of(GOOD[:90])}, ["Ask it"], ["abstaining", "Wrong answers,"]),
        (
            {"outcomes": outcomes_of(GOOD, -9, 40)},
            ["Not clearly better than always", "questions.yaml"],
            [],
        ),
        (
            {"outcomes": outcomes_of(GOOD, texts=40, fitted=True), "shared": 3},
            ["Held-out questions that were trained on: 3.", "Is 0.9 nine"],
            ["generated"],
        ),
        (
            {"outcomes": outcomes_of(FAIR, texts=99), "history": history(3, 1.5, 2, 2.6)},
            ["Gather more data: the held-out loss rises after step 200"],
            ["Read the surest"],
        ),
        ({**LM, "history": history(3, 2, 1)}, ["Better than", "2.40", "Train longer"], ["Wrong"]),
        (
            {"history": History(0), "data": {"validation": "generated: 600"}},
            ["generated"],
            ["<svg", "still learn"],
        ),
        ({"name": "<b>", "commands": {"x": "<i>"}}, ["&lt;b&gt;", "&lt;i&gt;"], ["<i>"]),
    ],
    ids="good few all-right silent fitted overfit lm no-curve markup".split(),
)
def test_each_sentence_is_there_where_it_is_true(changes, present, absent):
    text = rendered(**changes)
    assert [words for words in present if words not in text] == []
    assert [words for words in absent if words in text] == []
    assert rendered(**changes) == text  # the same bytes again


@settings(max_examples=15, deadline=None)
@given(st.lists(ROW, min_size=1, max_size=40), st.floats(-3, 3))
def test_any_validation_has_a_page(rows, threshold):
    text = rendered(outcomes=outcomes_of(rows, threshold))
    assert not re.search(r"\b(nan|inf)\b", text)


def test_the_page_of_a_run_stands_alone_and_fits_a_screen(local_run, browser):
    page = local_run.path / REPORT
    text = page.read_text()
    assert page.stat().st_size < 300_000
    assert not re.search(r'<script|(src|href)="[^#"]|url\(http', text)
    assert f"{local_run.best['exact']:.1f} %" in text
    browser.get(page.as_uri())
    words = browser.execute_script(
        "document.querySelectorAll('details, .cards, code, .muted').forEach(e => e.remove());"
        "return document.body.innerText"
    )
    assert len(re.findall("[A-Za-z]+", words)) <= 200
    browser.get(page.as_uri())
    browser.execute_script("document.querySelectorAll('details').forEach(e => { e.open = true; })")
    for width in (1280, 400):
        size = SimpleNamespace(width=width, height=900, deviceScaleFactor=1, mobile=False)
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", vars(size))
        lost, _, overhang = browser.execute_script(CUT)
        assert (lost, overhang <= 0) == ([], True)
        texts, overlaps = browser.execute_script(OVERLAPS)
        assert texts > 50
        assert overlaps == []

"""The page of a run: written at its end and beside a task's checkpoints, whole in a browser."""

import re
from pathlib import Path

import numpy as np
import pytest

from detalbert.engine.history import History, TrainingLoss, Validated
from detalbert.run_page import advice
from detalbert.run_page.page import MEANINGS
from detalbert.run_page.run import REPORT
from tests.reports.test_page import CUT, OPEN, OVERLAPS
from tests.run_page.test_outcomes import outcomes_of

FULL = 300_000  # bytes


@pytest.fixture(scope="module")
def page(local_run) -> Path:
    return local_run.path / REPORT


def test_the_page_of_a_run_stands_alone_and_is_small(page, local_run):
    text = page.read_text()
    assert page.stat().st_size < FULL
    assert "<script" not in text
    assert re.findall(r'(?:src|href)="([^#"][^"]*)', text) == []
    assert "url(http" not in text
    best = local_run.best
    for name in ("exact", "f1", "HasAns_f1", "NoAns_exact", "loss"):
        figure = f"<dt>{name}</dt><dd><b>{best[name]:.2f}</b> <small>{MEANINGS[name]}</small>"
        assert figure in text
    assert "best_" not in text  # the page has best scores of its own
    title = f"albert-squad-local, generated, {local_run.path.name}: f1 {best['f1']:.2f}"
    assert f"<title>{title}</title>" in text and f"<h1>{title}</h1>" in text
    assert '<a href="#wrong">' in text and '<h2 id="wrong">' in text
    assert f"step {best['steps']:,}, the best validation" in text
    for heading in ("get wrong?", "Which threshold?", "a probability worth?", "training needed?"):
        assert heading in text
    assert text.count("<svg") >= 3
    assert f"python predict.py --model {local_run.path}" in text


def test_nothing_of_the_page_is_lost_in_a_browser(page, browser):
    browser.get(page.as_uri())
    browser.execute_script(OPEN)
    for width, media in ((1280, "screen"), (400, "screen"), (1047, "print")):
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media})
        lost, _, overhang = browser.execute_script(CUT)
        assert lost == [], width
        assert overhang <= 0, width
        texts, overlaps = browser.execute_script(OVERLAPS)
        assert texts > 50, width
        assert overlaps == [], width


def curve(*losses: float, f1: float = 50.0) -> History:
    """A run whose training loss falls to 1, with these held-out losses and a level F1."""
    history = History(0)
    history.reports = [TrainingLoss(step=10 * i, loss=1 + 1 / i) for i in range(1, 41)]
    for number, loss in enumerate(losses, start=1):
        metrics = {"loss": loss, "f1": f1}
        history.validations.append(Validated(step=100 * number, metrics=metrics))
    return history


@pytest.mark.parametrize(
    "history, words",
    [
        (curve(3.0, 1.5, 2.0, 2.6), ["was lowest at step 200 (1.50)", "highest at step 100"]),
        (curve(4.0, 3.0, 2.5, 2.4), ["still falling", "does much better on what it has seen"]),
        (
            curve(1.9, 1.4, 1.3, 1.2),
            ["since step 300, and the held-out loss was still falling", "one run cannot show"],
        ),
        (curve(1.9, 1.2, 1.25, 1.25), ["gains little", "has been level since step 200"]),
        (curve(1.9, 1.2), ["too few validations"]),
        (curve(3.2, 3.2), ["3.20 at the end, in training 1: the model learns", "--resume never"]),
        (curve(), ["too few validations"]),
    ],
    ids=["overfit", "gap", "falling", "level", "short", "short and overfit", "none"],
)
def test_the_curves_say_what_would_help(history, words):
    sentences = advice.describe_training(history, "f1")
    for sentence, expected in zip(sentences, words, strict=True):
        assert expected in sentence


def test_a_best_step_after_the_lowest_loss_may_be_chance():
    history = curve(3.0, 1.5, 2.0, 2.6)
    for number, point in enumerate(history.validations):
        point.metrics["f1"] = 50.0 + number
    rows = [("pottery", "pottery", -1.0)] * 40 + [("pottery", "Orvane", -1.0)] * 10
    _, sentence = advice.describe_training(history, "f1", outcomes_of(rows, threshold=0.0))
    assert sentence == (
        "f1 was 51.0 at step 200, and is highest at step 400 (53.0), a difference that may be "
        "chance."
    )
    history.validations[-1].metrics["f1"] = 99.0
    _, sentence = advice.describe_training(history, "f1", outcomes_of(rows, threshold=0.0))
    assert sentence.endswith("at step 400 (99.0).")


def test_more_steps_are_worth_what_the_last_fifth_gained_beyond_the_noise():
    history = curve(*np.linspace(1.9, 1.2, 10))
    for number, point in enumerate(history.validations):
        point.metrics["f1"] = 40.0 + 5 * min(number, 7)
    rows = [("pottery", "pottery", -1.0)] * 40 + [("pottery", "Orvane", -1.0)] * 10
    outcomes = outcomes_of(rows, threshold=0.0)
    sentence, _ = advice.describe_training(history, "f1", outcomes)
    assert sentence == (
        "f1 changed by +0.0 points since step 800, within the noise of 50 held-out questions (11.2 "
        "points), and the held-out loss was still falling: a longer run (hyperparameters.max_steps "
        "or epochs) may gain a little."
    )
    history.validations[-1].metrics["loss"] = 1.3
    sentence, _ = advice.describe_training(history, "f1", outcomes)
    assert sentence.endswith("longer training gains little that they could show.")
    history.validations[-1].metrics["f1"] = 95.0
    assert "since step 800, more than the noise" in next(
        advice.describe_training(history, "f1", outcomes)
    )
    assert "since step 800: train longer" in next(advice.describe_training(history, "f1"))

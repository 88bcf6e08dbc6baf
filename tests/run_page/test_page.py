"""The page of a run: written at its end and beside a task's checkpoints, whole in a browser."""

import re
from pathlib import Path

import numpy as np
import pytest

from detalbert.engine.history import History, TrainingLoss, Validated
from detalbert.run_page import advice, plots
from detalbert.run_page.page import MEANINGS, write_report
from detalbert.run_page.run import REPORT, RunSummary
from detalbert.settings.metric import Metric
from tests.run_page.test_outcomes import outcomes_of

FULL = 300_000  # bytes
OVERLAPS = Path(__file__).with_name("overlaps.js").read_text()
CUT = Path(__file__).with_name("cut.js").read_text()
OPEN = "document.querySelectorAll('details').forEach(each => { each.open = true; })"


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
    title = f"albert-squad-local, generated, {local_run.path.name}: {best['exact']:.3g} % right"
    assert f"<title>{title}</title>" in text and f"<h1>{title}</h1>" in text
    assert '<a href="#wrong">' in text and '<h2 id="wrong">' in text
    assert f"step {best['steps']:,}, the best validation" in text
    for heading in ("get wrong?", "Which threshold?", "a probability worth?", "training needed?"):
        assert heading in text
    assert text.count("<svg") >= 3
    assert f"python predict.py --model {local_run.path}" in text
    assert "are those of data.validation: none was trained on." in text
    # Its own held-out questions stay.
    assert "--set data.train=FILE --set hyperparameters.max_steps=STEPS" in text


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
        (curve(3.0, 1.5, 2.0, 2.6), ["was lowest at step 200 (1.50) and is 2.60 at the end"]),
        (curve(4.0, 3.0, 2.5, 2.4), ["still falling", "does much better on what it has seen"]),
        (
            curve(1.9, 1.4, 1.3, 1.2),
            [
                "+0.0 points from the best before, which may be chance (up to 1.0 points), and",
                "no sign that",
            ],
        ),
        (curve(1.9, 1.2, 1.25, 1.25), ["gains little", "level since step 200"]),
        (
            curve(1.9, 1.2),
            ["Too few validations (2)", "1.20 at the end, in training about 1: no sign"],
        ),
        (curve(3.2, 3.2), ["period to 40 (now 50)", "much better on what it has seen"]),
        (curve(), ["Too few validations (0)"]),
        (History(0), ["validation_period to 1 (now 50)"]),
    ],
    ids=["overfit", "gap", "falling", "level", "short", "short and overfit", "none", "no step"],
)
def test_the_curves_say_what_would_help(history, words):
    sentences = advice.describe_training(history, "f1", period=50)
    for sentence, expected in zip(sentences, words, strict=True):
        assert expected in sentence


def test_more_steps_are_worth_what_the_last_fifth_gained_beyond_the_noise():
    history = curve(*np.linspace(1.9, 1.2, 10))
    for number, point in enumerate(history.validations):
        point.metrics["f1"] = 40.0 + 5 * min(number, 7)
    rows = [("pottery", "pottery", -1.0)] * 40 + [("pottery", "Orvane", -1.0)] * 10
    outcomes = outcomes_of(rows, threshold=0.0)
    sentence, _ = advice.describe_training(history, "f1", outcomes)
    assert sentence == (
        "The best f1 after step 800 is +0.0 points from the best before, which may be chance (up "
        "to 11.2 points), and the held-out loss was still falling: a longer run "
        "(hyperparameters.max_steps or epochs) may gain a little."
    )
    history.validations[-1].metrics["loss"] = 1.3
    sentence, _ = advice.describe_training(history, "f1", outcomes)
    assert sentence.endswith("longer training gains little that these questions could show.")
    # The best until then need not be the last one of them.
    history.validations[2].metrics["f1"] = 80.0
    sentence, _ = advice.describe_training(history, "f1", outcomes)
    assert sentence.startswith("The best f1 after step 800 is -5.0 points from the best before")
    history.validations[-1].metrics["f1"] = 100.0
    assert "is +20.0 points from the best before, more than by chance (11.2): train" in next(
        advice.describe_training(history, "f1", outcomes)
    )
    assert "(1.0): train longer" in next(advice.describe_training(history, "f1"))


def summary(**changes) -> RunSummary:
    """The run of a file of questions of which a fifth of the texts is held out."""
    rows = [("pottery", "pottery", -1.0)] * 40 + [("", "Orvane", 1.0)] * 8
    rows += [("", "Zanto", -1.0)] * 2
    values = {
        "name": "shop",
        "model": "a model",
        "data": ["train: shop.csv: 100 questions (20 unanswerable)"],
        "metrics": [
            Metric(name, charted=True, logged=True)
            for name in ("f1", "NoAns_exact", "exact", "HasAns_exact", "best_f1")
        ],
        "metric": "f1",
        "best": {
            "steps": 300,
            "f1": 96,
            "NoAns_exact": 80,
            "exact": 96,
            "HasAns_exact": 100,
            "best_f1": 97,
        },
        "history": curve(1.9, 1.4, 1.3),
        "outcomes": outcomes_of(rows, threshold=0.0),
        "fraction": 0.2,
        "shared": 0,
        "period": 100,
        "is_generated": False,
        "commands": {
            "train again": "python train.py --config a/config.yaml --set data.train=FILE"
            " --output-dir FOLDER"
        },
    }
    return RunSummary(**values | changes)


def written(run: RunSummary, folder: Path) -> str:
    write_report(run, folder)
    return (folder / REPORT).read_text()


def test_the_page_says_where_held_out_questions_come_from(tmp_path):
    text = written(summary(), tmp_path)
    assert "split off from data.train text by text, data.validation_fraction 0.2: none was" in text
    text = written(summary(fraction=None, shared=7), tmp_path)
    assert "are those of data.validation: 7 of them are in data.train, too" in text


def test_half_of_the_data_shows_whether_more_helps_and_held_out_files_stay(tmp_path):
    text = written(summary(), tmp_path)
    # A fifth is held out; of the four others two are left.
    assert "half of the training questions (--set data.validation_fraction=0.6)" in text
    assert "--set data.train=FILE --output-dir FOLDER" in text
    assert "if less than 87 % is right then, more data is likely to help" in text
    assert "wrong most often: answered though there is none" in text
    assert "In the curves one question is 2.0 points of exact" in text
    assert "HELD_OUT_FILE" not in text
    # A run of the generated world needs two files, which are not called the same.
    text = written(summary(fraction=None, is_generated=True), tmp_path)
    assert "unless <code>--set data.validation=HELD_OUT_FILE</code> names yours" in text
    # So few cannot show it.
    few = outcomes_of([("pottery", "pottery", -1.0)] * 29, threshold=0.0)
    text = written(summary(outcomes=few), tmp_path)
    assert "29 held-out questions are too few to show what more data would gain: gather" in text
    assert "validation_fraction=" not in text
    text = written(summary(fraction=None), tmp_path)
    assert "(a file with half of data.train)" in text and "data.validation_fraction" not in text


def test_a_page_has_one_main_score_and_the_same_bytes_again(tmp_path):
    text = written(summary(), tmp_path)
    assert "<title>shop: 96 % right</title>" in text
    assert "48 of 50 results on held-out questions are right: 96 %" in text
    names = re.findall("<dt>(.*?)</dt>", text)
    assert names == ["exact", "f1", "HasAns_exact", "NoAns_exact"]
    assert written(summary(), tmp_path) == text
    assert "<title>shop: f1 96.00</title>" in written(summary(outcomes=None), tmp_path)


def test_the_losses_that_are_cut_are_named(monkeypatch):
    monkeypatch.setattr(plots, "inline_svg", lambda figure, title: figure)
    history = curve(1.9, 1.4, 1.3)
    history.reports[0] = TrainingLoss(step=10, loss=14.2)
    training, _ = plots.plot_losses(history).axes[0].lines
    assert training.get_label() == "training (at first 14.2)"
    history.reports[:30] = []
    training, _ = plots.plot_losses(history).axes[0].lines
    assert training.get_label() == "training"


def test_the_last_report_alone_is_no_training_loss():
    history = curve(1.9, 1.4, 1.3, 1.2)
    history.reports = history.reports[:8]
    history.reports[-1] = TrainingLoss(step=80, loss=0.3)
    *_, sentence = advice.describe_training(history, "f1")
    assert "in training about 0.72: no sign" in sentence

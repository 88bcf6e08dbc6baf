"""`predict.py` as a user meets it: the same numbers as the run, answers, thresholds, refusals."""

import csv
import json
import os
import signal
import subprocess

import pytest

import predict
from detalbert.engine.rows import CHUNK
from detalbert.inference import server
from detalbert.squad import calibration
from detalbert.squad.metrics import score
from tests.conftest import ROOT
from tests.fakes.no_models import no_models, refused
from tests.fakes.questions import read_questions
from tests.fakes.runs import official, wait_for


def run(python, *arguments, **options):
    """The entry point, in a process of its own."""
    command = [python, str(ROOT / "predict.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, timeout=1800, cwd=ROOT, **options)


def predict_here(*arguments):
    return predict.main([str(word) for word in arguments])


def load(path):
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def predicted(local_run, once, real_python):
    """A folder with what predict.py answers to the validation questions of `local_run`."""

    def fill(folder):
        arguments = ["--data", local_run.questions, "--output-dir", folder / "new"]
        ended = run(real_python, "--model", local_run.path, *arguments, text=True)
        assert ended.returncode == 0
        best = local_run.best
        row = f"{'all':32}{best['total']:9,}{best['exact']:9.2f}{best['f1']:9.2f}"
        assert row in ended.stdout

    return once("predicted", fill) / "new"


def test_a_run_and_its_predictions_are_equal_to_the_bit(local_run, predicted):
    for name in ("predictions.json", "null_odds.json"):
        assert (predicted / name).read_bytes() == (local_run.path / name).read_bytes()
    scores = official(load(predicted / "metrics.json"))
    best = local_run.best
    assert {"steps": best["steps"], **scores} == official(best)
    assert scores == official(load(local_run.checkpoint / "scores.json"))

    # It means something: more than one chunk, and neither all answered nor none.
    answers = load(predicted / "predictions.json").values()
    assert len(answers) > CHUNK
    assert any(answers)
    assert not all(answers)


def nearest_answer(entries):
    """The first text of a question's n-best list that is an answer."""
    return next(entry["text"] for entry in entries if entry["text"])


def test_n_best_says_where_and_how_likely(local_run, predicted):
    n_best = load(predicted / "nbest_predictions.json")
    answers = load(predicted / "predictions.json")
    assert list(n_best) == list(answers)
    for example in read_questions(local_run.questions):
        entries = n_best[example.id]
        for entry in entries:
            assert entry["text"] == example.context[entry["start"] : entry["end"]]
        assert all(0 <= entry["probability"] <= 1 for entry in entries)
        # "No answer" stands where its score puts it.
        of_spans = [entry["probability"] for entry in entries if entry["text"]]
        assert of_spans == sorted(of_spans, reverse=True)
        assert answers[example.id] in ("", nearest_answer(entries))


@pytest.fixture
def best_answers(local_run, predicted):
    """The answers at the threshold with the best F1."""
    threshold = local_run.best["best_f1_thresh"]
    n_best = load(predicted / "nbest_predictions.json")
    answers = {}
    for question_id, null_odds in load(predicted / "null_odds.json").items():
        answered = null_odds <= threshold
        answers[question_id] = nearest_answer(n_best[question_id]) if answered else ""
    return answers


def test_the_best_threshold_has_the_best_f1_and_travels(
    local_run, predicted, best_answers, tmp_path
):
    examples = list(read_questions(local_run.questions))
    threshold = local_run.best["best_f1_thresh"]
    null_odds = load(predicted / "null_odds.json")
    f1 = score(examples, best_answers, null_odds, threshold)["f1"]
    assert f1 == pytest.approx(local_run.best["best_f1"], abs=1e-9)
    assert f1 >= local_run.best["f1"]

    arguments = ["--model", local_run.checkpoint, "--data", local_run.questions]
    assert predict_here(*arguments, "--output-dir", tmp_path, "--threshold", "best") == 0
    assert load(tmp_path / "predictions.json") == best_answers


@pytest.mark.parametrize("uncalibrated", [0.0, 1.0])
def test_every_output_says_whether_its_probabilities_are_calibrated(
    uncalibrated, local_run, model, monkeypatch, tmp_path, capsys
):
    model = model._replace(scores={**model.scores, calibration.UNCALIBRATED: uncalibrated})
    monkeypatch.setattr("predict.load_model", lambda folder: model)
    calibrated = not uncalibrated
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"question": "Who?", "context": TEXT}))
    one = ["--model", local_run.path, "--question", "Who?", "--context", TEXT]

    assert predict_here(*one, "--json") == 0
    assert json.loads(capsys.readouterr().out)["calibrated"] == calibrated
    assert predict_here("--model", local_run.path, "--data", rows, "--output-dir", tmp_path) == 0
    with (tmp_path / "predictions.csv").open(encoding="utf-8-sig", newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["calibration"] == ("calibrated" if calibrated else "uncalibrated")


# One question.

TEXT = "The Kalonda carried tar. Ililra Voruro was captain of the Garlen. Silk came late!"


def test_a_question_to_people_and_to_programs(local_run, python):
    question = "Which ship carried tar?"
    arguments = ["--model", local_run.path, "--context", TEXT, "--question", question]
    always = run(python, *arguments, "--threshold", "1e9", "--json", text=True).stdout
    reply = json.loads(always)
    assert reply["answer"] == TEXT[reply["start"] : reply["end"]] != ""
    assert reply["threshold"] == 1e9

    never = run(python, *arguments, "--threshold=-1e9", text=True).stdout
    assert "answer       (no answer)\n" in never


def test_a_closed_pipe_is_no_error(local_run, python):
    command = [python, "predict.py", "--model", local_run.path, "--question", "a", "--context", "b"]
    reading_end, writing_end = os.pipe()
    os.close(reading_end)
    ended = subprocess.run(command, cwd=ROOT, stdout=writing_end, stderr=subprocess.PIPE, text=True)
    os.close(writing_end)
    assert ended.stderr == ""
    assert ended.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_one_line(number, local_run, tmp_path, python):
    out = tmp_path / "out"
    command = [python, str(ROOT / "predict.py"), "--model", str(local_run.path)]
    command += ["--data", str(local_run.questions), "--output-dir", str(out)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        wait_for((out / ".lock").exists)
        process.send_signal(number)
        assert process.stderr.read().endswith(f"INFO: stopped by {number.name}\n")
    assert process.returncode == 128 + number
    assert [path.name for path in out.iterdir()] == [".lock"]


# What a user can get wrong.


def test_a_served_run_is_called_by_its_own_name(local_run, monkeypatch):
    names = []
    monkeypatch.setattr(server, "serve", lambda trained, *_, **__: names.append(trained.name))
    assert predict.main(["--model", str(local_run.path), "--serve"]) == 0
    assert names == [str(local_run.path)]


def test_things_that_are_no_model(local_run, tmp_path, capsys, monkeypatch):
    cases = no_models(local_run, tmp_path)
    monkeypatch.chdir(tmp_path)
    for message, name in cases.items():
        refused(["--model", name, "--question", "a", "--context", "b"], message, capsys)
    assert not (tmp_path / "pwned").exists()


def test_bad_words(local_run, tmp_path, capsys):
    (tmp_path / "blocked").write_text("")
    data = ["--data", local_run.questions]
    ask = ["--question", "a"]
    cases = {
        "one of the arguments --data --question": [],
        "--context: give the text to search": ask,
        "the context is not UTF-8 text": [*ask, "--context", "\udce9"],
        "no.txt: no such file": [*ask, "--context-file", tmp_path / "no.txt"],
        "cannot write there": [*data, "--output-dir", tmp_path / "blocked" / "out"],
        "--threshold nan: no threshold": [*data, "--threshold", "nan"],
        # Flags that would be ignored.
        "--json: --export does without; leave it out": ["--export", "x", "--json"],
        "'0': give auto or a number above 0": [*data, "--threads", "0"],
    }
    for message, words in cases.items():
        refused(["--model", local_run.path, *words], message, capsys)

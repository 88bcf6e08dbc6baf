"""`predict.py` as a user meets it: the same numbers as the run, answers, thresholds, refusals."""

import csv
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

import predict
from detalbert.engine.rows import CHUNK
from detalbert.squad import calibration
from detalbert.squad.metrics import score
from tests.conftest import ROOT
from tests.fakes.no_models import no_models, refused
from tests.fakes.questions import read_questions
from tests.fakes.runs import official, wait_for


def run(python: str, *arguments: Any, **options: Any) -> subprocess.CompletedProcess:
    """The entry point, in a process of its own."""
    command = [python, str(ROOT / "predict.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, timeout=1800, cwd=ROOT, **options)


def predict_here(*arguments: Any) -> int:
    return predict.main([str(word) for word in arguments])


def load(path: Path) -> Any:
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def predicted(local_run, once, real_python) -> Path:
    """A folder with what predict.py answers to the validation questions of `local_run`."""

    def fill(folder: Path) -> None:
        arguments = ["--data", local_run.questions, "--output-dir", folder / "new"]
        ended = run(real_python, "--model", local_run.path, *arguments, text=True)
        assert ended.returncode == 0
        first, *slow = ended.stderr.splitlines()
        assert first == "INFO: answering"
        # A busy machine says how far it is, and how long it took.
        assert all(line.startswith("INFO: answering: ") for line in slow)
        best = local_run.best
        row = f"{'all':14}{best['total']:9,}{best['exact']:9.2f}{best['f1']:9.2f}"
        assert row in ended.stdout

    return once("predicted", fill) / "new"


def test_a_run_and_its_predictions_are_equal_to_the_bit(local_run, predicted):
    for name in ("predictions.json", "null_odds.json"):
        assert (predicted / name).read_bytes() == (local_run.path / name).read_bytes()
    scores = load(predicted / "metrics.json")
    best = local_run.best
    assert {"steps": best["steps"], **scores} == official(best)
    assert scores == official(load(local_run.checkpoint / "scores.json"))

    # It means something: more than one chunk, and neither all answered nor none.
    answers = load(predicted / "predictions.json").values()
    assert len(answers) > CHUNK
    assert any(answers)
    assert not all(answers)


def nearest_answer(entries: list[dict[str, Any]]) -> str:
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
        probabilities = [entry["probability"] for entry in entries]
        assert all(0 <= probability <= 1 for probability in probabilities)
        assert probabilities == sorted(probabilities, reverse=True)
        scores = [entry["score"] for entry in entries]
        assert scores == sorted(scores, reverse=True)
        assert answers[example.id] in ("", nearest_answer(entries))


@pytest.fixture
def best_answers(local_run, predicted) -> dict[str, str]:
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

    # Only what has answers is scored.
    document = load(local_run.questions)
    paragraphs = document["data"][0]["paragraphs"][:20]
    questions = [question for paragraph in paragraphs for question in paragraph["qas"]]
    for question in questions[::2]:
        del question["answers"]
        del question["is_impossible"]
    half = tmp_path / "half.json"
    half.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    out = tmp_path / "out"
    arguments = ["--model", local_run.checkpoint, "--data", half, "--output-dir", out]
    assert predict_here(*arguments, "--threshold", "best") == 0
    expected = {question["id"]: best_answers[question["id"]] for question in questions}
    assert load(out / "predictions.json") == expected
    assert load(out / "metrics.json")["total"] == len(questions) // 2


def write_row(folder: Path, **row: str) -> Path:
    """A file with one question."""
    path = folder / "rows.jsonl"
    path.write_text(json.dumps({"question": "Who?", "context": TEXT, **row}))
    return path


def test_a_trial_refuses_json(local_run, monkeypatch, capsys):
    monkeypatch.setenv("DET_TASK_TYPE", "TRIAL")
    assert predict_here("--model", local_run.path, "--data", "generated", "--json") == 2
    assert "--json: a trial reports its scores" in capsys.readouterr().err


@pytest.mark.parametrize("uncalibrated", [0.0, 1.0])
def test_every_output_says_whether_its_probabilities_are_calibrated(
    uncalibrated, local_run, model, monkeypatch, tmp_path, capsys
):
    model = model._replace(scores={**model.scores, calibration.UNCALIBRATED: uncalibrated})
    monkeypatch.setattr("predict.load_model", lambda folder: model)
    calibrated = not uncalibrated
    asked = ["--model", local_run.path]
    one = [*asked, "--question", "Who?", "--context", TEXT]
    many = [*asked, "--data", write_row(tmp_path), "--output-dir", tmp_path]

    assert predict_here(*one) == 0
    assert ("(uncalibrated)" not in capsys.readouterr().out) == calibrated
    assert predict_here(*one, "--json") == 0
    assert json.loads(capsys.readouterr().out)["calibrated"] == calibrated
    assert predict_here(*many) == 0
    assert ("uncalibrated: no validation" not in capsys.readouterr().out) == calibrated
    with (tmp_path / "predictions.csv").open(encoding="utf-8-sig", newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["calibration"] == ("calibrated" if calibrated else "uncalibrated")
    assert predict_here(*many, "--json") == 0
    assert json.loads(capsys.readouterr().out)["calibrated"] == calibrated


# One question.

TEXT = "The Kalonda carried tar. Ililra Voruro was captain of the Garlen. Silk came late!"


def test_a_question_to_people_and_to_programs(local_run, python):
    question = "Which ship carried tar?"
    arguments = ["--model", local_run.path, "--context", TEXT, "--question", question]
    always = run(python, *arguments, "--threshold", "1e9", "--json", text=True).stdout
    reply = json.loads(always)
    answer = reply["answer"]
    assert not reply["abstained"]
    assert answer == TEXT[reply["start"] : reply["end"]]
    assert answer == answer.strip() != ""
    assert 0 < reply["probability"] <= 1
    assert reply["threshold"] == 1e9
    assert any(entry["text"] == "" for entry in reply["n_best"])

    never = run(python, *arguments, "--threshold=-1e9", text=True).stdout
    assert "answer       (no answer)\n" in never
    assert "nearest " in never

    shown = run(python, *arguments, "--threshold", "1000", text=True).stdout
    assert f"**{answer}**" in shown
    assert f'{reply["margin"]:+.2f} over "no answer" (it answers from -1000.00 on)' in shown


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


def test_things_that_are_no_model(local_run, tmp_path, capsys, monkeypatch):
    cases = no_models(local_run, tmp_path)
    monkeypatch.chdir(tmp_path)
    for message, name in cases.items():
        refused(["--model", name, "--question", "a", "--context", "b"], message, capsys)
    assert not (tmp_path / "pwned").exists()


def test_bad_words(local_run, tmp_path, capsys):
    (tmp_path / "latin.txt").write_bytes("é".encode("latin-1"))
    (tmp_path / "large.txt").write_text("x" * 10_000_000)
    (tmp_path / "blocked").write_text("")
    data = ["--data", local_run.questions]
    ask = ["--question", "a"]
    cases: dict[str, list[Any]] = {
        "one of the arguments --data --question": [],
        "--question: not allowed with argument --data": [*data, *ask],
        "--context: give the text to search": ask,
        "--question: the question is empty": ["--question", " ", "--context", "b"],
        "the context is not UTF-8 text": [*ask, "--context", "\udce9"],
        "the question has more than 10,000": ["--question", "a" * 20_000, "--context", "b"],
        "latin.txt: 'utf-8' codec": [*ask, "--context-file", tmp_path / "latin.txt"],
        "large.txt: the context has more than": [*ask, "--context-file", tmp_path / "large.txt"],
        "no.txt: no such file": [*ask, "--context-file", tmp_path / "no.txt"],
        "no.json: no such file": ["--data", tmp_path / "no.json"],
        "cannot write there": [*data, "--output-dir", tmp_path / "blocked" / "out"],
        "--threshold high: give a number": [*data, "--threshold", "high"],
        "--threshold nan: give a number": [*data, "--threshold", "nan"],
        # Flags that would be ignored.
        "--json: --export does without; leave it out": ["--export", "x", "--json"],
        "--set: --serve does without": ["--serve", "--set", "data.sheet=B"],
        "'0': give auto or a number above 0": [*data, "--threads", "0"],
    }
    for message, words in cases.items():
        refused(["--model", local_run.path, *words], message, capsys)

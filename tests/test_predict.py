"""`predict.py` as a user meets it: the same numbers as the run, answers, thresholds, refusals."""

import csv
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

import predict
from detalbert.engine.rows import CHUNK
from detalbert.errors import UserError
from detalbert.inference import answering, server
from detalbert.inference.model import choose_probabilities, choose_threshold, load_model
from detalbert.squad import calibration
from detalbert.squad.metrics import score
from detalbert.squad.sources import read_questions
from tests.conftest import ROOT
from tests.fakes.no_models import no_models, refused
from tests.fakes.runs import official, wait_for


def run(python: str, *arguments: Any, **options: Any) -> subprocess.CompletedProcess:
    """The entry point, in a process of its own."""
    command = [python, str(ROOT / "predict.py"), *map(str, arguments)]
    options = {"capture_output": True, "timeout": 1800, "cwd": ROOT, **options}
    return subprocess.run(command, **options)


def predict_here(*arguments: Any) -> int:
    return predict.main([str(word) for word in arguments])


def load(path: Path) -> Any:
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def predicted(local_run, once, real_python) -> Path:
    def fill(folder: Path) -> None:
        arguments = ("--data", local_run.questions, "--output-dir", folder / "new")
        done = run(real_python, "--model", local_run.path, *arguments, text=True)
        first, *slow = done.stderr.splitlines()
        assert done.returncode == 0 and first == "INFO: answering: 540 questions"
        assert len(slow) < 2  # a busy machine says how long it took
        best = local_run.best
        assert f"{'all':14}{best['total']:9,}{best['exact']:9.2f}{best['f1']:9.2f}" in done.stdout

    return once("predicted", fill) / "new"


def test_a_run_and_its_predictions_are_equal_to_the_bit(local_run, predicted):
    for name in ("predictions.json", "null_odds.json"):
        assert (predicted / name).read_bytes() == (local_run.path / name).read_bytes()
    best = local_run.best
    assert {"steps": best["steps"], **load(predicted / "metrics.json")} == official(best)
    # It means something: more than one chunk, and neither all answered nor none.
    answers = load(predicted / "predictions.json")
    assert len(answers) > CHUNK and len({bool(text) for text in answers.values()}) == 2
    scores = official(load(local_run.checkpoint / "scores.json"))
    assert scores == load(predicted / "metrics.json")


def test_n_best_says_where_and_how_likely(local_run, predicted):
    n_best, answers = (load(predicted / f"{name}.json") for name in ("nbest", "predictions"))
    assert list(n_best) == list(answers)
    for example in read_questions(local_run.questions):
        entries = n_best[example.id]
        assert all(e["text"] == example.context[e["start"] : e["end"]] for e in entries)
        assert sum(e["probability"] for e in entries) == pytest.approx(1, abs=1e-5)
        assert [e["score"] for e in entries] == sorted((e["score"] for e in entries), reverse=True)
        assert answers[example.id] in ("", next(e["text"] for e in entries if e["text"]))


def test_the_best_threshold_travels_and_only_what_has_answers_is_scored(
    local_run, predicted, tmp_path
):
    best, odds = local_run.best, load(predicted / "null_odds.json")
    threshold, entries = best["best_f1_thresh"], load(predicted / "nbest.json")
    texts = {id_: next(e["text"] for e in entries[id_] if e["text"]) for id_ in odds}
    wanted = {id_: texts[id_] if odds[id_] <= threshold else "" for id_ in odds}
    f1 = score(list(read_questions(local_run.questions)), wanted, odds, threshold)["f1"]
    assert f1 == pytest.approx(best["best_f1"], abs=1e-9) and f1 >= best["f1"]
    document = load(local_run.questions)
    del document["data"][0]["paragraphs"][20:], document["data"][1:]
    questions = [q for p in document["data"][0]["paragraphs"] for q in p["qas"]]
    for question in questions[::2]:
        del question["answers"], question["is_impossible"]
    (tmp_path / "half.json").write_text(json.dumps(document))
    words = ["--model", local_run.checkpoint, "--data", tmp_path / "half.json"]
    assert predict_here(*words, "--threshold", "best", "--output-dir", tmp_path / "out") == 0
    ids = {question["id"] for question in questions}
    assert load(tmp_path / "out" / "predictions.json") == {k: wanted[k] for k in odds if k in ids}
    assert load(tmp_path / "out" / "metrics.json")["total"] == len(questions) // 2


def test_a_table_runs_nothing_in_a_spreadsheet(local_run, tmp_path):
    row = {"question": "=1+1", "context": TEXT, "id": "+7"}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    words = ["--data", tmp_path / "rows.jsonl", "--output-dir", tmp_path]
    assert predict_here("--model", local_run.path, *words) == 0
    assert "'+7,'=1+1," in (tmp_path / "predictions.csv").read_text(encoding="utf-8-sig")


def test_a_trial_refuses_json(local_run, monkeypatch, capsys):
    monkeypatch.setenv("DET_TASK_TYPE", "TRIAL")
    assert predict_here("--model", local_run.path, "--data", "generated", "--json") == 2
    assert "--json: a trial reports its scores" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "left"), [([], True), (["--raw"], False)])
def test_a_server_has_the_probabilities_that_are_asked_for(words, left, local_run, monkeypatch):
    served = []
    monkeypatch.setattr(server, "serve", lambda model, *_, **__: served.append(model))
    assert predict_here("--model", local_run.path, "--serve", *words) == 0
    assert (calibration.SPAN in served[0].scores) is left


def test_a_model_without_temperatures_says_so_once(model, caplog):
    caplog.set_level("INFO")
    for scores in ({}, {calibration.SPAN: 1.0, calibration.NULL: 1.0}):
        assert choose_probabilities(model._replace(scores=scores), raw=False).scores == scores
    assert len(caplog.messages) == 2 and all("as with --raw" in line for line in caplog.messages)
    assert choose_probabilities(model, raw=False) is model
    assert choose_probabilities(model, raw=True).scores == {} and len(caplog.messages) == 2


def test_best_is_refused_where_none_was_found(local_run, tmp_path):
    checkpoint = shutil.copytree(local_run.checkpoint, tmp_path / "checkpoint")
    (checkpoint / "scores.json").unlink()
    (checkpoint / "manifest.json").unlink()  # as on a cluster
    model = load_model(str(checkpoint))
    with pytest.raises(UserError, match="--threshold best: no validation is recorded"):
        choose_threshold(model, "best")
    for text in ("high", "nan", "inf", ""):
        with pytest.raises(UserError, match="give a number or best"):
            choose_threshold(model, text)
    assert choose_threshold(model, "-1.5") == -1.5 and choose_threshold(model) == 0.0


def test_the_same_questions_as_rows(local_run, model, tmp_path):
    examples = list(read_questions(local_run.questions))[:50]
    rows = [{"id": e.id, "question": e.question, "context": e.context} for e in examples]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    answers = next(answering.answer(model, examples, 0.0))
    out = tmp_path / "out"
    out.mkdir()
    older = {"exact": 1.0, "f1": 1.0, "total": 3}  # of other questions
    (out / "metrics.json").write_text(json.dumps(older))
    arguments = ["--data", tmp_path / "rows.jsonl", "--output-dir", out]
    assert predict_here("--model", local_run.path, *arguments) == 0
    assert load(out / "predictions.json") == answers.predictions
    assert load(out / "null_odds.json") == answers.null_odds
    with (out / "predictions.csv").open(encoding="utf-8-sig", newline="") as file:
        table = list(csv.DictReader(file))
    assert [row["id"] for row in table] == [e.id for e in examples]
    for row, example in zip(table, examples, strict=True):
        assert row["answer"] == answers.predictions[example.id].strip()
        if row["answer"]:
            assert example.context[int(row["start"]) : int(row["end"])] == row["answer"]
        assert 0 <= float(row["probability"]) <= 1 and row["question"] == example.question
    names = {"predictions.json", "predictions.csv", "null_odds.json", "nbest.json"}
    assert {path.name for path in out.iterdir()} == {".lock", *names}


@pytest.mark.parametrize("content", ['{"loss": 0.5, "f1": 80.1}', "[1]", "my notes", ""])
def test_metrics_of_somebody_else_stay(content, local_run, tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps({"question": "Who?", "context": TEXT}))
    (tmp_path / "metrics.json").write_text(content)
    words = ["--data", tmp_path / "rows.jsonl", "--output-dir", tmp_path]
    assert predict_here("--model", local_run.path, *words) == 0
    assert (tmp_path / "predictions.csv").is_file()
    assert (tmp_path / "metrics.json").read_text() == content


def test_predictions_do_not_replace_those_of_a_run(local_run, tmp_path, capsys):
    (tmp_path / "rows.jsonl").write_text(json.dumps({"question": "Who?", "context": TEXT}))
    before = (local_run.path / "metrics.json").read_bytes()
    words = ["--data", tmp_path / "rows.jsonl", "--output-dir", local_run.path]
    assert predict_here("--model", local_run.path, *words) == 2
    assert f"--output-dir {local_run.path}: a run's folder, " in capsys.readouterr().err
    assert (local_run.path / "metrics.json").read_bytes() == before


# One question.

TEXT = "The Kalonda carried tar. Ililra Voruro was captain of the Garlen. Silk came late!"


def test_a_question_to_people_and_to_programs(local_run, python):
    words = ["--model", local_run.path, "--context", TEXT, "--question", "Which ship carried tar?"]
    always = run(python, *words, "--threshold", "1e9", "--json", text=True)
    reply = json.loads(always.stdout)
    assert not reply["abstained"] and reply["answer"] == TEXT[reply["start"] : reply["end"]]
    assert reply["answer"] == reply["answer"].strip() != ""
    assert 0 < reply["probability"] <= 1 and reply["threshold"] == 1e9
    assert any(entry["text"] == "" for entry in reply["n_best"])
    never = run(python, *words, "--threshold=-1e9", text=True)
    assert "answer       (no answer)\n" in never.stdout and "nearest " in never.stdout
    shown = run(python, *words, "--threshold", "1000", text=True).stdout
    assert f"**{reply['answer']}**" in shown
    assert f'{reply["margin"]:+.2f} over "no answer" (it answers from -1000.00 on)' in shown


@pytest.mark.parametrize("command", ["predict.py", "-m reports"])
def test_a_closed_pipe_is_no_error(command, local_run, python):
    asked = ["--model", local_run.path, "--question", "a", "--context", "b"]
    words = asked if command == "predict.py" else ["cost", "--published"]
    ours, theirs = os.pipe()
    os.close(ours)
    line = [python, *command.split(), *map(str, words)]
    done = subprocess.run(line, cwd=ROOT, stdout=theirs, stderr=subprocess.PIPE, text=True)
    os.close(theirs)
    assert done.stderr == "" and done.returncode in (0, -signal.SIGPIPE)


def test_questions_one_after_another(local_run, tmp_path, python):
    (tmp_path / "text.txt").write_text(TEXT)
    words = ["--model", local_run.path, "--context-file", tmp_path / "text.txt"]
    asked = "Who?\n\n   \nWo wär\u2019s?\n".encode() + b"caf\xe9?\n" + b"Which ship?\n"
    done = run(python, *words, "--interactive", "--json", input=asked)
    replies = [json.loads(line) for line in done.stdout.splitlines()]
    assert [reply["question"] for reply in replies] == ["Who?", "Wo wär\u2019s?", "Which ship?"]
    (error,) = done.stderr.decode().splitlines()
    assert error.startswith("predict.py: error: question: the question is not UTF-8 text; ")
    assert done.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_one_line(number, local_run, tmp_path, python):
    out = tmp_path / "out"
    command = [python, str(ROOT / "predict.py"), "--model", str(local_run.path)]
    command += ["--data", str(local_run.questions), "--output-dir", str(out)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        wait_for(lambda: list(out.glob(".detalbert-tmp-*-predictions.json")))
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
    cases: dict[str, list[Any]] = {
        "nothing to do: give exactly one of": [],
        "--data --question: give exactly one of": [*data, "--question", "a"],
        "--context: give the text to search": ["--question", "a"],
        "--question: the question is empty": ["--question", " ", "--context", "b"],
        "the context is not UTF-8 text": ["--question", "a", "--context", "\udce9"],
        "the question has 20,000 characters": ["--question", "a" * 20_000, "--context", "b"],
        "latin.txt: not UTF-8": ["--question", "a", "--context-file", tmp_path / "latin.txt"],
        "large.txt: too long": ["--question", "a", "--context-file", tmp_path / "large.txt"],
        "no.txt: cannot read it": ["--interactive", "--context-file", tmp_path / "no.txt"],
        "no.json: no such file": ["--data", tmp_path / "no.json"],
        "cannot write there": [*data, "--output-dir", tmp_path / "blocked" / "out"],
        "--threshold high: give a number": [*data, "--threshold", "high"],
        "--push-to-hub: it uploads": [*data, "--push-to-hub", "me/mine"],
        # Flags that would be ignored.
        "--json: --export does without; leave it out": ["--export", "x", "--json"],
        "--json: --serve does without": ["--serve", "--json"],
        "--raw: --export does without": ["--export", "x", "--raw"],
        "--top: --data does without": ["--data", "generated", "--top", "3"],
        "--temperature: --export does without": ["--export", "x", "--temperature", "0"],
        "--seed: --export does without": ["--export", "x", "--seed", "0"],
    }
    for message, words in cases.items():
        refused(["--model", local_run.path, *words], message, capsys)
    with pytest.raises(SystemExit):
        predict_here("--question", "a", "--context", "b", "--top", "0")
    assert "'0': give a number above 0" in capsys.readouterr().err

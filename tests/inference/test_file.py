"""`predict.py --data`: rows beside the answers, faults, and files that are not ours."""

import csv
import json

import pytest

import predict
from detalbert.inference import predict_file
from detalbert.inference.file_questions import Questions
from detalbert.inference.predict_file import WRITTEN, score_table
from detalbert.squad.error_groups import find_group
from detalbert.squad.metrics import exact_match
from detalbert.squad.sources import SHIPPED
from tests.fakes.no_models import refused
from tests.fakes.questions import read_questions

CONTEXT = "The Kalonda carried tar. Ililra Voruro was captain of the Garlen."
GOOD = {"question": "What was loaded?", "context": "The Zanto was loaded with pottery. " * 60}
LONG = {"question": "What " * 400 + "?", "context": GOOD["context"]}
SKIP = ["--set", "data.skip_invalid=true"]


def write(path, rows):
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def read_table(folder):
    with (folder / "predictions.csv").open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def test_answers_stand_beside_the_columns_of_the_sheet(local_run, tmp_path):
    """One is named as ours, one would be a formula; the last question's label is nowhere."""
    rows = [
        ["No.", "Frage", "context", "Answer", "remark"],
        ["1", "What did the Kalonda carry?", CONTEXT, "tar", "=1+1"],
        ["2", "Who was captain of the Zanto?", CONTEXT, "", ""],
        ["3", "Who was captain of the Garlen?", CONTEXT, "Nobody", "ask Bo"],
    ]
    with (tmp_path / "new.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    words = ["--model", local_run.path, "--data", tmp_path / "new.csv", "--output-dir", tmp_path]
    columns = ["--set", "data.columns={question: Frage, answer: Answer}"]
    assert predict.main([*map(str, words), *columns, *SKIP]) == 0

    content = (tmp_path / "predictions.csv").read_bytes()
    assert content.startswith(b"\xef\xbb\xbf")
    header, *table = csv.reader(content.decode("utf-8-sig").splitlines())
    own = ["probability", "calibration", "error", "trained_on", "left_out"]
    assert header == [*rows[0], "model_answer", *own]
    assert [row[:4] for row in table] == [row[:4] for row in rows[1:]]
    assert [row[4] for row in table] == ["'=1+1", "", "ask Bo"]
    predictions = json.loads((tmp_path / "predictions.json").read_text())
    assert [row[5] for row in table[:2]] == [text.strip() for text in predictions.values()]
    assert "answer 'Nobody' is not in its context" in table[2][-1]


def test_each_answer_says_what_is_wrong_with_it(local_run, tmp_path):
    words = ["--model", str(local_run.path), "--data", str(local_run.questions)]
    assert predict.main([*words, "--output-dir", str(tmp_path)]) == 0
    predictions = json.loads((tmp_path / "predictions.json").read_text())
    table = read_table(tmp_path)
    for row, example in zip(table, read_questions(local_run.questions), strict=True):
        labels = [text for text, _ in example.answers or ()] or [""]
        right = any(exact_match(predictions[row["id"]], text) for text in labels)
        assert (row["error"] == "") == right


def test_answers_are_compared_in_the_language_that_is_set(local_run, tmp_path, capsys):
    """As in German, where "die" is an article and the quotation marks are punctuation."""
    context = "„Die Kalonda“ carried tar."
    row = {"context": context, "question": "What carried tar?", "answer": "„Die Kalonda“"}
    file = write(tmp_path / "rows.jsonl", [row])
    words = ["--model", local_run.path, "--data", file, "--output-dir", tmp_path]
    labels = ["„Die Kalonda“"]
    for language in ("en", "de"):
        arguments = [*map(str, words), "--set", f"data.language={language}"]
        assert predict.main(arguments) == 0
        scores = json.loads((tmp_path / "metrics.json").read_text())
        assert scores["language"] == language
        (prediction,) = json.loads((tmp_path / "predictions.json").read_text()).values()
        assert scores["exact"] == 100 * exact_match(prediction, labels[0], language)
        assert read_table(tmp_path)[0]["error"] == find_group(labels, prediction, language)
    refused([*words, "--set", "data.language=jp"], "data.language: 'jp'; write its", capsys)


def test_scores_say_which_questions_were_trained_on(local_run, model, tmp_path):
    source = Questions(model, str(SHIPPED / "world-train.json.gz"))
    trained_on = next(iter(source))
    held_out = list(read_questions(local_run.questions))[:2]
    rows = []
    for example in (trained_on, *held_out):
        texts = [text for text, _ in example.answers or ()]
        row = {"question": example.question, "context": example.context, "answer": texts}
        rows.append({**row, "is_impossible": not texts})
    questions = Questions(model, str(write(tmp_path / "rows.jsonl", rows)))

    outcome = predict_file.predict(model, questions, tmp_path / "out", threshold=0.0)

    assert [row["trained_on"] for row in read_table(tmp_path / "out")] == ["yes", "no", "no"]
    assert outcome.metrics["trained_on_total"] == 1
    assert outcome.metrics["held_out_total"] == 2
    lines = score_table(outcome).splitlines()
    assert "trained on, so too high                 1" in "".join(lines)
    assert any(line.startswith("best threshold, fitted to these ") for line in lines)


FAULTS = {
    "room": (LONG, "question 701: max_seq_length"),
    "twice": ({**GOOD, "id": "7"}, "question 7: another question has this id"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_the_last_row_leaves_nothing(name, local_run, tmp_path, capsys):
    row, problem = FAULTS[name]
    short = {**GOOD, "context": "Tar."}
    file = write(tmp_path / "rows.jsonl", [short] * 700 + [row])
    out = tmp_path / "out"
    refused(["--model", local_run.path, "--data", file, "--output-dir", out], problem, capsys)
    assert [path.name for path in out.iterdir()] == [".lock"]


def test_a_file_that_is_not_ours_is_not_replaced(local_run, tmp_path, capsys):
    data = write(tmp_path / "rows.jsonl", [GOOD])
    out = tmp_path / "out"
    words = ["--model", local_run.path, "--data", data, "--output-dir"]
    for folder in (local_run.path, local_run.checkpoint):
        refused([*words, folder], "a run's folder", capsys)
    # Files of an earlier prediction are, with what a kill left; not what became of them.
    for _ in range(2):
        out.mkdir(exist_ok=True)
        (out / ".detalbert-tmp-of another-01234abc").mkdir()
        assert predict.main([*map(str, words), str(out)]) == 0
        names = {path.name for path in out.iterdir()}
        assert names == {*WRITTEN, ".lock", ".written.json"} - {"metrics.json"}
    own = ["--model", local_run.path, "--data", out / "predictions.csv", "--output-dir", out]
    refused(own, "predictions.csv would be replaced", capsys)
    for name in WRITTEN:
        path = out / name
        content = path.read_bytes() if path.exists() else b""
        path.write_text("mine")
        refused([*words, out], f"{name}: it would be replaced", capsys)
        assert path.read_text() == "mine"
        path.write_bytes(content) if content else path.unlink()


@pytest.mark.parametrize("change", ["data.train=x", "hyperparameters.seed=1", "x=1"])
def test_only_what_says_how_a_file_is_read_may_be_set(change, local_run, tmp_path, capsys):
    data = write(tmp_path / "rows.jsonl", [GOOD])
    words = ["--model", local_run.path, "--data", data, "--set", change]
    refused(words, "not read here; set data.columns, data.language", capsys)


ODD = {
    "scores": [[], {"best_f1_thresh": float("nan")}],
    "data": [5, {"columns": {"answr": "x"}}],
    "steps": ["x"],
    "hyperparameters": [[], {"max_seq_length": "x"}],
    "others": [1],
}


def test_odd_settings_of_a_folder_are_one_line(local_run, model, tmp_path, capsys):
    folder = tmp_path / "model"
    assert predict.main(["--model", str(local_run.path), "--export", str(folder)]) == 0
    settings = json.loads((folder / "question_answering.json").read_text())
    (folder / "sums.json").unlink()
    data = write(tmp_path / "rows.jsonl", [GOOD])
    words = ["--model", folder, "--data", data, "--output-dir", tmp_path / "out"]
    for key, values in ODD.items():
        for value in values:
            if isinstance(value, dict) and isinstance(settings.get(key), dict):
                value = {**settings[key], **value}
            text = json.dumps({**settings, key: value})
            (folder / "question_answering.json").write_text(text)
            refused(words, key, capsys)

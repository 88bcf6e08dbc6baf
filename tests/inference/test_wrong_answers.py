"""Wrong answers in groups: by hand, and those of a run's model."""

import csv
import json

import pytest

from detalbert.squad import error_groups
from detalbert.squad.error_groups import find_group
from detalbert.squad.metrics import exact_match
from tests.test_predict import predict_here


@pytest.mark.parametrize(
    "labels, prediction, group",
    [
        (["the ash"], "Ash!", ""),
        ([], "", ""),
        (["ash"], "", error_groups.ABSTAINED),
        ([], "ash", error_groups.ANSWERED),
        (["ash"], "ash of Salno", error_groups.TOO_LONG),
        (["ash of Salno", "Salno"], "ash", error_groups.TOO_SHORT),
        (["Zanto"], "Zant", error_groups.TOO_SHORT),
        (["the old Zanto"], "ld Zanto", error_groups.TOO_SHORT),
        (["ash of Salno"], "sh of Sal", error_groups.TOO_SHORT),
        (["ash of Salno"], "the", error_groups.OTHER),  # without words
        (["ash"], "ashes", error_groups.OTHER),
        (["ash", "maple"], "maple", ""),
    ],
)
def test_groups_by_hand(labels, prediction, group):
    assert find_group(labels, prediction) == group
    assert list(error_groups.GROUP_MEANINGS) == list(error_groups.GROUPS)


def test_errors_of_a_file(local_run, tmp_path, capsys):
    data = json.loads(local_run.questions.read_text())
    correct = {}
    for article in data["data"]:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                texts = [answer["text"] for answer in question["answers"]] or [""]
                correct[question["id"]] = texts
    # One more question, whose label is not in its text.
    paragraph["qas"].append({"id": "odd", "question": "Who?", "answers": [{"text": "Nobody Here"}]})
    path = tmp_path / "questions.json"
    path.write_text(json.dumps(data))
    options = ["--data", path, "--output-dir", tmp_path / "out", "--skip-invalid", "--errors"]
    assert predict_here("--model", local_run.path, *options) == 0

    with (tmp_path / "out" / "errors.csv").open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    # A row is that of predictions.csv, between its group and, without a table, its texts.
    with (tmp_path / "out" / "predictions.csv").open(encoding="utf-8-sig", newline="") as file:
        table = {row["id"]: row for row in csv.DictReader(file)}
    for row in rows:
        answer = table[row["id"]]
        assert list(row) == ["group", *answer, "labels", "context"]
        assert row == {**row, **answer}
    assert all(row["labels"] == " | ".join(correct[row["id"]]) for row in rows[:-1])
    predictions = json.loads((tmp_path / "out" / "predictions.json").read_text())
    wrong = {
        name
        for name, texts in correct.items()
        if not any(exact_match(predictions[name], text) for text in texts)
    }
    assert [row["id"] for row in rows if row["group"] == error_groups.LABEL] == ["odd"]
    assert {row["id"] for row in rows} == {*wrong, "odd"}
    assert len(rows) == len(wrong) + 1

    # The table in the terminal has the same counts.
    printed = capsys.readouterr().out
    for group in {row["group"] for row in rows}:
        count = sum(row["group"] == group for row in rows)
        assert f"{group:32}{count:9,}\n" in printed
    assert f"{'all':32}{len(rows):9,}\n" in printed


def test_without_answers_there_are_no_errors(local_run, tmp_path, capsys):
    path = tmp_path / "new.jsonl"
    path.write_text(json.dumps({"question": "Who?", "context": "Ada wrote it."}))
    options = ["--data", path, "--output-dir", tmp_path / "out", "--errors"]
    assert predict_here("--model", local_run.path, *options) == 0
    assert "no known answers to compare with" in capsys.readouterr().out

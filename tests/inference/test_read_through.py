"""A file of questions is read through before the first answer: its last row may be at fault."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import predict
from detalbert.errors import UserError
from detalbert.inference import answering
from detalbert.inference.model import Trained
from detalbert.inference.predict_file import Questions
from detalbert.squad.windows import Example, build_windows, check_questions_fit
from tests.conftest import max_examples
from tests.fakes.no_models import refused
from tests.fakes.questions import TOKENIZERS, WORDS
from tests.fakes.trained import LocalRun

CONTEXT = "The Zanto was loaded with pottery. " * 60
GOOD = {"question": "What was the Zanto loaded with?", "context": CONTEXT}
LONG = {"question": "What " * 400 + "?", "context": CONTEXT}
FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "room": (LONG, "question 1301: max_seq_length"),
    "empty": (
        {"question": "What?", "context": " "},
        "line 1301: question 1301: its context is empty",
    ),
    "twice": ({**GOOD, "id": "7"}, "line 1301: question 7: another question has this id"),
}


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_the_last_row_comes_before_the_first_answer(
    name: str,
    local_run: LocalRun,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_answer(*_: Any, **__: Any) -> None:
        raise AssertionError("an answer was computed")

    monkeypatch.setattr(answering, "evaluate_windows", no_answer)
    row, problem = FAULTS[name]
    file = write(tmp_path / "rows.jsonl", [GOOD] * 1300 + [row])
    out = tmp_path / "out"
    words = ["--model", local_run.path, "--data", file, "--output-dir", out]
    refused(words, f"rows.jsonl: {problem}", capsys)
    assert not out.exists()


def test_a_long_question_with_a_short_text_is_answered(model: Trained, tmp_path: Path) -> None:
    fits = {"question": "What " * 150 + "?", "context": "Tar."}
    file = write(tmp_path / "rows.jsonl", [fits, GOOD])
    questions = Questions(str(file))
    assert questions.read_through(model) == 2
    assert [example.id for example in questions] == ["1", "2"]  # to be read again


def test_what_cannot_be_answered_is_left_out_and_listed(
    local_run: LocalRun,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    empty = {"question": "What?", "context": " "}
    repeated = {**GOOD, "id": "1"}
    file = write(tmp_path / "rows.jsonl", [GOOD, LONG, empty, GOOD, repeated])
    out = tmp_path / "out"
    words = ["--model", local_run.path, "--data", file, "--output-dir", out]
    refused(words, "rows.jsonl: ", capsys)

    assert predict.main([*map(str, words), "--skip-invalid"]) == 0

    assert list(json.loads((out / "predictions.json").read_text())) == ["1", "4"]
    with (out / "predictions.csv").open(encoding="utf-8-sig", newline="") as table:
        rows = list(csv.DictReader(table))
    # The answered ones first, then those left out.
    assert [row["id"] for row in rows] == ["1", "4", "3", "1", "2"]
    reasons = {row["id"]: row["left_out"] for row in rows[2:]}
    assert "its context is empty" in reasons["3"]
    assert "another question has this id" in reasons["1"]
    assert "max_seq_length" in reasons["2"]
    assert "3 questions are left out; the first: " in caplog.text


words = st.lists(st.sampled_from(WORDS), max_size=40).map(" ".join)


@max_examples(150)
@given(
    pairs=st.lists(st.tuples(words, words), min_size=1, max_size=4),
    name=st.sampled_from(sorted(TOKENIZERS)),
    length=st.integers(4, 40),
    stride=st.integers(0, 12),
)
def test_what_is_said_at_the_start_is_what_the_windows_would_say(
    pairs: list[tuple[str, str]], name: str, length: int, stride: int
) -> None:
    examples = []
    for number, (question, context) in enumerate(pairs):
        examples.append(Example(str(number), "", context, question, answers=None))
    tokenizer = TOKENIZERS[name]

    problem = None
    try:
        build_windows(examples, tokenizer, length, stride, max_query_length=None)
    except UserError as error:
        problem = str(error)

    if problem is None:
        check_questions_fit(examples, tokenizer, length, stride)
    else:
        with pytest.raises(UserError) as refusal:
            check_questions_fit(examples, tokenizer, length, stride)
        assert str(refusal.value) == problem

"""Questions that a model was trained on."""

import json
from pathlib import Path

from detalbert.squad.questions import read_examples
from detalbert.squad.sources import open_source
from detalbert.training.questions import TrainingQuestions


def test_a_question_was_trained_on_or_not_or_that_is_not_known(tmp_path, monkeypatch):
    data = {"train": "generated", "validation": "generated", "cache_dir": str(tmp_path)}
    example = next(read_examples(open_source("generated", "train", tmp_path)))
    other = next(read_examples(open_source("generated", "validation", tmp_path)))
    questions = TrainingQuestions(data)
    assert questions.has(example) is True
    assert questions.has(other) is False
    monkeypatch.chdir(tmp_path)
    Path("mine.jsonl").write_text(
        json.dumps({"question": example.question, "context": example.context})
    )
    questions = TrainingQuestions({**data, "train": "mine.jsonl"})
    assert questions.has(example) is True
    assert questions.has(other) is False
    assert TrainingQuestions({}).has(example) is None
    assert TrainingQuestions({**data, "train": "not-here.json"}).has(example) is None

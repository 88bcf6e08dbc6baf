"""A file of questions answered by the slots of a trial, which is cut and goes on."""

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from determined import core

import predict
from benchmarks.predict import write_model
from detalbert.engine.rows import CHUNK
from detalbert.errors import UserError
from detalbert.inference.score_table import UNCALIBRATED_LINE
from detalbert.inference.shares import _Job
from detalbert.training.manifest import write_manifest
from tests.cluster.conftest import steps_of
from tests.cluster.planted import experiment

PARTS = 5
QUESTIONS = (PARTS - 1) * CHUNK + 100
RUN = "python3 -m determined.launch.torch_distributed python3 predict.py"


def write_questions(path: Path) -> None:
    """Write short ones, the last part a short one too; some have no answer."""
    lines = []
    for number in range(QUESTIONS):
        answers: dict[str, list[Any]] = {"text": [], "answer_start": []}
        if number % 3:
            answers = {"text": [f"ship {number}"], "answer_start": [4]}
        row = {
            "id": str(number),
            "question": f"What carried {number % 5} tons?",
            "context": f"The ship {number} carried {number % 7} tons of tar.",
            "answers": answers,
        }
        lines.append(json.dumps(row) + "\n")
    path.write_text("".join(lines))


def test_slots_cut_and_gone_on_write_what_one_process_writes(trial, tmp_path):
    """Two slots, for an odd number of parts."""
    questions = tmp_path / "questions.jsonl"
    write_questions(questions)
    model = write_model(tmp_path / "model")
    arguments = ["--model", str(model), "--data", str(questions), "--threads", "1"]
    alone = tmp_path / "alone"
    assert predict.main([*arguments, "--output-dir", str(alone)]) == 0
    trial.config = {
        **experiment("predict.yaml"),
        "checkpoint_storage": trial.config["checkpoint_storage"],
        "hyperparameters": {},
        "entrypoint": f"{RUN} {' '.join(arguments)}",
    }

    # Preempted after the first report of progress.
    with trial.master(slots=(2,), preempt_at=("progress", 1)) as master:
        trial.run(master)
    name = master.name
    assert name == "answers: model, questions.jsonl"
    prediction = master.metadata["prediction"]
    assert prediction.pop("threshold") == pytest.approx(0, abs=50)
    assert prediction == {
        "model": str(model),
        "data": str(questions),
        "questions": QUESTIONS,
        "threads": 1,
        "raw": False,
    }
    (cut,) = master.checkpoints
    (steps,) = steps_of(master.checkpoints)
    parts = list((trial.storage / cut.uuid).glob("part-*.json"))
    assert master.acknowledged == 1
    assert len(parts) == steps
    assert 0 < steps < PARTS

    # Resumed from there.
    with trial.master(slots=(2,)) as master:
        master.name = name  # which a restart finds, and leaves
        done = trial.run(master, checkpoint=cut.uuid, steps=steps)
    assert f"{steps} of {PARTS} parts are answered already\n" in done.stderr
    lines = [line.removeprefix("[rank=0] ") for line in done.stderr.splitlines()]
    assert f"INFO: loading the model {model} and the questions of {questions}" in lines
    assert f"INFO: answering {QUESTIONS:,} questions in {PARTS} parts on 2 slot(s)" in lines
    assert any("INFO: best threshold  " in line for line in lines)
    assert f"INFO: {UNCALIBRATED_LINE}" in lines
    assert master.states[0] == "loading"
    assert master.states[-1] == "done"
    assert master.progress[-1] == 1.0
    assert master.acknowledged == 0
    assert master.name == name
    assert steps_of(master.checkpoints) == [PARTS, PARTS + 1]

    newest = master.checkpoints[-1]
    for file in alone.glob("*.*s*"):  # of JSON and CSV
        assert (trial.storage / newest.uuid / file.name).read_bytes() == file.read_bytes()
    (validation,) = master.reports("validation")
    assert validation["steps"] == PARTS + 1
    assert validation["metrics"] == json.loads((alone / "metrics.json").read_text())
    assert f"det checkpoint download {newest.uuid}" in done.stderr


def test_a_restart_answers_the_same_questions_and_what_is_left_of_them(tmp_path):
    request = {
        "model": "uuid",
        "questions": "digest",
        "total": 3 * CHUNK,
        "threshold": 0.0,
        "chunk": CHUNK,
    }
    stored = tmp_path / "storage" / "one"
    stored.mkdir(parents=True)
    (stored / "asked.json").write_text(json.dumps(request))
    (stored / "part-000001.json").write_text("{}")
    write_manifest(stored, {"parts": 1})

    def job(**changes: Any) -> _Job:
        folder = tmp_path / uuid.uuid4().hex
        folder.mkdir()
        return _Job(context, {**request, **changes}, "questions.json", folder, calibrated=True)

    with core.init(checkpoint_storage=str(tmp_path / "storage")) as context:
        restarted = job()
        assert restarted.restore("one")
        assert restarted.remaining == [0, 2]
        assert [path.name for path in restarted.own.iterdir()] == ["part-000001.json"]

        for key, value in {"questions": "other", "model": "other", "threshold": 1.0}.items():
            with pytest.raises(UserError, match=f"{key}: the answers so far are"):
                job(**{key: value}).restore("one")

        (stored / "part-000001.json").write_text("[]")
        with pytest.raises(UserError, match="part-000001.json is not as it was written"):
            job().restore("one")

        # Of a job that is complete nothing is to be answered.
        (stored / "predictions.json").write_text("{}")
        assert not job().restore("one")

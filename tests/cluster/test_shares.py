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
from detalbert.inference.shares import _Job
from detalbert.training.manifest import write_manifest
from tests.cluster.conftest import steps_of
from tests.cluster.planted import experiment

PARTS = 5
RUN = "python3 -m determined.launch.torch_distributed python3 predict.py"


def write_questions(path: Path) -> None:
    """Short ones, the last part a short one too; some have no answer."""
    rows: list[dict[str, Any]] = []
    for n in range((PARTS - 1) * CHUNK + 100):
        answers = {"text": [f"ship {n}"], "answer_start": [4]} if n % 3 else {"text": []}
        context = f"The ship {n} carried {n % 7} tons of tar."
        row = {"id": str(n), "question": f"What carried {n % 5} tons?", "context": context}
        rows.append({**row, "answers": {"answer_start": [], **answers}})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_slots_cut_and_gone_on_write_what_one_process_writes(trial, tmp_path):
    """Two slots, for an odd number of parts."""
    questions, model = tmp_path / "questions.jsonl", write_model(tmp_path / "model")
    write_questions(questions)
    arguments = ["--model", str(model), "--data", str(questions), "--threads", "1"]
    assert predict.main([*arguments, "--output-dir", str(tmp_path / "alone")]) == 0
    job, storage = experiment("predict.yaml"), trial.config["checkpoint_storage"]
    trial.config = {**job, "checkpoint_storage": storage, "hyperparameters": {}}
    trial.config["entrypoint"] = f"{RUN} {' '.join(arguments)}"
    with trial.master(slots=(2,), preempt_at=("progress", 1)) as master:
        trial.run(master)
    name, metadata = master.name, master.metadata
    assert name == "answers: model, questions.jsonl"
    assert metadata["prediction"].pop("threshold") == pytest.approx(0, abs=50)
    assert metadata["prediction"] == {
        "model": str(model),
        "data": str(questions),
        "questions": (PARTS - 1) * CHUNK + 100,
        "threads": 1,
        "raw": False,
    }
    (cut,), (steps,) = master.checkpoints, steps_of(master.checkpoints)
    assert master.acknowledged == 1
    assert 0 < len(list((trial.storage / cut.uuid).glob("part-*.json"))) == steps < PARTS
    with trial.master(slots=(2,)) as master:
        master.name = name  # which a restart finds, and leaves
        done = trial.run(master, checkpoint=cut.uuid, steps=steps)
    assert f"{steps} of {PARTS} parts are answered already\n" in done.stderr
    said = [line.removeprefix("[rank=0] ") for line in done.stderr.splitlines()]
    asked = f"answering {(PARTS - 1) * CHUNK + 100:,} questions in {PARTS} parts on 2 slot(s)"
    assert f"INFO: loading the model {model} and the questions of {questions}" in said
    assert f"INFO: {asked}" in said and "INFO: best threshold  " in "\n".join(said)
    assert (master.states[0], master.states[-1]) == ("loading", "done")
    assert steps_of(master.checkpoints) == [PARTS, PARTS + 1] and master.acknowledged == 0
    assert master.name == name
    newest = master.checkpoints[-1]
    for file in (tmp_path / "alone").glob("*.*s*"):  # of JSON and CSV
        assert (trial.storage / newest.uuid / file.name).read_bytes() == file.read_bytes()
    (validation,) = master.reports("validation")
    assert validation["steps"] == PARTS + 1 and master.progress[-1] == 1.0
    assert validation["metrics"] == json.loads((tmp_path / "alone" / "metrics.json").read_text())
    assert f"det checkpoint download {newest.uuid}" in done.stderr


def test_a_restart_answers_the_same_questions_and_what_is_left_of_them(tmp_path):
    asked: dict[str, Any] = {"model": "uuid", "questions": "digest", "total": 3 * CHUNK}
    asked, stored = {**asked, "threshold": 0.0, "chunk": CHUNK}, tmp_path / "storage" / "one"
    stored.mkdir(parents=True)
    (stored / "asked.json").write_text(json.dumps(asked))
    (stored / "part-000001.json").write_text("{}")
    write_manifest(stored, {"parts": 1})

    def job(**change: Any) -> _Job:
        own = tmp_path / uuid.uuid4().hex
        own.mkdir()
        return _Job(context, asked | change, "questions.json", own)

    with core.init(checkpoint_storage=str(tmp_path / "storage")) as context:
        again = job()
        assert again.restore("one") and again.remaining == [0, 2]
        assert [path.name for path in again.own.iterdir()] == ["part-000001.json"]
        for change in ({"questions": "other"}, {"model": "other"}, {"threshold": 1.0}):
            with pytest.raises(UserError, match=f"{next(iter(change))}: the answers so far are"):
                job(**change).restore("one")
        (stored / "part-000001.json").write_text("[]")
        with pytest.raises(UserError, match="part-000001.json is not as it was written"):
            job().restore("one")
        (stored / "predictions.json").write_text("{}")
        assert not job().restore("one")

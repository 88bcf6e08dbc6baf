"""A file of questions answered by the slots of a trial, which is cut and starts over."""

import json

import predict
from benchmarks.end_to_end import write_model
from detalbert.engine.rows import CHUNK
from detalbert.inference.predict_file import UNCALIBRATED_LINE
from tests.cluster.planted import experiment

PARTS = 5
QUESTIONS = (PARTS - 1) * CHUNK + 100
RUN = "python3 -m determined.launch.torch_distributed python3 predict.py"


def write_questions(path):
    """Write short ones, the last part a short one too; some have no answer."""
    lines = []
    for number in range(QUESTIONS):
        answers = {"text": [], "answer_start": []}
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


def test_slots_cut_and_started_over_write_what_one_process_writes(trial, tmp_path):
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

    # Preempted after the first report of progress: nothing is left that could be taken for answers.
    with trial.master(slots=(2,), preempt_at=("progress", 1)) as master:
        trial.run(master)
    name = master.name
    assert name == "answers: model, questions.jsonl"
    prediction = master.metadata["prediction"]
    assert prediction["model"] == str(model)
    assert prediction["data"] == str(questions)
    assert prediction["questions"] == QUESTIONS
    assert master.checkpoints == []
    assert master.acknowledged == 1

    # It starts over.
    with trial.master(slots=(2,)) as master:
        master.name = name  # which a restart finds, and leaves
        done = trial.run(master)
    lines = [line.removeprefix("[rank=0] ") for line in done.stderr.splitlines()]
    assert f"INFO: questions: {QUESTIONS}, slots: 2" in lines
    assert any("INFO: best threshold, fitted to these  " in line for line in lines)
    assert f"INFO: {UNCALIBRATED_LINE}" in lines
    assert master.progress[-1] == 1.0
    assert master.acknowledged == 0
    assert master.name == name
    (newest,) = master.checkpoints
    for file in alone.glob("*.*s*"):  # of JSON and CSV
        assert (trial.storage / newest.uuid / file.name).read_bytes() == file.read_bytes()
    (validation,) = master.reports("validation")
    assert validation["steps"] == QUESTIONS
    scores = json.loads((alone / "metrics.json").read_text())
    assert scores.pop("language") == "en"  # a report has numbers alone
    assert validation["metrics"] == scores
    assert f"det checkpoint download {newest.uuid}" in done.stderr

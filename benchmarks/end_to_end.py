"""`finetune` and `predict`: from file to file, each side a process; the baseline is qa.py.

`finetune` is one epoch of train.py, from questions to answers; `predict` is predict.py, whose
answers must be the baseline's. Both include the start of a process: take enough questions.
"""

import json
import shutil
import tempfile
from argparse import Namespace
from pathlib import Path

import torch
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

from benchmarks.measure import Result, compare, experiment, race, run_python
from detalbert.errors import Different
from detalbert.settings.values import Config


def finetune(options: Namespace) -> Result:
    """Measure questions per second of both sides. Their answers are not compared: each side draws
    its own order of windows, and its own head.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = write_experiment(options, folder, model=options.model, train=options.examples)
        ours = ["train.py", "--config", str(config)]
        return race_processes(ours, config, options)


def predict(options: Namespace) -> Result:
    """Measure questions per second of both sides. Raises Different if they give other answers."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = str(write_model(folder / "model", source=options.model))
        config = write_experiment(options, folder, model=model, train=0)
        ours = ["predict.py", "--model", model, "--data", file_of(options, "dev.json")]
        result = race_processes(ours, config, options)
        if read_answers(folder / "ours") != read_answers(folder / "baseline"):
            raise Different("the answers", key="predict")
    return result


def write_experiment(options: Namespace, folder: Path, model: str, train: int) -> Path:
    """Return the file of the config of both sides, which train on `train` questions."""
    config: Config = experiment("finetune")
    config["hyperparameters"]["model"] = model
    config["data"] = {
        "train": file_of(options, "train.json"),
        "validation": file_of(options, "dev.json"),
        "max_train_examples": train,
        "max_validation_examples": options.examples if train else None,
        "cache_dir": str(folder / "ours" / "cache"),  # of one run
    }
    file = folder / "config.yaml"
    file.write_text(json.dumps(config))  # JSON is YAML
    return file


def race_processes(ours: list[str], config: Path, options: Namespace) -> Result:
    """Measure Python with the command of each side, each time with a new folder of its name beside
    `config`.
    """
    commands = {
        "ours": ours,
        "baseline": ["-m", "benchmarks.qa", str(config)],
    }

    def run(side: str) -> None:
        # A new folder, as train.py would resume in one that is there.
        output = config.with_name(side)
        shutil.rmtree(output, ignore_errors=True)
        run_python(*commands[side], "--output-dir", str(output))

    seconds = race(run, options.repeats)
    # A side answers all questions and, when it is fine-tuned, trains on some before.
    questions = len(read_answers(config.with_name("ours")))
    if options.stage == "finetune":
        questions += options.examples
    result = compare(
        seconds,
        unit="questions",
        amounts=[questions] * options.repeats,
    )
    result["settings"] = {
        "model": Path(options.model).name,
        "questions": questions,
    }
    return result


def read_answers(folder: Path) -> dict[str, str]:
    """Return the answers that a side has written, by question id."""
    return json.loads((folder / "predictions.json").read_text())


def file_of(options: Namespace, name: str) -> str:
    """Return the file of a split in `--data`; without it, the name of the embedded questions."""
    if options.data is None:
        return "generated"
    return str(options.data / name)


def write_model(folder: Path, source: str = "embedded/albert-tiny") -> Path:
    """Write the model of `source` with a span head, drawn at random if it has none."""
    # The head of both sides is drawn once, so that their answers can be equal.
    torch.manual_seed(0)
    model = AutoModelForQuestionAnswering.from_pretrained(source, dtype=torch.float32)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source).save_pretrained(folder)
    return folder

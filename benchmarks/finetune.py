"""Fine-tuning end to end: `train.py` beside the library's example, both from files to scores.

    python -m benchmarks finetune --model FOLDER        # a real small model; half an hour

Each turn starts a process for either side on the same questions: windows, training, validation, the
answers and the model on disk. Same weights, batches as large, steps as many, AdamW, fp32 (bf16 on a
GPU); the order of the windows and the dropout masks are each side's own, so the scores are shown
and not compared.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml

from benchmarks.measure import ROOT, Different, Options, interleave, rates, ratio_of
from benchmarks.step import SEARCHER
from detalbert.errors import UserError
from detalbert.squad.question_stream import read_questions

TRAIN = 600  # questions, without --examples; half as many to validate
BATCH, RATE, EPOCHS, WARMUP = 12, 3e-5, 1, 0.1


def run(command: list[str], folder: Path) -> None:
    """Raises Different, with the end of what it said, for a process that fails."""
    shutil.rmtree(folder, ignore_errors=True)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise Different(f"{' '.join(command[1:3])}: status {done.returncode}: {done.stderr[-500:]}")


def spread(source: Path, count: int, target: Path) -> None:
    """`count` questions from all over a file, as SQuAD JSON: the first ones share few texts."""
    examples = list(read_questions(source))
    paragraphs = [
        {
            "context": example.context,
            "qas": [
                {
                    "id": example.id,
                    "question": example.question,
                    "answers": [{"text": t, "answer_start": at} for t, at in example.answers],
                    "is_impossible": not example.answers,
                }
            ],
        }
        for example in examples[:: max(1, len(examples) // count)][:count]
    ]
    target.write_text(json.dumps({"data": [{"title": "some", "paragraphs": paragraphs}]}))


def config_of(model: Path, data: Path, cache: Path) -> dict[str, Any]:
    """The experiment config of our side."""
    return {
        "name": "finetune",
        "entrypoint": "python3 train.py",
        "hyperparameters": {
            "model": str(model),
            "global_batch_size": BATCH,
            "base_batch_size": BATCH,
            "base_learning_rate": RATE,
            "epochs": EPOCHS,
            "warmup_fraction": WARMUP,
            "optimizer": "adamw",
            "precision": "bf16" if torch.cuda.is_available() else "fp32",
        },
        "data": {
            "train": str(data / "train.json"),
            "validation": str(data / "dev.json"),
            "cache_dir": str(cache),
        },
        "searcher": SEARCHER,
        "resources": {"slots_per_trial": 1},
    }


def command_of_peer(model: Path, data: Path, output: Path) -> list[str]:
    """What fine-tunes on the other side, with the same settings."""
    settings = {
        "model": model,
        "train": data / "train.json",
        "validation": data / "dev.json",
        "output": output,
        "batch": BATCH,
        "rate": RATE,
        "epochs": EPOCHS,
        "warmup": WARMUP,
    }
    flags = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    return [sys.executable, "-m", "benchmarks.run_qa", *flags]


def finetune(options: Options) -> dict[str, Any]:
    """Questions a second of both sides, from the first file to the last, and their scores."""
    model = options.model or ROOT / "embedded" / "albert-tiny"
    if not (model / "config.json").is_file():
        raise UserError(f"--model {model}: no config.json in it; give a model's folder")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        counts = {"train": options.examples or TRAIN, "dev": (options.examples or TRAIN) // 2}
        for file, count in counts.items():
            spread(options.data / f"{file}.json", count, folder / f"{file}.json")
        out = {side: folder / side for side in ("ours", "peer")}
        config, cache = folder / "config.yaml", folder / "cache"
        config.write_text(yaml.safe_dump(config_of(model, folder, cache)))
        ours = [sys.executable, "train.py", "--config", str(config)]
        ours += ["--output-dir", str(out["ours"])]

        def train_ours() -> None:
            shutil.rmtree(cache, ignore_errors=True)  # the peer makes its windows each time, too
            run(ours, out["ours"])

        peer = partial(run, command_of_peer(model, folder, out["peer"]), out["peer"])
        seconds = interleave({"ours": train_ours, "peer": peer}, options.repeats, warm_up=0)
        scores = {side: json.loads((out[side] / "metrics.json").read_text()) for side in out}
    results = rates(seconds, questions=sum(counts.values()))
    for side, found in (("ours", scores["ours"]["best"]), ("peer", scores["peer"])):
        results[side] |= {key: found[key] for key in ("exact", "f1")}
    settings = {"model": model.name, **counts, "batch": BATCH, "epochs": EPOCHS}
    ratio = {"questions_per_second": ratio_of(results, "questions_per_second")}
    return {"results": results, "ratio": ratio, "settings": settings}

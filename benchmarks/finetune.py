"""Fine-tuning end to end: `train.py` beside the library's example, both from files to scores.

    python -m benchmarks finetune --model FOLDER        # a real small model; half an hour

Each turn starts a process for either side on the same questions: windows, training, validation, the
answers and the model on disk. Same weights, batches as large, steps as many, AdamW, fp32; the order
of the windows and the dropout masks are each side's own, so the scores are shown and not compared.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from benchmarks.measure import ROOT, Different, Options, interleave, rates, ratio_of
from benchmarks.step import SEARCHER
from detalbert.errors import UserError

TRAIN, VALIDATION = 600, 300  # questions, without --examples
BATCH, RATE, EPOCHS, WARMUP = 12, 3e-5, 1, 0.1


def run(command: list[str], folder: Path) -> None:
    """Raises Different, with the end of what it said, for a process that fails."""
    shutil.rmtree(folder, ignore_errors=True)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise Different(f"{' '.join(command[1:3])}: status {done.returncode}: {done.stderr[-500:]}")


def config_of(model: Path, data: Path, examples: tuple[int, int], cache: Path) -> dict[str, Any]:
    """The experiment config of our side."""
    return {
        "name": "finetune",
        "hyperparameters": {
            "model": str(model),
            "global_batch_size": BATCH,
            "base_batch_size": BATCH,
            "base_learning_rate": RATE,
            "epochs": EPOCHS,
            "warmup_fraction": WARMUP,
            "optimizer": "adamw",
            "precision": "fp32",
        },
        "data": {
            "train": str(data / "train.json"),
            "validation": str(data / "dev.json"),
            "max_train_examples": examples[0],
            "max_validation_examples": examples[1],
            "cache_dir": str(cache),
        },
        "searcher": SEARCHER,
        "entrypoint": "python3 train.py",
        "resources": {"slots_per_trial": 1},
    }


def finetune(options: Options) -> dict[str, Any]:
    """Questions a second of both sides, from the first file to the last, and their scores."""
    examples = (options.examples or TRAIN, (options.examples or 2 * VALIDATION) // 2)
    model = options.model or ROOT / "embedded" / "albert-tiny"
    if not (model / "config.json").is_file():
        raise UserError(f"--model {model}: no config.json in it; give a model's folder")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config, cache = folder / "config.yaml", folder / "cache"
        config.write_text(yaml.safe_dump(config_of(model, options.data, examples, cache)))
        out = {side: folder / side for side in ("ours", "peer")}
        ours = [
            sys.executable,
            "train.py",
            "--config",
            str(config),
            "--output-dir",
            str(out["ours"]),
        ]
        theirs = [sys.executable, "-m", "benchmarks.run_qa", "--model", str(model)]
        theirs += ["--train", str(options.data / "train.json")]
        theirs += ["--validation", str(options.data / "dev.json"), "--output", str(out["peer"])]
        theirs += ["--examples", *map(str, examples), "--batch", str(BATCH), "--rate", str(RATE)]
        theirs += ["--epochs", str(EPOCHS), "--warmup", str(WARMUP)]

        def train_ours() -> None:
            shutil.rmtree(cache, ignore_errors=True)  # the peer makes its windows each time, too
            run(ours, out["ours"])

        sides = {"ours": train_ours, "peer": partial(run, theirs, out["peer"])}
        seconds = interleave(sides, options.repeats, warm_up=0)
        best = json.loads((out["ours"] / "metrics.json").read_text())["best"]
        scores = {
            "ours": best["metrics"],
            "peer": json.loads((out["peer"] / "metrics.json").read_text()),
        }
    results = rates(seconds, questions=sum(examples))
    for side, found in scores.items():
        results[side] |= {key: found[key] for key in ("exact", "f1")}
    return {
        "results": results,
        "ratio": {"questions_per_second": ratio_of(results, "questions_per_second")},
        "settings": {"model": model.name, "train": examples[0], "validation": examples[1],
                     "batch": BATCH, "epochs": EPOCHS},
    }  # fmt: skip

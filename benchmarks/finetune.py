"""Fine-tuning end to end: `train.py` beside what run_qa.py does, both from files to scores.

    python -m benchmarks finetune --model FOLDER        # a real small model; half an hour

Each turn starts a process for either side on the same questions: windows, training, validation,
answers and the model on disk. Same weights, batch size, steps and optimizer, fp32 (bf16 on a GPU);
order and dropout masks are each side's own, so the scores are shown and not compared.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import yaml

from benchmarks.measure import ROOT, SEARCHER, Different, Options, interleave, rates, ratio_of
from detalbert.errors import UserError

TRAIN = 600  # questions, without --examples; half as many to validate
BATCH, RATE, EPOCHS, WARMUP = 12, 3e-5, 1, 0.1


def run(*command: str) -> None:
    """Run Python with these words; Different, with the end of its output, if it fails."""
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise Different(f"{' '.join(command[:2])}: status {done.returncode}: {done.stderr[-500:]}")


def write_settings(model: Path, data: Path, counts: dict[str, int], folder: Path) -> None:
    """Write ours.yaml and peer.json into `folder`, and the first questions of both files."""
    files = {}
    for name, count in counts.items():
        articles, kept = json.loads((data / f"{name}.json").read_text())["data"], list[Any]()
        for paragraph in (p for article in articles for p in article["paragraphs"]):
            left = count - sum(len(p["qas"]) for p in kept)
            kept.append({**paragraph, "qas": paragraph["qas"][:left]})
        files[name] = folder / f"{name}.json"
        files[name].write_text(json.dumps({"data": [{"title": "some", "paragraphs": kept}]}))
    splits = {"train": str(files["train"]), "validation": str(files["dev"])}
    hyperparameters = {
        "model": str(model),
        "global_batch_size": BATCH,
        "base_batch_size": BATCH,
        "base_learning_rate": RATE,
        "epochs": EPOCHS,
        "warmup_fraction": WARMUP,
        "optimizer": "adamw",
        "precision": "bf16" if torch.cuda.is_available() else "fp32",
    }
    sections = {"data": splits | {"cache_dir": str(folder / "cache")}, "searcher": SEARCHER}
    ours = {"name": "finetune", "entrypoint": "python3 train.py", **sections}
    ours |= {"hyperparameters": hyperparameters, "resources": {"slots_per_trial": 1}}
    (folder / "ours.yaml").write_text(yaml.safe_dump(ours))
    peer = {"model": str(model), **splits, "output": str(folder / "peer"), "batch": BATCH}
    peer |= {"rate": RATE, "epochs": EPOCHS, "warmup": WARMUP}
    (folder / "peer.json").write_text(json.dumps(peer))


def finetune(options: Options) -> dict[str, Any]:
    """Questions per second of both sides, from the first file to the last, and their scores."""
    model = options.model or ROOT / "embedded" / "albert-tiny"
    if not (model / "config.json").is_file():
        raise UserError(f"--model {model}: no config.json in it; give a model's folder")
    counts = {"train": options.examples or TRAIN, "dev": (options.examples or TRAIN) // 2}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_settings(model, options.data, counts, folder)

        def ours() -> None:
            for old in ("cache", "ours"):  # the other side makes its windows each time, too
                shutil.rmtree(folder / old, ignore_errors=True)
            config = ["--config", str(folder / "ours.yaml")]
            run("train.py", *config, "--output-dir", str(folder / "ours"))

        def peer() -> None:
            run("-m", "benchmarks.run_qa", str(folder / "peer.json"))

        seconds = interleave({"ours": ours, "peer": peer}, options.repeats, warm_up=0)
        found = {x: json.loads((folder / x / "metrics.json").read_text()) for x in seconds}
    results = rates(seconds, questions=sum(counts.values()))
    for side, scores in (("ours", found["ours"]["best"]), ("peer", found["peer"])):
        results[side] |= {key: scores[key] for key in ("exact", "f1")}
    settings = {"model": model.name, **counts, "batch": BATCH, "epochs": EPOCHS}
    ratio = ratio_of(results, "questions_per_second")
    return {"results": results, "ratio": ratio, "settings": settings}

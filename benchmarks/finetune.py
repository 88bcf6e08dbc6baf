"""Fine-tuning from files to scores: `train.py` compared with the equivalent of run_qa.py.

python -m benchmarks finetune --model FOLDER        # a real small model; half an hour

Same weights, batches, steps and optimizer, fp32 (bf16 on a GPU); one process per side and run.
"""

import json
import shutil
import tempfile
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
import yaml

from benchmarks.measure import SEARCHER, compare, interleave, run_python
from detalbert.errors import UserError

TRAIN = 600  # questions, without --examples; half as many to validate


def config_of(options: Namespace, train: int, folder: Path) -> dict[str, Any]:
    """Return the experiment that both sides read."""
    hyperparameters = {"model": str(options.model), "optimizer": "adamw", "epochs": 1}
    hyperparameters |= {"global_batch_size": 12, "base_batch_size": 12}
    hyperparameters |= {"base_learning_rate": 3e-5, "warmup_fraction": 0.1}
    hyperparameters["precision"] = "bf16" if torch.cuda.is_available() else "fp32"
    data: dict[str, Any] = {"cache_dir": str(folder / "cache")}
    for split, name, count in (("train", "train", train), ("validation", "dev", train // 2)):
        data[split] = str(options.data / f"{name}.json")
        data[f"max_{split}_examples"] = count
    config = {"name": "finetune", "entrypoint": "python3 train.py", "searcher": SEARCHER}
    config |= {"data": data, "resources": {"slots_per_trial": 1}}
    return {**config, "hyperparameters": hyperparameters}


def finetune(options: Namespace) -> dict[str, Any]:
    """Measure questions per second of both sides, from first file to last, and their scores."""
    if not (options.model / "config.json").is_file():
        raise UserError(f"--model {options.model}: no config.json in it; give a model's folder")
    train = options.examples or TRAIN
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config, file = config_of(options, train, folder), folder / "config.yaml"
        file.write_text(yaml.safe_dump(config))

        def ours() -> None:
            for old in ("cache", "ours"):  # the other side makes its windows each time, too
                shutil.rmtree(folder / old, ignore_errors=True)
            run_python("train.py", "--config", str(file), "--output-dir", str(folder / "ours"))

        def peer() -> None:
            run_python("-m", "benchmarks.run_qa", str(file), str(folder / "peer"))

        seconds = interleave({"ours": ours, "peer": peer}, options.repeats, warm_up=0)
        found = {x: json.loads((folder / x / "metrics.json").read_text()) for x in seconds}
    result = compare(seconds, "questions", train + train // 2)
    for side, scores in (("ours", found["ours"]["best"]), ("peer", found["peer"])):
        result["results"][side] |= {key: scores[key] for key in ("exact", "f1")}
    settings = {"model": options.model.name, "train": train, "dev": train // 2}
    return {**result, "settings": {**settings, "batch": 12, "epochs": 1}}

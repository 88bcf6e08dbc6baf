"""Fine-tuning from files to scores: `train.py` compared with the steps of transformers' run_qa.py.

python -m benchmarks finetune --model FOLDER        # a real small model; half an hour

Same weights, batches, steps and optimizer, fp32 (bf16 on a GPU); one process per side and run. The
baseline pads windows to max_seq_length; windows, answers and scores are computed by this package,
which is faster than the example.
"""

import json
import shutil
import sys
import tempfile
from argparse import Namespace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from benchmarks.measure import compare, context_of, experiment, interleave, run_python
from benchmarks.step import Padded
from detalbert.errors import UserError
from model_def import SquadTrial
from squad_utils import Candidates, Windows, best_spans, merge_answers, score

TRAIN = 600  # questions, without --examples; half as many to validate


def config_of(options: Namespace, train: int, folder: Path) -> dict[str, Any]:
    """Return the experiment that both sides read."""
    precision = "bf16" if torch.cuda.is_available() else "fp32"
    config = experiment("finetune", model=str(options.model), precision=precision)
    config["data"]["cache_dir"] = str(folder / "cache")
    for split, name, count in (("train", "train", train), ("validation", "dev", train // 2)):
        config["data"][split] = str(options.data / f"{name}.json")
        config["data"][f"max_{split}_examples"] = count
    return config


def finetune(options: Namespace) -> dict[str, Any]:
    """Measure questions per second of both sides, from first file to last, and their scores."""
    if not (options.model / "config.json").is_file():
        raise UserError(f"--model {options.model}: no config.json in it; give a model's folder")
    train = options.examples or TRAIN
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config, file = config_of(options, train, folder), folder / "config.yaml"
        file.write_text(yaml.safe_dump(config))

        def run(side: str, *words: str) -> None:
            for old in ("cache", side):  # each side makes its windows each time
                shutil.rmtree(folder / old, ignore_errors=True)
            run_python(*words, str(folder / side))

        sides = {
            "ours": lambda: run("ours", "train.py", "--config", str(file), "--output-dir"),
            "peer": lambda: run("peer", "-m", "benchmarks.finetune", str(file)),
        }
        seconds = interleave(sides, options.repeats)
        found = {x: json.loads((folder / x / "metrics.json").read_text()) for x in seconds}
    result = compare(seconds, "questions", train + train // 2)
    for side, scores in (("ours", found["ours"]["best"]), ("peer", found["peer"])):
        result["results"][side] |= {key: scores[key] for key in ("exact", "f1")}
    settings = {"model": options.model.name, "train": train, "dev": train // 2}
    return {**result, "settings": {**settings, "batch": 12, "epochs": 1}}


@torch.no_grad()
def evaluate(peer: Padded, windows: Windows, batch: int) -> list[Candidates]:
    """Return the span candidates of padded batches of windows."""
    peer.model.eval()
    candidates = []
    for chosen in np.array_split(np.arange(len(windows)), -(-len(windows) // batch)):
        row = {name: torch.from_numpy(x) for name, x in windows.pack(chosen).items()}
        micro = peer.padded(row)
        output, real = peer.output(micro), micro["attention_mask"].bool()
        start, end = (x.float().cpu()[real] for x in (output.start_logits, output.end_logits))
        candidates.append(best_spans(start, end, row, n_best_size=20, max_answer_length=30))
    return candidates


def run_qa(config: dict[str, Any], output: Path) -> None:
    """Run the baseline: train, answer, score, and save the model."""
    with context_of(config, output) as context:
        trial = SquadTrial(context)
        peer, held = Padded(trial), trial.data.validation
        for rows in islice(trial.build_training_data_loader(), trial.steps):
            peer.step(peer.batch(rows))
        spans = evaluate(peer, held.windows, trial.hparams.global_batch_size)
        answers = merge_answers(held.examples, held.windows, spans)
        peer.model.save_pretrained(output)
        (output / "predictions.json").write_text(json.dumps(answers.predictions))
        scores = score(held.examples, answers.predictions, answers.null_odds)
        (output / "metrics.json").write_text(json.dumps({k: scores[k] for k in ("exact", "f1")}))


if __name__ == "__main__":
    run_qa(yaml.safe_load(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))

"""Fine-tuning from files to scores: `train.py` compared with the steps of transformers' run_qa.py.

python -m benchmarks finetune --model FOLDER        # a real small model; half an hour

Same weights, batches, steps and optimizer, fp32 (bf16 on a GPU); one process per side and run. The
baseline pads windows to max_seq_length and shuffles them; windows, answers and scores are computed
by this package, which is faster than the example.
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
import transformers
import yaml

from benchmarks.measure import compare, device, experiment, interleave, pad, run_python
from detalbert.errors import UserError
from detalbert.squad.sources import read_questions
from squad_utils import Windows, best_spans, build_windows, merge_answers, score

TRAIN = 600  # questions, without --examples; half as many to validate
LENGTH = 384
ENDS = ("start_positions", "end_positions")


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


def forward(model: Any, windows: Windows, chosen: np.ndarray, labels: bool) -> Any:
    """Return the output of the chosen windows, their packed row and their attention mask (bool)."""
    row = {name: torch.from_numpy(x) for name, x in windows.pack(chosen).items()}
    fills = {"input_ids": model.config.pad_token_id or 0, "token_type_ids": 0}
    inputs = pad(row, LENGTH, **{name: (row[name], fill) for name, fill in fills.items()})
    real = inputs["attention_mask"].bool()
    inputs |= {name: row[name] for name in ENDS if labels}
    inputs = {name: values.to(device()) for name, values in inputs.items()}
    with torch.autocast(device().type, torch.bfloat16, enabled=device().type == "cuda"):
        return model(**inputs), row, real


def train_baseline(model: Any, windows: Windows, hyperparameters: dict[str, Any]) -> None:
    """Train by AdamW with a linear schedule and clipping."""
    count, batch = len(windows), hyperparameters["global_batch_size"]
    steps = -(-count // batch) * hyperparameters["epochs"]
    rate, warmup = (hyperparameters[x] for x in ("base_learning_rate", "warmup_fraction"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, int(warmup * steps), steps)
    model.train()
    for _ in range(hyperparameters["epochs"]):
        for chosen in torch.randperm(count).split(batch):
            forward(model, windows, chosen.numpy(), labels=True)[0].loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()


@torch.no_grad()
def evaluate_baseline(model: Any, windows: Windows, examples: Any, batch: int) -> Any:
    """Return the answers of all validation questions."""
    model.eval()
    candidates = []
    for chosen in np.array_split(np.arange(len(windows)), -(-len(windows) // batch)):
        output, row, real = forward(model, windows, chosen, labels=False)
        start, end = (x.float().cpu()[real] for x in (output.start_logits, output.end_logits))
        candidates.append(best_spans(start, end, row, n_best_size=20, max_answer_length=30))
    return merge_answers(examples, windows, candidates)


def run_qa(config: dict[str, Any], output: Path) -> None:
    """Run the baseline: train, answer, score, and save the model."""
    data, hyperparameters = config["data"], config["hyperparameters"]
    torch.manual_seed(42)
    tokenizer = transformers.AutoTokenizer.from_pretrained(hyperparameters["model"])
    kind: Any = transformers.AutoModelForQuestionAnswering
    model = kind.from_pretrained(hyperparameters["model"]).to(device())
    trained, held = (
        list(islice(read_questions(Path(data[split])), data[f"max_{split}_examples"]))
        for split in ("train", "validation")
    )
    train_baseline(model, build_windows(trained, tokenizer), hyperparameters)
    windows, batch = build_windows(held, tokenizer), hyperparameters["global_batch_size"]
    answers = evaluate_baseline(model, windows, held, batch)
    model.save_pretrained(output)
    (output / "predictions.json").write_text(json.dumps(answers.predictions))
    scores = score(held, answers.predictions, answers.null_odds)
    (output / "metrics.json").write_text(json.dumps({k: scores[k] for k in ("exact", "f1")}))


if __name__ == "__main__":
    run_qa(yaml.safe_load(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))

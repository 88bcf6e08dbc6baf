"""Fine-tuning from files to scores: `train.py` compared with the steps of transformers' run_qa.py.

python -m benchmarks finetune --model FOLDER        # a real small model; half an hour

Same weights, batches, steps and optimizer, fp32 (bf16 on a GPU); one process per side and run. The
baseline pads windows to max_seq_length and shuffles them; windows, answers and scores are computed
by this package, which is faster than the example.
"""

import json
import math
import shutil
import sys
import tempfile
from argparse import Namespace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import transformers
import yaml
from transformers import PreTrainedModel
from transformers.modeling_outputs import QuestionAnsweringModelOutput

from benchmarks.measure import (
    Config,
    Result,
    compare,
    device,
    experiment,
    interleave,
    pad,
    run_python,
)
from detalbert.errors import UserError
from detalbert.squad.questions import read_questions
from squad_utils import (
    Answers,
    Example,
    Windows,
    best_spans,
    build_windows,
    merge_answers,
    score,
)

# Questions, without --examples; half as many to validate.
TRAIN = 600
# Tokens of a padded window.
LENGTH = 384
ENDS = ("start_positions", "end_positions")


def finetune(options: Namespace) -> Result:
    """Measure questions per second of both sides, from first file to last, and their scores."""
    if not (options.model / "config.json").is_file():
        raise UserError(
            "no config.json in it", key=f"--model {options.model}", cure="give a model's folder"
        )
    train = options.examples or TRAIN
    dev = train // 2
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config_file = folder / "config.yaml"
        config_file.write_text(yaml.safe_dump(make_config(options, train, dev, folder)))
        seconds, metrics = run_both(config_file, folder, repeats=options.repeats)
    result = compare(seconds, unit="questions", amount=train + dev)
    scores = {"ours": metrics["ours"]["best"], "peer": metrics["peer"]}
    for side, side_scores in scores.items():
        for key in ("exact", "f1"):
            result["results"][side][key] = side_scores[key]
    result["settings"] = {
        "model": options.model.name,
        "train": train,
        "dev": dev,
        "batch": 12,
        "epochs": 1,
    }
    return result


def make_config(options: Namespace, train: int, dev: int, folder: Path) -> Config:
    """Return the experiment that both sides read; `train` and `dev` are numbers of questions."""
    config = experiment(
        "finetune",
        model=str(options.model),
        precision="bf16" if torch.cuda.is_available() else "fp32",
    )
    config["data"] |= {
        "cache_dir": str(folder / "cache"),
        "train": str(options.data / "train.json"),
        "max_train_examples": train,
        "validation": str(options.data / "dev.json"),
        "max_validation_examples": dev,
    }
    return config


def run_both(
    config_file: Path, folder: Path, repeats: int
) -> tuple[dict[str, list[float]], dict[str, Result]]:
    """Run both sides in turn; return by side the seconds of each run, and the last one's metrics.

    Each side makes its windows anew each time.
    """
    ours = ["train.py", "--config", str(config_file), "--output-dir"]
    baseline = ["-m", "benchmarks.finetune", str(config_file)]

    def run(side: str, command: list[str]) -> None:
        # Nothing of an earlier run is used again.
        for old in ("cache", side):
            shutil.rmtree(folder / old, ignore_errors=True)
        run_python(*command, str(folder / side))

    sides = {"ours": partial(run, "ours", ours), "peer": partial(run, "peer", baseline)}
    seconds = interleave(sides, repeats=repeats)
    metrics = {}
    for side in sides:
        metrics[side] = json.loads((folder / side / "metrics.json").read_text())
    return seconds, metrics


class PaddedBatch(NamedTuple):
    """Some windows, packed and padded."""

    row: dict[str, torch.Tensor]  # packed, on the CPU
    inputs: dict[str, torch.Tensor]  # of the model, [windows, LENGTH], on the device
    is_real: torch.Tensor  # bool [windows, LENGTH]: no padding


def make_batch(windows: Windows, chosen: np.ndarray, pad_id: int, labels: bool) -> PaddedBatch:
    """Return the windows whose numbers are `chosen`, with `labels` for training."""
    # A packed row has the labels of its windows, and the places that decoding reads.
    row = {name: torch.from_numpy(column) for name, column in windows.pack(chosen).items()}
    inputs = pad(
        row,
        LENGTH,
        input_ids=(row["input_ids"], pad_id),
        token_type_ids=(row["token_type_ids"], 0),
    )
    is_real = inputs["attention_mask"].bool()
    if labels:
        inputs |= {name: row[name] for name in ENDS}
    inputs = {name: values.to(device()) for name, values in inputs.items()}
    return PaddedBatch(row=row, inputs=inputs, is_real=is_real)


def forward(model: PreTrainedModel, batch: PaddedBatch) -> QuestionAnsweringModelOutput:
    """Return the model's output, with its loss if the batch has labels."""
    gpu = device().type == "cuda"
    with torch.autocast(device().type, torch.bfloat16, enabled=gpu):
        return model(**batch.inputs)


def train_baseline(model: PreTrainedModel, windows: Windows, hyperparameters: Config) -> None:
    """Train by AdamW with a linear schedule and clipping."""
    batch_size = hyperparameters["global_batch_size"]
    epochs = hyperparameters["epochs"]
    # The last batch of an epoch may be smaller.
    steps = math.ceil(len(windows) / batch_size) * epochs
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=hyperparameters["base_learning_rate"], weight_decay=0.0
    )
    schedule = transformers.get_linear_schedule_with_warmup(
        optimizer,
        num_warmup_steps=int(hyperparameters["warmup_fraction"] * steps),
        num_training_steps=steps,
    )
    pad_id = model.config.pad_token_id or 0
    model.train()
    for _ in range(epochs):
        for chosen in torch.randperm(len(windows)).split(batch_size):
            batch = make_batch(windows, chosen.numpy(), pad_id=pad_id, labels=True)
            output = forward(model, batch)
            output.loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()


@torch.no_grad()
def evaluate_baseline(
    model: PreTrainedModel, windows: Windows, examples: list[Example], batch_size: int
) -> Answers:
    """Return the answers of all validation questions."""
    model.eval()
    pad_id = model.config.pad_token_id or 0
    candidates = []
    batches = math.ceil(len(windows) / batch_size)
    for chosen in np.array_split(np.arange(len(windows)), batches):
        batch = make_batch(windows, chosen, pad_id=pad_id, labels=False)
        output = forward(model, batch)
        # Without padding, [T]: the decoding is this package's.
        start_logits = output.start_logits.float().cpu()[batch.is_real]
        end_logits = output.end_logits.float().cpu()[batch.is_real]
        spans = best_spans(
            start_logits, end_logits, batch.row, n_best_size=20, max_answer_length=30
        )
        candidates.append(spans)
    return merge_answers(examples, windows, candidates)


def run_qa(config: Config, output: Path) -> None:
    """Run the baseline: train, answer, score, and save the model."""
    hyperparameters = config["hyperparameters"]
    # The span head is drawn, as the model's folder has none.
    torch.manual_seed(42)
    tokenizer = transformers.AutoTokenizer.from_pretrained(hyperparameters["model"])
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(hyperparameters["model"])
    model.to(device())
    train = read_split(config["data"], "train")
    validation = read_split(config["data"], "validation")
    train_baseline(model, build_windows(train, tokenizer), hyperparameters)
    windows = build_windows(validation, tokenizer)
    answers = evaluate_baseline(
        model, windows, validation, batch_size=hyperparameters["global_batch_size"]
    )
    model.save_pretrained(output)
    (output / "predictions.json").write_text(json.dumps(answers.predictions))
    scores = score(validation, answers.predictions, answers.null_odds)
    metrics = {key: scores[key] for key in ("exact", "f1")}
    (output / "metrics.json").write_text(json.dumps(metrics))


def read_split(data: Config, split: str) -> list[Example]:
    """Return the questions of a split, at most as many as the config says."""
    questions = read_questions(Path(data[split]))
    return list(islice(questions, data[f"max_{split}_examples"]))


if __name__ == "__main__":
    run_qa(yaml.safe_load(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))

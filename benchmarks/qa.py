"""Question answering as transformers' example run_qa.py, from file to answers, in a process.

python -m benchmarks.qa CONFIG --output-dir FOLDER

Windows are padded, trained and answered with the library's model and the loop of baseline.py. They
are cut and decoded by this package, which is faster than the example: the rest is compared.
"""

import json
import math
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

from benchmarks.baseline import Baseline, pad
from benchmarks.measure import device, experiment
from detalbert.squad.questions import read_examples
from detalbert.squad.sources import open_source
from squad_utils import Example, Windows, best_spans, build_windows, merge_answers

HYPERPARAMETERS = experiment("finetune")["hyperparameters"]
BATCH = HYPERPARAMETERS["global_batch_size"]  # windows


def read(data: dict[str, Any], split: str) -> list[Example]:
    """Return the questions of a split, at most as many as the config says."""
    source = open_source(data[split], split, cache_dir=Path())
    examples = read_examples(source)
    return list(islice(examples, data[f"max_{split}_examples"]))


def make_rows(windows: Windows, order: np.ndarray) -> Iterator[dict[str, torch.Tensor]]:
    """Yield the windows of each batch end to end, with labels and what decoding reads."""
    for start in range(0, len(order), BATCH):
        columns = windows.pack(order[start : start + BATCH])
        yield {name: torch.from_numpy(column) for name, column in columns.items()}


def train(baseline: Baseline, windows: Windows) -> None:
    """Train one epoch."""
    # An epoch in random order, as a DataLoader with `shuffle=True` has it.
    order = torch.randperm(len(windows)).numpy()
    for row in make_rows(windows, order):
        baseline.step([pad(row)])


@torch.no_grad()
def answer_questions(
    baseline: Baseline, windows: Windows, examples: list[Example]
) -> dict[str, str]:
    """Return the answer of each question by its id."""
    baseline.model.eval()
    order = np.arange(len(windows))
    candidates = []
    for row in make_rows(windows, order):
        batch = pad(row)
        output = baseline.forward(batch)
        # Without the padding, [T], as the row.
        is_real = batch["attention_mask"].bool()
        start_logits = output.start_logits[is_real]
        end_logits = output.end_logits[is_real]
        spans = best_spans(
            start_logits.float().cpu(),
            end_logits.float().cpu(),
            row,
            n_best_size=20,
            max_answer_length=30,
        )
        candidates.append(spans)
    return merge_answers(examples, windows, candidates).predictions


def main(config: dict[str, Any], output: Path) -> None:
    """Train on as many questions as the config says, maybe none, and answer."""
    name = config["hyperparameters"]["model"]
    data = config["data"]
    torch.manual_seed(42)  # of a head that is drawn
    tokenizer = AutoTokenizer.from_pretrained(name)
    model = AutoModelForQuestionAnswering.from_pretrained(name, dtype=torch.float32)
    # Fine-tune; of no questions there are no windows, and no step.
    windows = build_windows(read(data, "train"), tokenizer)
    baseline = Baseline(
        model.to(device()),
        learning_rate=HYPERPARAMETERS["base_learning_rate"],
        steps=math.ceil(len(windows) / BATCH),
        half=torch.cuda.is_available(),
    )
    train(baseline, windows)

    # Answer what is held out.
    examples = read(data, "validation")
    windows = build_windows(examples, tokenizer)
    answers = answer_questions(baseline, windows, examples)
    model.save_pretrained(output)
    (output / "predictions.json").write_text(json.dumps(answers))


if __name__ == "__main__":
    _, file, _, folder = sys.argv
    text = Path(file).read_text()
    main(yaml.safe_load(text), Path(folder))

"""Baseline of `finetune`, run as its own process: the steps of transformers' run_qa.py.

python -m benchmarks.run_qa CONFIG.yaml FOLDER

Windows padded to max_seq_length, shuffled batches, AdamW with a linear schedule and clipping.
Windows, answers and scores are computed by this package, which is faster than the example.
"""

import json
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
import yaml

from benchmarks.measure import device, pad
from detalbert.squad.question_stream import read_questions
from squad_utils import Windows, best_spans, build_windows, merge_answers, score

LENGTH = 384
ENDS = ("start_positions", "end_positions")


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


def train(model: Any, windows: Windows, hyperparameters: dict[str, Any]) -> None:
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
def evaluate(model: Any, windows: Windows, examples: Any, batch: int) -> Any:
    """Return the answers of all validation questions."""
    model.eval()
    candidates = []
    for chosen in np.array_split(np.arange(len(windows)), -(-len(windows) // batch)):
        output, row, real = forward(model, windows, chosen, labels=False)
        start, end = (x.float().cpu()[real] for x in (output.start_logits, output.end_logits))
        candidates.append(best_spans(start, end, row, n_best_size=20, max_answer_length=30))
    return merge_answers(examples, windows, candidates)


def main() -> None:
    config, output = yaml.safe_load(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    data, hyperparameters = config["data"], config["hyperparameters"]
    torch.manual_seed(42)
    tokenizer = transformers.AutoTokenizer.from_pretrained(hyperparameters["model"])
    kind: Any = transformers.AutoModelForQuestionAnswering
    model = kind.from_pretrained(hyperparameters["model"]).to(device())
    trained, held = (
        list(islice(read_questions(Path(data[split])), data[f"max_{split}_examples"]))
        for split in ("train", "validation")
    )
    train(model, build_windows(trained, tokenizer), hyperparameters)
    windows, batch = build_windows(held, tokenizer), hyperparameters["global_batch_size"]
    answers = evaluate(model, windows, held, batch)
    model.save_pretrained(output)
    (output / "predictions.json").write_text(json.dumps(answers.predictions))
    scores = score(held, answers.predictions, answers.null_odds)
    (output / "metrics.json").write_text(json.dumps({k: scores[k] for k in ("exact", "f1")}))


if __name__ == "__main__":
    main()

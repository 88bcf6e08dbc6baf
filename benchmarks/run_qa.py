"""The baseline of `finetune`, in a process of its own: what transformers' run_qa.py does.

    python -m benchmarks.run_qa SETTINGS.json

Windows padded to max_seq_length, shuffled batches, AdamW with a linear schedule and clipping, then
logits of all padded validation windows, answers, scores, and the model saved. Its windows, answers
and scores are made by this package, which is quicker than the example does it. On a GPU in bf16.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    AutoModelForQuestionAnswering,
    AutoTokenizer,
    get_linear_schedule_with_warmup,
)

from benchmarks.measure import device
from detalbert.squad.question_stream import read_questions
from squad_utils import Windows, best_spans, build_windows, merge_answers, score

LENGTH = 384
ENDS = ("start_positions", "end_positions")


def padded(windows: Windows, chosen: np.ndarray, pad: int) -> tuple[dict[str, Any], Any]:
    """The chosen windows as int64 [n, LENGTH] each, and the packed row of them."""
    row = {name: torch.from_numpy(x) for name, x in windows.pack(chosen).items()}
    real = torch.arange(LENGTH) < row["cu_seqlens"].diff()[:, None]
    columns = {"attention_mask": real.long()} | {name: row[name] for name in ENDS}
    for name, fill in (("input_ids", pad), ("token_type_ids", 0)):
        columns[name] = torch.full(real.shape, fill)
        columns[name][real] = row[name]
    return columns, row


def forward(model: Any, columns: dict[str, Any], labels: bool) -> Any:
    inputs = {k: x.to(device()) for k, x in columns.items() if labels or k not in ENDS}
    with torch.autocast(device().type, torch.bfloat16, enabled=device().type == "cuda"):
        return model(**inputs)


def train(model: Any, windows: Windows, pad: int, settings: dict[str, Any]) -> None:
    count, batch = len(windows), settings["batch"]
    steps = -(-count // batch) * settings["epochs"]
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings["rate"], weight_decay=0.0)
    warmup = int(settings["warmup"] * steps)
    schedule = get_linear_schedule_with_warmup(optimizer, warmup, steps)
    model.train()
    for _ in range(settings["epochs"]):
        for chosen in torch.randperm(count).split(batch):
            forward(model, padded(windows, chosen.numpy(), pad)[0], True).loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()


@torch.no_grad()
def evaluate(model: Any, windows: Windows, examples: Any, pad: int, batch: int) -> Any:
    """Answers of all validation questions."""
    model.eval()
    candidates = []
    for chosen in np.array_split(np.arange(len(windows)), -(-len(windows) // batch)):
        columns, row = padded(windows, chosen, pad)
        output, real = forward(model, columns, False), columns["attention_mask"].bool()
        start, end = (x.float().cpu()[real] for x in (output.start_logits, output.end_logits))
        found = best_spans(start, end, row, n_best_size=20, max_answer_length=30)
        candidates.append(found)
    return merge_answers(examples, windows, candidates)


def main() -> None:
    settings = json.loads(Path(sys.argv[1]).read_text())
    torch.manual_seed(42)
    tokenizer = AutoTokenizer.from_pretrained(settings["model"])
    model = AutoModelForQuestionAnswering.from_pretrained(settings["model"]).to(device())
    pad, output = tokenizer.pad_token_id or 0, Path(settings["output"])
    files = {split: Path(settings[split]) for split in ("train", "validation")}
    examples = {split: list(read_questions(file)) for split, file in files.items()}
    windows = {split: build_windows(found, tokenizer) for split, found in examples.items()}
    train(model, windows["train"], pad, settings)
    held = examples["validation"]
    answers = evaluate(model, windows["validation"], held, pad, settings["batch"])
    model.save_pretrained(output)
    (output / "predictions.json").write_text(json.dumps(answers.predictions))
    scores = score(held, answers.predictions, answers.null_odds)
    (output / "metrics.json").write_text(json.dumps({k: scores[k] for k in ("exact", "f1")}))


if __name__ == "__main__":
    main()

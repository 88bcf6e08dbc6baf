"""The peer of `finetune`, in a process of its own: what the library's example does.

    python -m benchmarks.run_qa --model FOLDER --train FILE --validation FILE --output FOLDER ...

As in transformers' question-answering example, run_qa.py: windows padded to max_seq_length,
shuffled batches, AdamW with a linear schedule and clipping, then logits of all padded validation
windows, answers, scores, and the model saved. With torch alone: its Trainer needs one more library.
On a GPU, where there is one: in bf16 then, as with the example's `--bf16`; on a CPU in fp32.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForQuestionAnswering,
    AutoTokenizer,
    get_linear_schedule_with_warmup,
)

from benchmarks import peer
from detalbert.squad.question_stream import read_questions
from detalbert.squad.windows import Example

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
INPUTS = ("input_ids", "token_type_ids", "attention_mask", "start_positions", "end_positions")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("model", "train", "validation", "output"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--warmup", type=float, required=True)
    return parser.parse_args()


def columns_of(examples: list[Example], tokenizer: Any) -> dict[str, list[Any]]:
    """The features of all questions, one list a column."""
    whole: dict[str, list[Any]] = {}
    for batch in peer.features(examples, tokenizer, peer.Limits()):
        for name, column in batch.items():
            whole.setdefault(name, []).extend(column)
    return whole


def loader_of(columns: dict[str, list[Any]], batch: int, shuffle: bool) -> Any:
    tensors = [torch.tensor(columns[name]) for name in INPUTS]
    data = torch.utils.data.TensorDataset(*tensors)
    return torch.utils.data.DataLoader(data, batch, shuffle=shuffle)


def forward(model: Any, names: tuple[str, ...], rows: Any) -> Any:
    inputs = {name: x.to(DEVICE) for name, x in zip(names, rows, strict=False)}
    with torch.autocast(DEVICE.type, torch.bfloat16, enabled=DEVICE.type == "cuda"):
        return model(**inputs)


def train(model: Any, loader: Any, args: argparse.Namespace) -> None:
    steps = len(loader) * args.epochs
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.rate, weight_decay=0.0)
    schedule = get_linear_schedule_with_warmup(optimizer, int(args.warmup * steps), steps)
    model.train()
    for _ in range(args.epochs):
        for batch in loader:
            forward(model, INPUTS, batch).loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()


@torch.no_grad()
def evaluate(
    model: Any, columns: dict[str, list[Any]], examples: list[Example], batch: int
) -> tuple[dict[str, float], dict[str, str]]:
    """Scores and predictions."""
    model.eval()
    loader = loader_of(columns, batch, shuffle=False)
    logits = [forward(model, INPUTS[:3], rows) for rows in loader]
    start, end = (torch.cat([getattr(x, f"{side}_logits") for x in logits]).float().cpu().numpy()
                  for side in ("start", "end"))  # fmt: skip
    features: dict[int, list[int]] = {}
    for number, example in enumerate(columns["example_index"]):
        features.setdefault(example, []).append(number)
    offsets = columns["offset_mapping"]
    predictions, odds, _ = peer.decode(examples, features, offsets, start, end, peer.Limits())
    return peer.score(examples, predictions, odds), predictions


def main() -> None:
    args = parse()
    torch.manual_seed(42)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForQuestionAnswering.from_pretrained(args.model).to(DEVICE)
    sides = [list(read_questions(file)) for file in (args.train, args.validation)]
    train(model, loader_of(columns_of(sides[0], tokenizer), args.batch, shuffle=True), args)
    scores, predictions = evaluate(model, columns_of(sides[1], tokenizer), sides[1], args.batch)
    args.output.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(args.output)
    (args.output / "predictions.json").write_text(json.dumps(predictions))
    facts = {key: scores[key] for key in ("f1", "exact")}
    (args.output / "metrics.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main()

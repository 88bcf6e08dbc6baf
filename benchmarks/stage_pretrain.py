"""Pretraining: token shards beside `datasets.map`, loader workers, steps and their MFU, memory.

python -m benchmarks.stage_pretrain                     # JSON on standard output, some minutes
python -m benchmarks.stage_pretrain --text TEXT.txt --peak-teraflops 989 --size base
"""

import argparse
import json
import os
import platform
import resource
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List, Optional

import numpy as np
import torch
import transformers

from batches import micro_batches, step_loader
from data import named_tokenizer
from embedded import world
from evaluation import to_device
from forward import Forward
from gradients import FlatGradients
from optim import build_optimizer, parameter_groups
from pretrain.corpus import Corpus
from pretrain.examples import ExampleOrder, Examples, _Rows
from pretrain.hparams import parse_pretrain_data, parse_pretrain_hparams
from pretrain.masking import read_vocabulary
from pretrain.objectives import order_losses, read_pretraining, token_losses
from pretrain.sharding import write_corpus
from pretrain.trial import build_model, flops_of_row

TOKENIZER = "embedded/albert-tiny"
LENGTH = 128
WORKERS = (0, 1, 2, 4, 8, 12, 16)


def measure(
    text: Optional[Path] = None,
    tokenizer: str = TOKENIZER,
    size: str = "tiny",
    peak_teraflops: Optional[float] = None,
) -> Dict[str, Any]:
    """All figures of this stage, and where they were taken."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = text or _make_text(folder / "text.txt", 8000)
        result = {
            "environment": {
                "cores": len(os.sched_getaffinity(0)),
                "machine": platform.machine(),
                "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
                "torch": torch.__version__,
                "transformers": transformers.__version__,
            },
            "sharding": sharding(path, folder, tokenizer),
            "memory": memory(path, folder, tokenizer),
        }
        examples = _examples(path, folder, tokenizer, size)
        result["loader"] = {str(count): loader(examples, count) for count in WORKERS}
        result["training"] = training(examples, tokenizer, size, peak_teraflops)
    return result


def _make_text(path: Path, documents: int) -> Path:
    document = world.generate("train", seed=5, paragraphs=documents)
    texts = (p["context"] for article in document["data"] for p in article["paragraphs"])
    path.write_text("\n".join(texts))
    return path


def _data(path: Path, cache: Path, tokenizer: str) -> Any:
    values = {"text": str(path), "tokenizer": tokenizer, "cache_dir": str(cache), "shard_mib": 0.25}
    return parse_pretrain_data(values)


def sharding(path: Path, folder: Path, tokenizer: str, repeats: int = 3) -> Dict[str, Any]:
    """Seconds from text to tokens on the disk: ours, and the ordinary way, turn and turn about."""
    ours: List[float] = []
    peer: List[float] = []
    fast = named_tokenizer(tokenizer)
    for number in range(repeats):
        began = time.monotonic()
        write_corpus(_data(path, folder / f"ours{number}", tokenizer), fast, LENGTH)
        ours.append(time.monotonic() - began)
        began = time.monotonic()
        _map_way(path, folder / f"peer{number}", fast)
        peer.append(time.monotonic() - began)
    megabytes = path.stat().st_size / 1e6
    middle = float(np.median(ours)), float(np.median(peer))
    return {
        "text_megabytes": megabytes,
        "ours_seconds": ours,
        "datasets_map_seconds": peer,
        "ours_megabytes_per_second": megabytes / middle[0],
        "times_datasets_map": middle[1] / middle[0],
    }


def _map_way(path: Path, folder: Path, tokenizer: Any) -> None:
    """As the library's masked-language-model example: tokenize, then join and cut; two maps."""
    import datasets

    datasets.disable_progress_bars()
    processes = len(os.sched_getaffinity(0))
    rows = datasets.load_dataset("text", data_files=str(path), cache_dir=str(folder), split="train")

    def tokenize(batch: Dict[str, List[str]]) -> Any:
        return tokenizer(batch["text"], return_special_tokens_mask=True)

    def group(batch: Dict[str, List[List[int]]]) -> Dict[str, List[List[int]]]:
        joined = {key: [x for row in rows for x in row] for key, rows in batch.items()}
        total = len(joined["input_ids"]) // LENGTH * LENGTH
        return {
            key: [row[i : i + LENGTH] for i in range(0, total, LENGTH)]
            for key, row in joined.items()
        }

    tokens = rows.map(tokenize, batched=True, num_proc=processes, remove_columns=["text"])
    tokens.map(group, batched=True, num_proc=processes)


def memory(path: Path, folder: Path, tokenizer: str) -> Dict[str, float]:
    """Peak MB of a process that shards the text once, and eight times as much of it."""
    content = path.read_bytes() + b"\n"
    peaks = {}
    for times in (1, 8):
        text = folder / f"times{times}.txt"
        text.write_bytes(content * times)
        pid = os.fork()
        if pid == 0:
            data = _data(text, folder / f"memory{times}", tokenizer)
            write_corpus(data, named_tokenizer(tokenizer), LENGTH, processes=1)
            os._exit(0)
        _, status, usage = os.wait4(pid, 0)
        assert status == 0
        unit = 1 if platform.system() == "Darwin" else 1024
        peaks[f"{times}x_megabytes"] = usage.ru_maxrss * unit / 1e6
    peaks["before_megabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    return peaks


def _examples(path: Path, folder: Path, tokenizer: str, size: str) -> Examples:
    data, fast = _data(path, folder / "cache", tokenizer), named_tokenizer(tokenizer)
    hparams = parse_pretrain_hparams({"size": size, "max_seq_length": LENGTH})
    corpus = Corpus(str(write_corpus(data, fast, LENGTH)), "train", data)
    return Examples(corpus, read_vocabulary(fast), hparams)


def loader(examples: Examples, workers: int, steps: int = 60) -> float:
    """Sequences per second of the loader alone: masked, packed, handed over."""
    order = ExampleOrder(examples, 64, 1, seed=0, group=8)
    rows = _Rows(examples, 8192, order)
    batches = iter(step_loader(rows, order, 0, 0, workers, False))
    for _ in range(5 + 4 * workers):  # until every worker runs and nothing is left from the start
        next(batches)
    began = time.monotonic()
    for _ in range(steps):
        next(batches)
    return 64 * steps / (time.monotonic() - began)


def training(
    examples: Examples,
    tokenizer: str,
    size: str,
    peak_teraflops: Optional[float],
    batch: int = 32,
    steps: int = 12,
) -> Dict[str, Any]:
    """Sequences per second of the optimizer step, rows ready; in one and in four micro-batches."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = build_model(examples.hparams, named_tokenizer(tokenizer)).to(device)
    run = Forward(model, "auto", device, read=read_pretraining)
    gradients = FlatGradients(model.parameters(), 1)
    optimizer = build_optimizer("lamb", parameter_groups(model, 0.01), 1e-4)
    results: Dict[str, Any] = {}
    for name, parts in (("one_forward", 1), ("accumulated_4", 4)):
        numbers = np.arange(batch)
        cuts = micro_batches(examples.lengths[numbers], batch * LENGTH // parts)
        rows = [examples.row(np.stack([0 * c, c], axis=1)) for c in cuts]
        flops = sum(flops_of_row(model.config, row) for row in rows)
        rows = [to_device(row, device) for row in rows]
        for step in range(steps + 3):
            if step == 3:
                began = _clock(device)
            gradients.zero()
            run.refresh()
            for row in rows:
                mlm, sop = run(row)
                (token_losses(mlm, row).sum() + order_losses(sop, row).sum()).backward()
            optimizer.step()
        seconds = (_clock(device) - began) / steps
        results[name] = {
            "sequences_per_second": batch / seconds,
            "teraflops": flops / seconds / 1e12,
            "mfu": flops / seconds / 1e12 / peak_teraflops if peak_teraflops else None,
        }
    return results


def _clock(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.monotonic()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, default=None)
    parser.add_argument("--tokenizer", default=TOKENIZER)
    parser.add_argument("--size", default="tiny")
    parser.add_argument("--peak-teraflops", type=float, default=None, help="of the device, for MFU")
    args = parser.parse_args()
    print(json.dumps(measure(args.text, args.tokenizer, args.size, args.peak_teraflops), indent=1))


if __name__ == "__main__":
    main()

"""Optimizer steps of a small Llama, split over two processes (gloo, a core each).

Ours is `LmTrial.train_batch`, outside of Determined's loop. The peer is transformers' own engine.
Both run in the same two processes, in turn, from the same weights over the same windows in the same
micro-batches. A window goes across documents, so that it is one piece for both: attention within
documents is ours alone.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from determined import core
from transformers import AutoModelForCausalLM

from benchmarks.lm_peer import SPLITS, Peer
from benchmarks.measure import (
    ROOT,
    Different,
    Options,
    environment,
    interleave,
    rates,
    ratio_of,
    write_json,
)
from benchmarks.sharding import documents_of
from benchmarks.step import train_step
from detalbert.engine.determinism import choose_exact_kernels
from detalbert.training.checkpoints import LocalCheckpoints
from detalbert.training.local import process_group, trial_context
from detalbert.training.metrics import RunMetrics
from detalbert.training.stopping import StopRequest
from lm.data import LmText
from lm.hparams import parse_lm_hparams
from lm.model import read_config
from lm.packed import CausalRow
from lm.trial import LmTrial

PROCESSES = 2
TURN = 4  # steps
ALLOWED = 1e-4  # between the losses of a step
_SMALL = {
    "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 704, "max_position_embeddings": 512,
}  # fmt: skip
_TINY = {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64}
# Per `--shape` (any other is small): the model, tokens of a window, entries of the vocabulary.
SIZES = {"small": (_SMALL, 512, 8192), "tiny": ({**_SMALL, **_TINY}, 32, 320)}
WINDOWS, MICRO = 8, 2  # of a step over all processes, and of a micro-batch


def lm(options: Options) -> dict[str, Any]:
    """Tokens a second of both sides, the model sharded over two processes; and split by tensors."""
    with tempfile.TemporaryDirectory() as name:
        config = write_model(options, Path(name))
        found = two_processes(config, options.repeats, Path(name))
    check_losses(found["losses"])
    shape, length, _ = _size(options)
    table = rates(found["seconds"], tokens=TURN * WINDOWS * length)
    splits = {}
    for split in SPLITS:
        results = {side: table[f"{split} {side}"] for side in ("ours", "peer")}
        ratio = {"tokens_per_second": ratio_of(results, "tokens_per_second")}
        splits[split] = {"results": results, "ratio": ratio}
    return {
        "device": {**environment(torch.device("cpu"))["device"], "threads": 1},
        **splits["shard"],
        "tensor": splits["tensor"],
        "losses": found["losses"],
        "settings": {
            "model": shape,
            "processes": PROCESSES,
            "backend": "gloo",
            "precision": "fp32",
            "windows": WINDOWS,
            "windows_per_forward": MICRO,
            "tokens_per_window": length,
            "steps_per_turn": TURN,
            "text": str(options.text or "botocore"),
        },
    }


def check_losses(losses: dict[str, list[float]]) -> None:
    """Raises Different unless the two sides' are equal to rounding in every step."""
    for split in SPLITS:
        pairs = zip(losses[f"{split} ours"], losses[f"{split} peer"], strict=True)
        for step, (ours, peer) in enumerate(pairs):
            if not abs(ours - peer) <= ALLOWED:
                raise Different(f"lm: {split}: loss {ours} in step {step}, the peer's {peer}")


def _size(options: Options) -> tuple[dict[str, Any], int, int]:
    return SIZES["tiny" if options.shape == "tiny" else "small"]


def write_model(options: Options, folder: Path) -> dict[str, Any]:
    """The text, its shards and the weights that both begin with; the config of our run."""
    shape, length, vocabulary = _size(options)
    text = folder / "text.jsonl"
    text.write_text("".join(json.dumps({"text": x}) + "\n" for x in documents_of(options)))
    hyperparameters = {
        "model": str(folder / "model"),
        "global_batch_size": WINDOWS,
        "base_batch_size": WINDOWS,
        "max_steps": TURN * (options.repeats + 1),
        "max_seq_length": length,
        "max_tokens_per_forward": MICRO * length,
        "across_documents": True,
        "precision": "fp32",
        "num_workers": 0,
        "seed": 42,
    }
    data = {
        "documents": str(text),
        "vocab_size": vocabulary,
        "cache_dir": str(folder / "cache"),
        "validation_fraction": 0.5,  # not read, but of few documents, too, it must fill a window
    }
    tokenizer = LmText.load(data, parse_lm_hparams(hyperparameters)).tokenizer
    torch.manual_seed(42)
    model = AutoModelForCausalLM.from_config(read_config(None, shape, tokenizer, length))
    model.save_pretrained(folder / "model")
    searcher = {"name": "single", "metric": "loss", "smaller_is_better": True}
    return {"hyperparameters": hyperparameters, "data": data, "searcher": searcher}


def two_processes(config: dict[str, Any], repeats: int, folder: Path) -> dict[str, Any]:
    """Per split and side the seconds of each turn and the loss of each step."""
    job, found = folder / "job.json", folder / "found.json"
    job.write_text(json.dumps({"config": config, "repeats": repeats}))
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone",
         f"--nproc_per_node={PROCESSES}", "-m", "benchmarks.lm", str(job), str(found)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.startswith("[rank")]
        raise Different(f"lm: failed: {(said or ['?'])[-1]}")
    return json.loads(found.read_text())


# ---- one of the processes ------------------------------------------------------------------


class _Side:
    """Steps of one side, TURN of them a call; `step` gives what `loss` makes a step's loss of, from
    the list of what all processes have."""

    def __init__(
        self,
        batches: list[Any],
        step: Callable[[Any, int], Any],
        loss: Callable[[list[Any]], float],
    ) -> None:
        self.batches, self.step, self.loss = batches, step, loss
        self.done: list[Any] = []  # per step

    def __call__(self) -> None:
        first = len(self.done)
        for number in range(first, first + TURN):
            self.done.append(self.step(self.batches[number], number))
        dist.barrier()

    def losses(self) -> list[float]:
        everywhere: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everywhere, self.done)
        return [float(self.loss(list(step))) for step in zip(*everywhere, strict=True)]


def _sides(split: str, trial: LmTrial) -> dict[str, _Side]:
    """Both, by the names of their results, with their inputs on the host beforehand."""
    rows = list(islice(trial.build_training_data_loader(), trial.steps))
    peer = Peer(Path(trial.hparams.model), split, trial)
    padded = [peer.batch(batch) for batch in rows]

    def ours(batch: list[CausalRow], step: int) -> Any:
        train_step(trial, batch, step)
        return trial.meter.per_slot_reduce()

    def loss(slots: list[Any]) -> float:
        return trial.meter.cross_slot_reduce(slots)["loss"]

    sides = {"ours": _Side(rows, ours, loss)}
    return sides | {"peer": _Side(padded, lambda batch, _: peer.step(batch), np.mean)}


@contextlib.contextmanager
def _trial(
    split: str, config: dict[str, Any], group: core.DistributedContext, folder: Path
) -> Iterator[LmTrial]:
    """A run's trial, split one way."""
    values = {**config["hyperparameters"], "layout": {split: PROCESSES}}
    hparams = parse_lm_hparams(values)
    metrics = RunMetrics(folder / f"{split}-{group.rank}", config["searcher"])
    checkpoints, stop = LocalCheckpoints(group, metrics, {}, {}), StopRequest(group)
    config = {**config, "hyperparameters": values}
    with trial_context(group, checkpoints, metrics, stop, config, 0) as context:
        context._current_batch_idx = 0  # the trial loop counts it
        trial = LmTrial(context, (hparams, LmText.load(config["data"], hparams)))
        trial.model.train()
        yield trial


def process(job: dict[str, Any], found: Path) -> None:
    """Both sides of both splits in turn; the first process writes what `two_processes` returns."""
    choose_exact_kernels()
    with process_group() as group, contextlib.ExitStack() as stack:
        sides: dict[str, _Side] = {}
        for split in SPLITS:
            trial = stack.enter_context(_trial(split, job["config"], group, found.parent))
            sides |= {f"{split} {name}": side for name, side in _sides(split, trial).items()}
        seconds = interleave(sides, job["repeats"])
        losses = {name: side.losses() for name, side in sides.items()}
        if group.rank == 0:
            write_json(found, {"seconds": seconds, "losses": losses})


if __name__ == "__main__":
    process(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))

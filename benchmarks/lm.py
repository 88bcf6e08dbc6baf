"""Optimizer steps of a small Llama: in one process, or sharded over two (gloo, a core each).

Ours is `LmTrial.train_batch`, outside of Determined's loop. The baseline is the model of
transformers, sharded by its own `DistributedConfig`. Both run in the same processes, in turn, from
the same weights over the same windows in the same micro-batches. A window goes across documents, so
that it is one piece for both: attention within documents is ours alone.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from transformers import AutoModelForCausalLM

from benchmarks import measure
from benchmarks.measure import (
    ROOT,
    SEARCHER,
    Baseline,
    Different,
    Options,
    rates,
    ratio_of,
    write_json,
)
from detalbert.training.local import process_group
from lm.data import LmText
from lm.hparams import parse_lm_hparams
from lm.model import read_config
from lm.trial import LmTrial

TURN = 4  # steps
_SMALL = {"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 4}
_SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 704}
_TINY = {**_SMALL, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64}
_BASE = {**_SMALL, "hidden_size": 768, "num_hidden_layers": 12, "intermediate_size": 2048}
_BASE |= {"num_attention_heads": 12, "num_key_value_heads": 12}
# Per `--shape` (any other is small): the model, tokens of a window, entries of the vocabulary.
SIZES = {"tiny": (_TINY, 32, 320), "small": (_SMALL, 512, 8192), "base": (_BASE, 2048, 8192)}
WINDOWS, MICRO = 8, 2  # of a step over all processes, and of a micro-batch


def lm(options: Options) -> dict[str, Any]:
    """Tokens per second of both sides, the model sharded over two processes."""
    return _measured(options, processes=2)


def step(options: Options) -> dict[str, Any]:
    """Tokens per second of both sides, in one process."""
    return _measured(options, processes=1)


def _measured(options: Options, processes: int) -> dict[str, Any]:
    shape = options.shape if options.shape in SIZES else "small"
    if options.shape == "auto" and processes == 1 and torch.cuda.is_available():
        shape = "base"
    with tempfile.TemporaryDirectory() as name:
        config = write_model(options, shape, Path(name))
        found = in_processes(config, options.repeats, Path(name), processes)
    half = processes == 1 and torch.cuda.is_available()
    check_losses(found["losses"], allowed=2e-2 if half else 1e-4)
    results = rates(found["seconds"], tokens=TURN * WINDOWS * SIZES[shape][1])
    settings = {
        "workload": "lm",
        "shape": shape,
        "model": SIZES[shape][0],
        "processes": processes,
        "precision": config["hyperparameters"]["precision"],
        "windows": WINDOWS,
        "windows_per_forward": MICRO,
        "tokens_per_window": SIZES[shape][1],
        "steps_per_turn": TURN,
    }
    ratio = ratio_of(results, "tokens_per_second")
    return {"results": results, "ratio": ratio, "losses": found["losses"], "settings": settings}


def check_losses(losses: dict[str, list[float]], allowed: float) -> None:
    """Raise Different unless both sides' losses are equal to rounding in every step."""
    for number, (ours, peer) in enumerate(zip(losses["ours"], losses["peer"], strict=True)):
        if not abs(ours - peer) <= allowed:
            raise Different(f"lm: loss {ours} in step {number}, the baseline's {peer}")


def write_model(options: Options, shape: str, folder: Path) -> dict[str, Any]:
    """Write the text, its shards and the first weights; returns the config of our run."""
    model_keys, length, vocabulary = SIZES[shape]
    text = folder / "text.jsonl"
    text.write_text("".join(json.dumps({"text": x}) + "\n" for x in measure.documents(options)))
    hyperparameters = {
        "model": str(folder / "model"),
        "global_batch_size": WINDOWS,
        "base_batch_size": WINDOWS,
        "max_steps": TURN * (options.repeats + 1),
        "max_seq_length": length,
        "max_tokens_per_forward": MICRO * length,
        "across_documents": True,
        "precision": "bf16" if shape == "base" and torch.cuda.is_available() else "fp32",
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
    model_keys = {**model_keys, "max_position_embeddings": length}
    model = AutoModelForCausalLM.from_config(read_config(None, model_keys, tokenizer, length))
    model.save_pretrained(folder / "model")
    return {"hyperparameters": hyperparameters, "data": data, "searcher": SEARCHER}


def in_processes(
    config: dict[str, Any], repeats: int, folder: Path, processes: int
) -> dict[str, Any]:
    """Return per side the seconds of each turn and the loss of each step."""
    job, found = folder / "job.json", folder / "found.json"
    job.write_text(json.dumps({"config": config, "repeats": repeats}))
    env = os.environ | (
        {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""} if processes > 1 else {}
    )
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
    command = [sys.executable, *torchrun, "-m", "benchmarks.lm", str(job), str(found)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        raise Different(f"lm: failed: {done.stderr[-500:]}")
    return json.loads(found.read_text())


class Peer(Baseline):
    """The first weights, sharded over all processes."""

    def __init__(self, trial: Any) -> None:
        model: Any = AutoModelForCausalLM.from_pretrained(
            trial.hparams.model, attn_implementation="sdpa", dtype=torch.float32
        )
        if dist.get_world_size() > 1:
            # What from_pretrained does with a distributed_config; that needs accelerate.
            config, _, mesh = model.prepare_distribute_model({"fsdp_size": dist.get_world_size()})
            model = model.maybe_distribute_model(model, config, mesh)
        super().__init__(trial, model)

    def batch(self, rows: list[Any]) -> list[tuple[Tensor, Tensor]]:
        """Per micro-batch the tokens and the token after each, int64 [windows, length]."""
        shape = -1, self.hparams.max_seq_length
        return [(row["input_ids"].view(shape), row["targets"].view(shape)) for row in rows]

    def step(self, batch: list[tuple[Tensor, Tensor]]) -> float:
        """One optimizer step; returns the mean loss of this process's windows."""
        total = sum(len(tokens) for tokens, _ in batch)
        mean = torch.zeros((), device=self.device)
        for tokens, targets in batch:
            tokens, targets = tokens.to(self.device), targets.to(self.device)
            with self.autocast():
                output = self.model(tokens, labels=targets, shift_labels=targets, use_cache=False)
            loss = output.loss * (len(tokens) / total)
            self.scaler.scale(loss).backward()
            mean += loss.detach()
        self.update()
        return float(mean)


class Side:
    """Steps of one side, TURN of them per call; keeps what `step` returns of each."""

    def __init__(self, batches: list[Any], step: Callable[[Any, int], Any]) -> None:
        self.batches, self.step, self.done = batches, step, list[Any]()

    def __call__(self) -> None:
        for number in range(len(self.done), len(self.done) + TURN):
            self.done.append(self.step(self.batches[number], number))
        dist.barrier()

    def losses(self, mean: Callable[[list[Any]], Any]) -> list[float]:
        everywhere: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everywhere, self.done)
        return [float(mean(list(step))) for step in zip(*everywhere, strict=True)]


def process(job: dict[str, Any], found: Path) -> None:
    """Measure both sides in turn; rank 0 writes what `in_processes` returns."""
    config = job["config"]
    with process_group() as group, contextlib.ExitStack() as stack:
        hparams = parse_lm_hparams(config["hyperparameters"])
        folder = found.parent / str(group.rank)
        context = stack.enter_context(measure.context_of(config, folder, group))
        trial = LmTrial(context, (hparams, LmText.load(config["data"], hparams)))
        trial.model.train()
        rows = list(islice(trial.build_training_data_loader(), trial.steps))
        peer = Peer(trial)

        def ours(batch: list[Any], number: int) -> Any:
            measure.train_step(trial, batch, number)
            return trial.meter.per_slot_reduce()

        padded = [peer.batch(batch) for batch in rows]
        sides = {"ours": Side(rows, ours), "peer": Side(padded, lambda x, _: peer.step(x))}
        seconds = measure.interleave(sides, job["repeats"])
        reduce = trial.meter.cross_slot_reduce
        losses = {
            "ours": sides["ours"].losses(lambda slots: reduce(slots)["loss"]),
            "peer": sides["peer"].losses(np.mean),
        }
        if group.rank == 0:
            write_json(found, {"seconds": seconds, "losses": losses})


if __name__ == "__main__":
    process(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))

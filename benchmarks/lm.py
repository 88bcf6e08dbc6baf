"""Optimizer steps of a small Llama: in one process, or sharded over two (gloo, a core each).

Ours is `LmTrial.train_batch`; the baseline is the model of transformers, sharded by its own
`DistributedConfig`. Both run in turn in the same processes, from the same weights over the same
windows. A window is one segment for both: attention within documents is ours alone.
"""

import json
import sys
import tempfile
from argparse import Namespace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from transformers import AutoModelForCausalLM

from benchmarks import measure
from benchmarks.measure import Baseline, Different, compare, run_python
from detalbert.training.local import process_group
from lm.data import LmText
from lm.hparams import parse_lm_hparams
from lm.model import causal_config
from lm.trial import LmTrial

TURN = 4  # steps
SIZES = measure.EXPERIMENTS["llama"]
WINDOWS, MICRO = 8, 2  # of a step over all processes, and of a micro-batch


def lm(options: Namespace, processes: int = 2) -> dict[str, Any]:
    """Measure the tokens per second of both sides; on a GPU if `processes` is 1."""
    gpu = processes == 1 and torch.cuda.is_available()
    shape = "base" if gpu and options.shape == "auto" else options.shape
    shape = shape if shape in SIZES else "small"
    keys, precision = SIZES[shape], "bf16" if gpu else "fp32"
    length = keys["max_position_embeddings"]
    with tempfile.TemporaryDirectory() as name:
        write_inputs(options, keys, precision, Path(name))
        found = in_processes(Path(name), processes)
    losses = found["losses"]
    for number, (ours, peer) in enumerate(zip(losses["ours"], losses["peer"], strict=True)):
        if not abs(ours - peer) <= (2e-2 if gpu else 1e-4):
            raise Different(f"lm: loss {ours} in step {number}, the baseline's {peer}")
    settings = {"workload": "lm", "shape": shape, "model": keys, "processes": processes}
    settings |= {"precision": precision, "steps_per_turn": TURN, "windows": WINDOWS}
    settings |= {"windows_per_forward": MICRO, "tokens_per_window": length}
    result = compare(found["seconds"], "tokens", TURN * WINDOWS * length)
    return {**result, "losses": losses, "settings": settings}


def write_inputs(options: Namespace, keys: dict[str, Any], precision: str, folder: Path) -> None:
    """Write the text, its shards, the first weights, and config.json of our run."""
    text, length = folder / "text.jsonl", keys["max_position_embeddings"]
    text.write_text("".join(json.dumps({"text": x}) + "\n" for x in measure.documents(options)))
    values = {"max_seq_length": length, "max_tokens_per_forward": MICRO * length}
    values |= {"max_steps": TURN * (options.repeats + 1), "precision": precision}
    config = measure.experiment("lm", model=str(folder / "model"), **values)
    config["data"] |= {"documents": str(text), "vocab_size": keys["vocab_size"]}
    config["data"]["cache_dir"] = str(folder / "cache")
    hparams = parse_lm_hparams(config["hyperparameters"])
    tokenizer = LmText.load(config["data"], hparams).tokenizer
    torch.manual_seed(42)
    model = AutoModelForCausalLM.from_config(causal_config(None, keys, tokenizer, length))
    model.save_pretrained(folder / "model")
    (folder / "config.json").write_text(json.dumps(config))


def in_processes(folder: Path, processes: int) -> dict[str, Any]:
    """Return per side the seconds of each turn and the loss of each step."""
    torchrun = ["torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
    env = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""} if processes > 1 else {}
    run_python("-m", *torchrun, "-m", "benchmarks.lm", str(folder), **env)
    return json.loads((folder / "found.json").read_text())


class Peer(Baseline):
    """The initial weights in the model of transformers, sharded over all processes."""

    def __init__(self, trial: Any) -> None:
        model: Any = AutoModelForCausalLM.from_pretrained(
            trial.hparams.model, attn_implementation="sdpa", dtype=torch.float32
        )
        if dist.get_world_size() > 1:
            # What from_pretrained does with a distributed_config; that needs accelerate.
            config, _, mesh = model.prepare_distribute_model({"fsdp_size": dist.get_world_size()})
            model = model.maybe_distribute_model(model, config, mesh)
        super().__init__(trial, model)

    def batch(self, rows: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
        """Return micro-batches: tokens and the token after each, int64 [windows, length]."""
        shape, total = (-1, self.hparams.max_seq_length), sum(len(row["input_ids"]) for row in rows)
        micros = []
        for row in rows:
            micro = {name: row[name].view(shape) for name in ("input_ids", "targets")}
            share = torch.tensor([len(row["input_ids"]) / total])
            micros.append({**micro, "gradient_weights": share, "loss_weights": share})
        return micros

    def losses(self, micro: dict[str, Tensor]) -> Tensor:
        """Return the mean over the micro-batch's tokens."""
        labels = {"labels": micro["targets"], "shift_labels": micro["targets"]}
        return self.forward(input_ids=micro["input_ids"], use_cache=False, **labels).loss[None]


def process(folder: Path) -> None:
    """Measure both sides in turn; rank 0 writes what `in_processes` returns."""
    config = json.loads((folder / "config.json").read_text())
    hparams = parse_lm_hparams(config["hyperparameters"])
    with (
        process_group() as group,
        measure.context_of(config, folder / str(group.rank), group) as context,
    ):
        trial = LmTrial(context, (hparams, LmText.load(config["data"], hparams)))
        trial.model.train()
        rows = list(islice(trial.build_training_data_loader(), trial.steps))
        seconds, done, _ = measure.train_in_turn(trial, Peer(trial), rows, TURN)
        everywhere: list[Any] = [None] * group.size
        dist.all_gather_object(everywhere, done)
        ours, theirs = (zip(*(each[side] for each in everywhere), strict=True) for side in done)
        reduce = trial.meter.cross_slot_reduce
        losses = {"ours": [float(reduce(list(step))["loss"]) for step in ours]}
        losses["peer"] = [float(np.mean(step)) for step in theirs]
        if group.rank == 0:
            measured = {side: taken[1:] for side, taken in seconds.items()}
            found = {"seconds": measured, "losses": losses}
            (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    process(Path(sys.argv[1]))

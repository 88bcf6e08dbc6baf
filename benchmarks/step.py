"""Optimizer steps: fine-tuning, pretraining or a language model; `lm`: the last one, sharded over
two processes (gloo, a core each).

Ours is the trial's `train_batch`; the baseline is in baselines.py. Both run in turn in the same
processes, from the same weights over the same windows. A window of a language model is one segment
for both: attention within documents is ours alone.
"""

import contextlib
import json
import os
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks import measure
from benchmarks.baselines import Baseline
from benchmarks.measure import compare, run_python
from detalbert.engine.determinism import choose_exact_kernels
from detalbert.errors import Different
from detalbert.training.local import process_group, trial_context
from detalbert.training.metrics import RunMetrics
from detalbert.training.schedule import LocalStops
from lm.trial import LmTrial
from model_def import SquadTrial
from pretrain.trial import PretrainTrial

TRIALS: dict[str, Any] = {"finetuning": SquadTrial, "pretraining": PretrainTrial, "lm": LmTrial}
JOINED = 32  # documents of the text in one, so that most windows are full
TURN = 4  # steps of a language model that are timed together
WINDOWS, MICRO = 8, 2  # of its step over all processes, and of a micro-batch
LLAMA = measure.EXPERIMENTS["llama"]


def step(options: Namespace) -> dict[str, Any]:
    """Measure windows per second and MFU of both sides; for a language model, tokens per second."""
    with tempfile.TemporaryDirectory() as folder:
        config, settings = write_inputs(options, Path(folder), torch.cuda.is_available())
        found = train_both(config, settings, Path(folder))
    result = report(options.stage, settings, found)
    peak, source = measure.peak_and_source()
    settings["peak_flops"] = {"value": peak, "from": source}
    for side, figures in result["results"].items():
        first, *seconds = found["seconds"][side]
        mfu = [f / s / peak for f, s in zip(found["flops"][1:], seconds, strict=True)]
        figures |= {"mfu": measure.spread_of(mfu), "first_step_seconds": first}
    return result


def lm(options: Namespace) -> dict[str, Any]:
    """Measure the tokens per second of both sides over two processes."""
    options.workload = "lm"
    torchrun = ["torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    env = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    with tempfile.TemporaryDirectory() as folder:
        inputs = write_inputs(options, Path(folder), gpu=False)
        (Path(folder) / "inputs.json").write_text(json.dumps(inputs))
        run_python("-m", *torchrun, "-m", "benchmarks.step", folder, **env)
        found = json.loads((Path(folder) / "found.json").read_text())
    return report(options.stage, inputs[1], found)


def report(stage: str, settings: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Return the result without the first turn. Raises Different unless both sides have the same
    losses: of a language model in every step, else in the first one.
    """
    (ours, theirs), is_lm = found["losses"].values(), settings["workload"] == "lm"
    exact = found["settings"]["precision"] == "torch.float32"
    count = len(ours) if is_lm else 1
    for number, (one, other) in enumerate(zip(ours[:count], theirs[:count], strict=True)):
        if not abs(one - other) <= (1e-4 if exact else 2e-2 * abs(other)):
            raise Different(f"{stage}: loss {one} in step {number}, the baseline's {other}")
    amount = settings["windows"] * settings["steps_per_turn"]
    amount *= found["settings"]["tokens_per_window"] if is_lm else 1
    seconds = {side: taken[1:] for side, taken in found["seconds"].items()}
    result = compare(seconds, "tokens" if is_lm else "windows", amount)
    settings |= found["settings"]
    memory = found["memory"] or "not measured"
    return {**result, "losses": found["losses"], "settings": settings, "memory": memory}


def write_inputs(options: Namespace, folder: Path, gpu: bool) -> list[dict[str, Any]]:
    """Write text, shards and first weights of a workload; return its experiment and settings."""
    if options.workload == "lm":
        return write_lm_inputs(options, folder, gpu)
    pretraining = options.workload == "pretraining"
    shape = measure.shape_of(options, "base" if pretraining else "xxlarge")
    sizes = {"global_batch_size": options.windows, "max_steps": options.repeats + 1}
    config = measure.experiment("step", model_config=dict(measure.SHAPES[shape]), **sizes)
    values, data = config["hyperparameters"], config["data"]
    data |= {"tokenizer": options.tokenizer, "cache_dir": str(folder)}
    if pretraining:
        text = measure.write_text(options, folder, JOINED)
        data |= {"text": text, "validation": text}  # the latter is not read
        values["model_config"]["classifier_dropout_prob"] = 0.0
        values["max_seq_length"] = 128 if shape in ("tiny", "small") else 512
    else:
        for split, name in (("train", "train.json"), ("validation", "dev.json")):
            data[split] = str(options.data / name)
            data[f"max_{split}_examples"] = options.examples
    settings = {"workload": options.workload, "shape": shape, "windows": options.windows}
    return [config, {**settings, "steps_per_turn": 1}]


def write_lm_inputs(options: Namespace, folder: Path, gpu: bool) -> list[dict[str, Any]]:
    shape = "base" if gpu and options.shape == "auto" else options.shape
    keys = LLAMA[shape := shape if shape in LLAMA else "small"]
    length, model = keys["max_position_embeddings"], str(folder / "model")
    values = {"max_seq_length": length, "max_tokens_per_forward": MICRO * length}
    values |= {"max_steps": TURN * (options.repeats + 1), "precision": "bf16" if gpu else "fp32"}
    config = measure.experiment("lm", model=model, **values)
    text, cache = measure.write_text(options, folder), str(folder / "cache")
    config["data"] |= {"documents": text, "vocab_size": keys["vocab_size"], "cache_dir": cache}
    torch.manual_seed(42)
    AutoModelForCausalLM.from_config(AutoConfig.for_model(**keys)).save_pretrained(model)
    settings = {"workload": "lm", "shape": shape, "model": keys, "windows": WINDOWS}
    return [config, {**settings, "steps_per_turn": TURN, "windows_per_forward": MICRO}]


def train_both(config: dict[str, Any], settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Train both sides in turn, in all processes; return measurements and losses."""
    workload, turn = settings["workload"], settings["steps_per_turn"]
    choose_exact_kernels()
    with contextlib.ExitStack() as stack:
        group = stack.enter_context(process_group())
        metrics = RunMetrics(folder / str(group.rank), config["searcher"])
        stops = LocalStops(group)
        context = stack.enter_context(trial_context(group, metrics, stops, config, 0, {}))
        trial = TRIALS[workload](context)
        trial.model.train()
        batches = list(islice(trial.build_training_data_loader(), trial.steps))
        seconds, done, memory = train_in_turn(trial, Baseline(trial, workload), batches, turn)
        everywhere = group.allgather(done)
    ours, theirs = (zip(*(each[side] for each in everywhere), strict=True) for side in done)
    losses = {"ours": [trial.meter.cross_slot_reduce(list(step))["loss"] for step in ours]}
    losses["peer"] = [float(np.mean(step)) for step in theirs]
    flops = [sum(trial.row_flops(row) for row in batch) for batch in batches]
    tokens = sum(len(row["input_ids"]) for batch in batches for row in batch) * group.size
    return {
        "seconds": seconds,
        "losses": losses,
        "memory": memory,
        "flops": [sum(flops[i : i + turn]) for i in range(0, len(flops), turn)],
        "settings": {
            "tokens_per_window": tokens / len(batches) / settings["windows"],
            "max_tokens_per_forward": trial.hparams.max_tokens_per_forward,
            "precision": str(trial.dtype),
            "processes": group.size,
        },
    }


def train_in_turn(trial: Any, peer: Any, batches: list[Any], turn: int) -> Any:
    """Train on `batches` with both sides, `turn` steps of each at a time, on all processes.

    Return by side the seconds of each turn, the result of each step (the meter's sums of ours, the
    mean loss of the baseline's), and the peak memory of the first turn on a GPU.
    """

    def train() -> Iterator[Any]:
        for number, batch in enumerate(batches):
            trial.meter.reset()
            trial.train_batch(batch, 0, number)
            trial.schedule.step()
            yield trial.meter.per_slot_reduce()

    padded = [peer.batch(batch) for batch in batches]
    steps: dict[str, Iterator[Any]] = {"ours": train(), "peer": map(peer.step, padded)}
    done: dict[str, list[Any]] = {side: [] for side in steps}
    memory: dict[str, Any] = {}

    def take(side: str) -> None:
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        done[side] += islice(steps[side], turn)
        if torch.cuda.is_available():
            memory.setdefault(side, {"peak_bytes": torch.cuda.max_memory_allocated()})
        if dist.is_initialized():
            dist.barrier()

    sides = {side: partial(take, side) for side in steps}
    return measure.interleave(sides, len(batches) // turn), done, memory


if __name__ == "__main__":  # one of several processes
    place = Path(sys.argv[1])
    given, chosen = json.loads((place / "inputs.json").read_text())
    measured = train_both(given, chosen, place)
    if os.environ["RANK"] == "0":
        (place / "found.json").write_text(json.dumps(measured))

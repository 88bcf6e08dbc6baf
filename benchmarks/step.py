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
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
import yaml
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks import measure
from benchmarks.baselines import Baseline
from benchmarks.measure import Config, Result, compare, run_python
from detalbert.engine.determinism import choose_exact_kernels
from detalbert.engine.trial import StepTrial
from detalbert.errors import Different
from detalbert.training.local import process_group, trial_context
from detalbert.training.metrics import RunMetrics
from detalbert.training.schedule import LocalStops
from lm.trial import LmTrial
from model_def import SquadTrial
from pretrain.trial import PretrainTrial

TRIALS: dict[str, Any] = {"finetuning": SquadTrial, "pretraining": PretrainTrial, "lm": LmTrial}
JOINED = 32  # documents of the text in one, so that most windows are full
LLAMA = measure.EXPERIMENTS["llama"]
# Language models of real sizes, by --shape: those of these configs.
CONFIGS = {"125m": "lm_125m.yaml", "1b": "lm_1b.yaml"}

# Of a language model: steps that are timed together, windows of a step over all processes, and of
# a micro-batch.
LM_TURN = 4
LM_WINDOWS = 8
LM_MICRO_BATCH = 2

# The experiment that both sides read, and the settings that are reported.
Inputs = tuple[Config, Result]


class Turns(NamedTuple):
    """Measurements of both sides, by side."""

    seconds: dict[str, list[float]]  # of each turn
    steps: dict[str, list[Any]]  # of each step: the meter's sums of ours, the baseline's mean loss
    memory: dict[str, dict[str, int]]  # bytes: peak of the first turn, on a GPU


def step(options: Namespace) -> Result:
    """Measure windows per second and MFU of both sides; for a language model, tokens per second."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config, settings = write_inputs(options, folder, gpu=torch.cuda.is_available())
        measured = train_both(config, settings, folder)
    return report_step(options.stage, settings, measured)


def report_step(stage: str, settings: Result, measured: Result) -> Result:
    """Return what `report` does, with each side's MFU and first step."""
    result = report(stage, settings, measured)
    peak, source = measure.peak_and_source()
    settings["peak_flops"] = {"value": peak, "from": source}
    for side, figures in result["results"].items():
        first, *seconds = measured["seconds"][side]
        mfu = []
        for flops, turn_seconds in zip(measured["flops"][1:], seconds, strict=True):
            mfu.append(flops / turn_seconds / peak)
        figures["mfu"] = measure.spread_of(mfu)
        figures["first_step_seconds"] = first
    return result


def lm(options: Namespace) -> Result:
    """Measure the tokens per second of both sides over two processes."""
    options.workload = "lm"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config, settings = write_inputs(options, folder, gpu=False)
        (folder / "inputs.json").write_text(json.dumps([config, settings]))
        run_python(
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc_per_node=2",
            "-m",
            "benchmarks.step",
            name,
            OMP_NUM_THREADS="1",
            CUDA_VISIBLE_DEVICES="",
        )
        measured = json.loads((folder / "found.json").read_text())
    return report(options.stage, settings, measured)


def report(stage: str, settings: Result, measured: Result) -> Result:
    """Return the result without the first turn; `measured` is of `train_both`.

    Raises:
        Different: unless both sides have the same losses: of a language model in every step, else
            in the first one.
    """
    is_lm = settings["workload"] == "lm"
    check_losses(
        stage,
        measured["losses"],
        steps=None if is_lm else 1,
        exact=measured["settings"]["precision"] == "torch.float32",
    )
    amount = settings["windows"] * settings["steps_per_turn"]
    if is_lm:
        amount *= measured["settings"]["tokens_per_window"]
    # The first turn compiles and allocates.
    seconds = {side: turns[1:] for side, turns in measured["seconds"].items()}
    result = compare(seconds, unit="tokens" if is_lm else "windows", amount=amount)
    settings |= measured["settings"]
    result["losses"] = measured["losses"]
    result["settings"] = settings
    result["memory"] = measured["memory"] or "not measured"
    return result


def check_losses(
    stage: str, losses: dict[str, list[float]], steps: int | None, exact: bool
) -> None:
    """Raise Different unless both sides have the same losses in the first `steps` (None: all)."""
    pairs = zip(losses["ours"], losses["peer"], strict=True)
    for number, (ours, baseline) in enumerate(islice(pairs, steps)):
        tolerance = 1e-4 if exact else 2e-2 * abs(baseline)
        if not abs(ours - baseline) <= tolerance:  # NaN is different, too
            raise Different(f"loss {ours} in step {number}, the baseline's {baseline}", key=stage)


def write_inputs(options: Namespace, folder: Path, gpu: bool) -> Inputs:
    """Write text, shards and first weights of a workload; return its experiment and settings."""
    if options.workload == "lm":
        return write_lm_inputs(options, folder, gpu)
    pretraining = options.workload == "pretraining"
    shape = measure.shape_of(options, "base" if pretraining else "xxlarge")
    config = measure.experiment(
        "step",
        model_config=dict(measure.SHAPES[shape]),
        global_batch_size=options.windows,
        max_steps=options.repeats + 1,
    )
    data = config["data"]
    data["tokenizer"] = options.tokenizer
    data["cache_dir"] = str(folder)
    if pretraining:
        data["text"] = measure.write_text(options, folder, joined=JOINED)
        data["validation"] = data["text"]  # it is not read
        hyperparameters = config["hyperparameters"]
        hyperparameters["model_config"]["classifier_dropout_prob"] = 0.0
        hyperparameters["max_seq_length"] = 128 if shape in ("tiny", "small") else 512
    else:
        data["train"] = str(options.data / "train.json")
        data["validation"] = str(options.data / "dev.json")
        data["max_train_examples"] = options.examples
        data["max_validation_examples"] = options.examples
    settings = {
        "workload": options.workload,
        "shape": shape,
        "windows": options.windows,
        "steps_per_turn": 1,
    }
    return config, settings


def write_lm_inputs(options: Namespace, folder: Path, gpu: bool) -> Inputs:
    """Write text and first weights of a language model; return its experiment and settings."""
    shape = "base" if gpu and options.shape == "auto" else options.shape
    if shape not in {*LLAMA, *CONFIGS}:
        shape = "small"
    model_config, length = lm_shape(shape)
    config = measure.experiment(
        "lm",
        max_seq_length=length,
        max_tokens_per_forward=LM_MICRO_BATCH * length,
        max_steps=LM_TURN * (options.repeats + 1),
        precision="bf16" if gpu else "fp32",
    )
    config["data"] |= {
        "documents": measure.write_text(options, folder),
        "cache_dir": str(folder / "cache"),
    }
    hyperparameters = config["hyperparameters"]
    if shape in CONFIGS:
        # Drawn on the device. The vocabulary is larger than the tokenizer's: it costs the same.
        hyperparameters |= {"model_config": model_config, "compile": gpu}
        config["data"]["tokenizer"] = options.tokenizer
    else:
        # Both sides read the same first weights.
        config["data"]["vocab_size"] = model_config["vocab_size"]
        hyperparameters["model"] = str(folder / "model")
        torch.manual_seed(42)
        first = AutoModelForCausalLM.from_config(AutoConfig.for_model(**model_config))
        first.save_pretrained(hyperparameters["model"])
    settings = {
        "workload": "lm",
        "shape": shape,
        "model": model_config,
        "windows": LM_WINDOWS,
        "steps_per_turn": LM_TURN,
        "windows_per_forward": LM_MICRO_BATCH,
    }
    return config, settings


def lm_shape(shape: str) -> tuple[Config, int]:
    """Return a language model's config and the tokens of its windows."""
    if shape in LLAMA:
        return LLAMA[shape], LLAMA[shape]["max_position_embeddings"]
    path = measure.ROOT / "configs" / CONFIGS[shape]
    hyperparameters = yaml.safe_load(path.read_text())["hyperparameters"]
    return hyperparameters["model_config"], hyperparameters["max_seq_length"]


@contextlib.contextmanager
def open_trial(config: Config, workload: str, folder: Path) -> Iterator[StepTrial[Any, Any]]:
    """Yield the trial of an experiment, ready to train, as train.py makes it, in all processes."""
    # As train.py; the baseline switches them off for its own steps.
    choose_exact_kernels()
    with contextlib.ExitStack() as stack:
        group = stack.enter_context(process_group())
        metrics = RunMetrics(folder / str(group.rank), config["searcher"])
        stops = LocalStops(group)
        context = stack.enter_context(
            trial_context(group, metrics, stops, config, steps_completed=0, run={})
        )
        trial = TRIALS[workload](context)
        trial.model.train()
        yield trial


def train_both(config: Config, settings: Result, folder: Path) -> Result:
    """Train both sides in turn, in all processes; return measurements and losses."""
    with open_trial(config, settings["workload"], folder) as trial:
        return measure_both(trial, settings, steps=trial.steps)


def measure_both(trial: StepTrial[Any, Any], settings: Result, steps: int) -> Result:
    """Train `steps` steps of both sides in turn; return measurements and losses. Collective."""
    turn = settings["steps_per_turn"]
    group = trial.context.distributed
    batches = list(islice(trial.build_training_data_loader(), steps))
    baseline = Baseline(trial, settings["workload"])
    turns = train_in_turn(trial, baseline, batches, turn)
    per_rank = group.allgather(turns.steps)

    # A step's loss is of all ranks.
    losses: dict[str, list[float]] = {"ours": [], "peer": []}
    for sums in zip(*(steps["ours"] for steps in per_rank), strict=True):
        losses["ours"].append(trial.meter.cross_slot_reduce(list(sums))["loss"])
    for means in zip(*(steps["peer"] for steps in per_rank), strict=True):
        losses["peer"].append(float(np.mean(means)))

    # Of this process; all have equally many windows.
    step_flops = [count_flops(trial, batch) for batch in batches]
    turn_starts = range(0, len(batches), turn)
    tokens_per_step = step_tokens(batches) * group.size / len(batches)
    return {
        "seconds": turns.seconds,
        "losses": losses,
        "memory": turns.memory,
        "flops": [sum(step_flops[start : start + turn]) for start in turn_starts],
        "settings": {
            "tokens_per_window": tokens_per_step / settings["windows"],
            "max_tokens_per_forward": trial.hparams.max_tokens_per_forward,
            "precision": str(trial.dtype),
            "processes": group.size,
        },
    }


def count_flops(trial: StepTrial[Any, Any], batch: list[Any]) -> float:
    """Return the FLOPs that the model needs for a step of this process."""
    return sum(trial.row_flops(row) or 0.0 for row in batch)


def step_tokens(batches: list[list[Any]]) -> int:
    """Return the real tokens of some steps of this process."""
    return sum(len(row["input_ids"]) for batch in batches for row in batch)


def train_steps(trial: StepTrial[Any, Any], batches: list[Any]) -> Iterator[dict[str, float]]:
    """Train a step when the next item is taken: the meter's sums of this process."""
    for number, batch in enumerate(batches):
        trial.meter.reset()
        trial.train_batch(batch, 0, number)
        trial.schedule.step()
        yield trial.meter.per_slot_reduce()


def train_in_turn(
    trial: StepTrial[Any, Any], baseline: Baseline, batches: list[Any], turn: int
) -> Turns:
    """Train on `batches` with both sides, `turn` steps of each at a time, on all processes."""
    padded = [baseline.batch(batch) for batch in batches]
    # Each side's steps run when they are taken.
    pending: dict[str, Iterator[Any]] = {
        "ours": train_steps(trial, batches),
        "peer": map(baseline.step, padded),
    }
    steps: dict[str, list[Any]] = {side: [] for side in pending}
    memory: dict[str, dict[str, int]] = {}

    def take(side: str) -> None:
        gpu = torch.cuda.is_available()
        if gpu:
            torch.cuda.reset_peak_memory_stats()
        steps[side] += islice(pending[side], turn)
        if gpu:
            memory.setdefault(side, {"peak_bytes": torch.cuda.max_memory_allocated()})
        if dist.is_initialized():
            dist.barrier()

    sides = {side: partial(take, side) for side in pending}
    seconds = measure.interleave(sides, repeats=len(batches) // turn)
    return Turns(seconds=seconds, steps=steps, memory=memory)


if __name__ == "__main__":  # one of several processes
    place = Path(sys.argv[1])
    experiment, chosen = json.loads((place / "inputs.json").read_text())
    measured = train_both(experiment, chosen, place)
    if os.environ["RANK"] == "0":
        (place / "found.json").write_text(json.dumps(measured))

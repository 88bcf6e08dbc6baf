"""Optimizer steps: fine-tuning, pretraining or a language model.

Ours is the trial's `train_batch`, over packed rows; the baseline is in baseline.py. Both take turns
in the same processes (one, or torchrun's), from the same weights, over the same windows.
"""

import contextlib
import copy
import json
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from transformers import (
    AlbertForPreTraining,
    AutoModelForCausalLM,
    AutoModelForQuestionAnswering,
    PreTrainedModel,
)
from transformers.modeling_layers import GradientCheckpointingLayer

from benchmarks.baseline import Baseline, Batch, pad
from benchmarks.measure import (
    Result,
    compare,
    device,
    device_name,
    experiment,
    race,
    run_python,
    speeds,
)
from detalbert.corpus.api_text import read_services
from detalbert.engine.determined_internals import set_step
from detalbert.engine.determinism import choose_exact_kernels
from detalbert.engine.flops import peak_flops
from detalbert.engine.trial import StepTrial
from detalbert.errors import Different, UserError
from detalbert.settings.values import Config
from detalbert.training.local import process_group, trial_context
from detalbert.training.metrics import RunMetrics
from detalbert.training.schedule import LocalStops
from lm.trial import LmTrial, count_tokens
from model_def import SquadTrial
from pretrain.trial import PretrainTrial

TRIALS: dict[str, Any] = {"finetuning": SquadTrial, "pretraining": PretrainTrial, "lm": LmTrial}
MAKERS: dict[str, Any] = {
    "finetuning": AutoModelForQuestionAnswering.from_config,
    "pretraining": AlbertForPreTraining._from_config,  # no Auto class makes one
    "lm": AutoModelForCausalLM.from_config,
}
TEXTS = 16_000  # of botocore's

Losses = dict[str, list[float]]  # of each step, by side


def lm(options: Namespace) -> Result:
    """Measure a language model that is sharded over two processes: gloo, one core each."""
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command += ["-m", "benchmarks", "step", "--json", "--workload", "lm"]
    for flag in ("shape", "repeats", "windows", "text"):
        command += [f"--{flag}", str(getattr(options, flag))]
    return json.loads(run_python(*command, OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES=""))


def step(options: Namespace) -> Result:
    """Measure windows (of a language model, tokens) per second of both sides. Collective.

    Raises:
        Different: if both sides have other losses.
    """
    choose_exact_kernels()  # as train.py does
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        group = stack.enter_context(process_group())
        # All ranks read the files of the first one's folder.
        config = group.broadcast(make_config(options, folder) if group.rank == 0 else None)
        context = trial_context(
            group,
            metrics=RunMetrics(folder, config["searcher"]),
            stops=LocalStops(group),
            config=config,
            steps_completed=0,
            run=dict,
        )
        trial = TRIALS[options.workload](stack.enter_context(context))
        trial.model.train()
        result = measure_both(trial, options.workload)
    result["settings"]["shape"] = options.shape
    return result


def make_config(options: Namespace, folder: Path) -> Config:
    """Return the experiment of both sides; write the text that it reads into `folder`."""
    workload = options.workload
    models = experiment("shapes")[workload]
    if options.shape not in models:
        raise UserError(f"{workload} has {', '.join(models)}", key=f"--shape {options.shape}")
    config: Config = experiment(workload)
    config["hyperparameters"] |= models[options.shape]
    config["hyperparameters"] |= {
        "global_batch_size": options.windows,
        "base_batch_size": options.windows,
        "max_steps": options.repeats + 1,
    }
    data = config["data"]
    data["cache_dir"] = str(folder)
    if workload == "lm":  # it learns a tokenizer from the text
        data["documents"] = find_text(options, folder)
        return config
    data["tokenizer"] = options.tokenizer
    if workload == "pretraining":
        data["text"] = find_text(options, folder)
    elif options.data:
        data["train"] = str(options.data / "train.json")
        data["validation"] = str(options.data / "dev.json")
    return config


def find_text(options: Namespace, folder: Path) -> str:
    """Return the file of `--text`, or one of a text that every installation has."""
    if options.text != "botocore":
        return options.text
    path = folder / "text.txt"
    with path.open("w") as file:
        for text in islice(read_services(), TEXTS):
            file.write(" ".join(text.split()) + "\n")
    return str(path)


def measure_both(trial: StepTrial, workload: str) -> Result:
    """Train the steps of a trial on both sides in turn. The first one compiles, and is not
    measured. Collective.
    """
    # All rows are read before the first step: loaders are not measured.
    batches = list(islice(trial.build_training_data_loader(), trial.steps))
    exact = trial.dtype is torch.float32
    baseline = Baseline(
        copy_model(trial, workload),
        learning_rate=trial.hparams.learning_rate(),
        steps=trial.steps,
        half=not exact,
    )
    padded = [[pad(row) for row in batch] for batch in batches]

    # A side trains a step when its next loss is taken.
    steps = {
        "ours": train_ours(trial, batches),
        "baseline": train_baseline(trial, baseline, padded),
    }
    losses: Losses = {side: [] for side in steps}
    turns = race(lambda side: losses[side].append(next(steps[side])), repeats=trial.steps)
    check_losses(losses, workload, exact=exact)

    # Of the steps that are measured.
    seconds = {side: values[1:] for side, values in turns.items()}
    ranks = trial.context.distributed.size
    windows = trial.hparams.global_batch_size
    tokens = [ranks * count_tokens(batch) for batch in batches[1:]]
    unit = "windows"
    amounts = [windows] * len(tokens)
    if workload == "lm":
        unit = "tokens"
        amounts = tokens
    result = compare(seconds, unit=unit, amounts=amounts)
    add_utilization(result, trial, batches[1:], seconds)
    result["losses"] = losses
    result["settings"] = {
        "workload": workload,
        "processes": ranks,
        "precision": str(trial.dtype),
        "windows": windows,
        "tokens_per_window": sum(tokens) / len(tokens) / windows,
        "max_tokens_per_forward": trial.hparams.max_tokens_per_forward,
    }
    return result


def copy_model(trial: StepTrial, workload: str) -> PreTrainedModel:
    """Return a model of transformers with a trial's weights; over several processes, sharded."""
    full = StateDictOptions(full_state_dict=True)
    weights = get_model_state_dict(trial.model, options=full)
    with device():
        model = MAKERS[workload](
            copy.deepcopy(trial.model.config),  # of which it changes the attention
            attn_implementation="sdpa",
            dtype=torch.float32,
        )
    model.load_state_dict(weights)
    if dist.is_initialized() and dist.get_world_size() > 1:
        for module in model.modules():
            if isinstance(module, GradientCheckpointingLayer):
                fully_shard(module)
        fully_shard(model)
    return model


def train_ours(trial: StepTrial, batches: list[Any]) -> Iterator[float]:
    """Yield the loss of each step of the trial, over all ranks."""
    for number, batch in enumerate(batches):
        trial.meter.reset()
        set_step(trial.context, number)
        trial.train_batch(batch, epoch_idx=0, batch_idx=number)
        trial.schedule.step()
        sums = trial.context.distributed.allgather(trial.meter.per_slot_reduce())
        yield trial.meter.cross_slot_reduce(sums)["loss"]


def train_baseline(
    trial: StepTrial, baseline: Baseline, batches: list[list[Batch]]
) -> Iterator[float]:
    """Yield the loss of each step of the baseline, over all ranks."""
    is_exact = torch.are_deterministic_algorithms_enabled()
    for batch in batches:
        # The ordinary way is the faster kernels, which sum in any order.
        torch.use_deterministic_algorithms(False)
        loss = baseline.step(batch)
        torch.use_deterministic_algorithms(is_exact)
        yield float(np.mean(trial.context.distributed.allgather(loss)))


def check_losses(losses: Losses, workload: str, exact: bool) -> None:
    """Raise Different unless both sides have the same losses to rounding: of a language model in
    every step, else in the first one. Micro-batches of the baseline weigh labels otherwise.
    """
    compared = None if workload == "lm" else 1
    ours = losses["ours"][:compared]
    baseline = losses["baseline"][:compared]
    is_equal = np.allclose(  # which NaN is not
        ours,
        baseline,
        atol=1e-4,
        rtol=0 if exact else 2e-2,
    )
    if not is_equal:
        raise Different(f"losses {ours}, the baseline's {baseline}", key="step")


def add_utilization(
    result: Result,
    trial: StepTrial,
    batches: list[Any],
    seconds: dict[str, list[float]],
) -> None:
    """Add the MFU (model FLOPs utilization) of both sides, if the peak of the GPU is known."""
    peak = peak_flops(device_name(), half=True)
    if peak is None:
        return
    # Seconds at the peak, of this rank's GPU; all have equally many windows.
    least = []
    for batch in batches:
        flops = sum(trial.row_flops(row) or 0.0 for row in batch)
        least.append(flops / peak)
    for side, figures in result["results"].items():
        figures["mfu"] = speeds(least, seconds[side])

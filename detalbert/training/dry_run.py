"""`train.py --dry-run`: data, batch, memory, minutes and output of a run that is not started.

The experiment is loaded as a start loads it, so the same mistakes end it, and some steps are
measured on this machine: no table has the speed of every CPU and card. The price is the time of a
start; what it writes, such as windows, goes to a temporary folder that is deleted.
"""

import logging
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import psutil
import torch
from determined import core

from detalbert import hub
from detalbert.engine.trial import StepTrial
from detalbert.errors import UserError
from detalbert.progress import clock, waiting
from detalbert.run_page.run import count_parameters
from detalbert.settings.hparams import StepHParams
from detalbert.settings.values import Config
from detalbert.training import folder, preflight
from detalbert.training.checkpoints import check_same_run, find_checkpoint
from detalbert.training.controller import loop_of
from detalbert.training.local import process_group, trial_context
from detalbert.training.manifest import read_manifest
from detalbert.training.metrics import RunMetrics
from detalbert.training.preflight import GIB
from detalbert.training.schedule import LocalStops
from detalbert.training.sizing import Slots, find_model
from detalbert.training.workload import Training, Workload

log = logging.getLogger(__name__)
# Measured, after a first step, which may compile: so many, and for so many seconds.
STEPS = 3
SECONDS = 5.0


def dry_run(
    workload: Workload,
    config: Config,
    hparams: StepHParams,
    *,
    seed: int,
    output: Path,
    resume: str,
) -> int:
    """Log what a start would do, and return the exit status, 0.

    Args:
        workload: of the experiment.
        config: of the experiment.
        hparams: of the experiment, parsed.
        seed: the trial's, for hyperparameters without one.
        output: of the run; not touched.
        resume: the value of `--resume`.

    Raises:
        UserError: as a start does.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("is for one process", key="--dry-run", cure="start it without torchrun")
    with tempfile.TemporaryDirectory(prefix="dry-run-") as name, process_group() as distributed:
        temporary = Path(name)
        config = {**config, "data": _with_temporary_cache(workload, config, temporary / "cache")}
        folder.check_replaces_own(output)
        checkpoint = find_checkpoint(resume, output_dir=output)
        steps_done = _steps_of(checkpoint)
        training = Training.load(workload, config=config, hparams=hparams, seed=seed)
        if checkpoint is not None:
            check_same_run(
                checkpoint,
                run=training.identity(),
                defaults=training.defaults(),
                config=training.config,
            )
        _log_trial(training, distributed, temporary / "run", steps_done=steps_done, output=output)
    start = f"resumed after step {steps_done}" if steps_done else "from the first step"
    log.info("%-14s%s, %s", "output", output, start)
    log.info("nothing was started, and nothing is left of this dry run")
    return 0


def _with_temporary_cache(workload: Workload, config: Config, cache: Path) -> Config:
    """Return `data:` with a cache folder that has links to the files of the configured one."""
    configured = Path(workload.parsers.data(config["data"]).cache_dir).absolute()
    if configured.is_dir():
        locks = shutil.ignore_patterns("*.lock")
        shutil.copytree(configured, cache, copy_function=os.symlink, ignore=locks)
    return {**config["data"], "cache_dir": str(cache)}


def _steps_of(checkpoint: Path | None) -> int:
    """Return the steps of the checkpoint to resume from; set the hub's commits to its run's."""
    if checkpoint is None:
        return 0
    manifest = read_manifest(checkpoint)
    hub.commits.update(manifest.get("commits", {}))
    return manifest["steps"]


def _log_trial(
    training: Training,
    distributed: core.DistributedContext,
    path: Path,
    steps_done: int,
    output: Path,
) -> None:
    """Build the trial, which logs its data, model and batch; log its memory and time.

    Args:
        path: a temporary folder for what the trial writes.
        steps_done: by earlier starts.
        output: of the run.
    """
    stops = LocalStops(distributed)
    metrics = RunMetrics(path, searcher=training.config["searcher"])
    with trial_context(
        distributed,
        metrics,
        stops,
        config=training.config,
        steps_completed=0,
        run=training.identity(),
    ) as context:
        loop = loop_of(training)(training, context, stops, checkpoint=None, on_cluster=False)
        trial = loop.trial
        preflight.check_checkpoints(output, parameters=count_parameters(trial))
        speed = _measure_steps(trial)
        log.info("%-14s%s", "memory", _describe_memory(training, trial))
        log.info("%-14s%s", "time", _describe_time(training, trial, speed, steps_done))


class Speed(NamedTuple):
    """Steps that were measured."""

    steps: int
    seconds: float  # of all of them

    @property
    def step(self) -> float:
        """Seconds of a step."""
        return self.seconds / self.steps


def _measure_steps(trial: StepTrial) -> Speed:
    """Run some steps; return their speed."""
    trial.meter.reset()
    began = 0.0
    with waiting(f"measuring steps, for {SECONDS:.0f} s or more"):
        for step, batch in enumerate(trial.build_training_data_loader()):
            trial.train_batch(batch, 0, step)
            if trial.context.device.type == "cuda":
                torch.cuda.synchronize(trial.context.device)
            if step == 0:
                began = time.monotonic()
            elif step >= STEPS and time.monotonic() - began > SECONDS:
                break
    return Speed(steps=step, seconds=time.monotonic() - began)


def _describe_memory(training: Training, trial: StepTrial) -> str:
    """Return what the steps took of the device's memory, and what the planner says of a GPU."""
    device = trial.context.device
    if device.type == "cpu":
        used = psutil.Process().memory_info().rss / GIB
        total = psutil.virtual_memory().total / GIB
        return f"{used:.1f} of {total:.1f} GiB of RAM, after some steps"
    used = torch.cuda.max_memory_reserved(device) / GIB
    total = torch.cuda.get_device_properties(device).total_memory / GIB
    text = f"{used:.1f} of {total:.1f} GiB of the GPU in some steps"
    model = find_model(training.workload.sizing, training.config, training.hparams, root=Path())
    if model is None:
        return text
    has_bf16 = torch.cuda.get_device_capability(device) >= (8, 0)
    slots = Slots(number=1, per_machine=1, has_bf16=has_bf16)
    memory = training.workload.sizing.demand(model, training.hparams, slots).memory
    modelled = memory.at(trial.max_tokens) / GIB
    return f"{text}; {modelled:.1f} modelled, with CUDA itself"


def _describe_time(training: Training, trial: StepTrial, speed: Speed, steps_done: int) -> str:
    """Return the time of the steps and validations after the first `steps_done` steps."""
    hparams = training.hparams
    steps = trial.steps - steps_done
    if steps <= 0:
        return "none: the run there is complete (--resume never sets it aside and starts anew)"
    length = hparams.length(training.data.summary().windows)
    validations = length.validations - steps_done // length.validation

    # A validation has no backward pass, which is two thirds of a step.
    limits = [
        training.data.summary().validation_windows,
        getattr(hparams, "max_validation_windows", None),
    ]
    windows = min((limit for limit in limits if limit is not None), default=0)
    validation_seconds = windows * speed.step / hparams.global_batch_size / 3
    total = steps * speed.step + validations * validation_seconds
    return (
        f"about {clock(total)} from here on: {steps:,} steps of {speed.step:.2g} s, as measured "
        f"in {speed.steps}, and {validations:,} validations of {windows:,} windows at a third of "
        "that per window; checkpoints come on top"
    )

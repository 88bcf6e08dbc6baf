"""What a run says at its start and its end: all that was resolved from the config; what came out.

A user who reads the first lines can tell a wrong file, batch or learning rate before the first
step. A restart logs one line in their place.
"""

import logging
import shlex
from dataclasses import asdict

import torch

from detalbert.engine.trial import StepTrial
from detalbert.errors import counted
from detalbert.run_page.run import REPORT, describe_run
from detalbert.sums import Json
from detalbert.training.metrics import RunMetrics
from detalbert.training.workload import Training, describe_model

log = logging.getLogger(__name__)


def say_start(trial: StepTrial, checkpoint: str | None) -> None:
    """Log the lines that open a run, or the one that opens a restart."""
    steps_done = trial.history.step
    if steps_done:
        ending = ""
        if steps_done == trial.steps:
            ending = ": the run is complete, nothing is trained"
        log.info(
            "resumed at step %d of %d from %s, on %s%s",
            steps_done,
            trial.steps,
            checkpoint,
            _hardware(trial),
            ending,
        )
        return
    for name, text in describe(trial).items():
        log.info("%-14s%s", name, text)


def describe(trial: StepTrial) -> dict[str, str]:
    """Return all that was read, counted and computed from the config, as named lines."""
    hparams = trial.hparams
    batch = hparams.global_batch_size
    summary = trial.data.summary()
    tokens = batch * summary.tokens / summary.windows
    # Linear scaling, with all its factors (StepHParams.learning_rate).
    rate = (
        f"{hparams.learning_rate():.3g} at the peak = {hparams.base_learning_rate:g} x {batch} / "
        f"{hparams.base_batch_size} x lr_scale {hparams.lr_scale:g}, {hparams.optimizer}, "
        f"weight decay {hparams.weight_decay:g}"
    )
    lines: dict[str, str] = {
        **summary.lines,
        "model": describe_model(trial),
        "device": f"{_hardware(trial)}, {_dtype_name(trial)}",
    }
    layout = trial.numeric_settings().get("layout")
    if layout is not None:  # of a sharded model
        lines["layout"] = str(layout)
    return lines | {
        "batch": f"{batch} windows, about {tokens:,.0f} tokens per step, "
        f"{trial.max_tokens:,} at most in one forward",
        "steps": f"{trial.steps:,} ({trial.meter.epochs(trial.steps):.2f} epochs), "
        f"{trial.warmup:,} of them warm-up, schedule {hparams.schedule}",
        "learning rate": rate,
        "seed": str(hparams.seed),
        "periods": f"validation {hparams.validation_period}, checkpoint "
        f"{hparams.checkpoint_period}, report {hparams.reporting_period} steps",
    }


def _dtype_name(trial: StepTrial) -> str:
    """Return the type of the model's products: float32, bfloat16 or float16."""
    return str(trial.dtype).removeprefix("torch.")


def _hardware(trial: StepTrial) -> str:
    device = trial.context.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    return f"{name}, {counted(trial.slots, 'slot')}"


def conclude(training: Training, trial: StepTrial, metrics: RunMetrics) -> None:
    """Log the best scores of a local run that is complete, write its page, and log where its files
    are. Rank 0 only.
    """
    best = metrics.best()
    assert best is not None  # its last step is validated
    trial.progress.say_best(best)
    log.info("metrics and checkpoints are in %s", metrics.path)

    # One file for a person, of what the others have for programs.
    path = shlex.quote(str(metrics.path))
    workload = training.workload
    commands = {use: text.format(path) for use, text in workload.commands.items()}
    answers = metrics.best_answers()
    outcomes = None
    if answers is not None and workload.outcomes is not None:
        outcomes = workload.outcomes(trial, answers)
    run = describe_run(
        trial,
        model=describe_model(trial),
        best=best,
        outcomes=outcomes,
        commands=commands,
        folder=metrics.path.name,
    )
    from detalbert.run_page.page import render_report  # with matplotlib, which takes a second

    metrics.write_report(render_report(run))
    log.info("report: %s", metrics.path / REPORT)
    log.info("charts: tensorboard --logdir %s", path)
    for command in list(commands.values())[:1]:
        log.info("next: %s", command)


def resolved(training: Training, trial: StepTrial) -> Json:
    """Return every value that the run uses, including defaults and computed values."""
    hparams = training.hparams
    return {
        "resolved": {
            "seed": hparams.seed,
            "peak_learning_rate": hparams.learning_rate(),
            "steps": trial.steps,
            "warmup_steps": trial.warmup,
            "epochs": trial.meter.epochs(trial.steps),
            "precision": _dtype_name(trial),
            "max_tokens_per_forward": trial.max_tokens,
            "slots": trial.slots,
        },
        "hyperparameters": asdict(hparams),
        "data": asdict(training.workload.parsers.data(training.config["data"])),
    }

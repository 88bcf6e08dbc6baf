"""Log lines at the start and the end of a run."""

import logging
import warnings
from dataclasses import asdict
from typing import Any

import torch
import transformers

from detalbert.engine.models import starts_from_scratch
from detalbert.engine.trial import StepTrial
from detalbert.training.workload import Training

log = logging.getLogger(__name__)


def quiet_libraries() -> None:
    """Silence logs of libraries that would interrupt the progress lines; keep their warnings."""
    transformers.utils.logging.disable_progress_bar()
    for name in ("determined", "transformers", "huggingface_hub"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message="Initializing zero-element tensors")  # an error comes


def say_start(training: Training, trial: StepTrial, done: int, checkpoint: str | None) -> None:
    """Log the lines that open a run, or the one that opens a restart after `done` steps."""
    if done:
        state = ": the run is complete, nothing is trained" if done == trial.steps else ""
        facts = done, trial.steps, checkpoint, _hardware(trial), state
        log.info("resumed at step %d of %d from %s, on %s%s", *facts)
        return
    for name, text in describe(trial).items():
        log.info("%-14s%s", name, text)
    warn_of_a_cpu(trial)


def warn_of_a_cpu(trial: StepTrial) -> None:
    """Log a warning if the config is one for a GPU, and there is none."""
    if trial.context.device.type != "cpu":
        return
    parameters = sum(p.numel() for p in trial.model.parameters())
    large = f"{parameters / 1e6:,.0f} M parameters"
    asked = {"compile: true": trial.hparams.compile, large: parameters > 100e6}
    if found := [name for name, holds in asked.items() if holds]:
        said = "no GPU, and a config for one (%s): a step may take minutes; see configs/local.yaml"
        log.warning(said, ", ".join(found))


def describe(trial: StepTrial) -> dict[str, str]:
    """Return all that was read, counted and computed from the config, as named lines."""
    hparams, data = trial.hparams, trial.data
    summary = data.summary()
    windows, batch = summary.windows, hparams.global_batch_size
    parameters = sum(p.numel() for p in trial.model.parameters())
    scratch = " from random weights" if starts_from_scratch(hparams, data.tokenizer) else ""
    named = f"{trial.model.config.model_type} of hyperparameters.model_config"
    named = hparams.model or getattr(hparams, "size", None) or named
    rate = (
        f"{hparams.learning_rate():.3g} at the peak = {hparams.base_learning_rate:g} x {batch} / "
        f"{hparams.base_batch_size} x lr_scale {hparams.lr_scale:g}, {hparams.optimizer}, "
        f"weight decay {hparams.weight_decay:g}"
    )
    tokens = batch * summary.tokens / windows
    return {
        **summary.lines,
        "model": f"{named}{scratch}, {parameters:,} parameters",
        "device": f"{_hardware(trial)}, {str(trial.dtype).removeprefix('torch.')}",
        **{name: text for name, text in trial.rounding().items() if name == "layout"},
        "batch": f"{batch} windows, about {tokens:,.0f} tokens per step, "
        f"{trial.max_tokens:,} at most in one forward",
        "steps": f"{trial.steps:,} ({trial.meter.epochs(trial.steps):.2f} epochs), "
        f"{trial.warmup:,} of them warm-up, schedule {hparams.schedule}",
        "learning rate": rate,
        "seed": str(hparams.seed),
        "periods": f"validation {hparams.validation_period}, checkpoint "
        f"{hparams.checkpoint_period}, report {hparams.reporting_period} steps",
    }


def _hardware(trial: StepTrial) -> str:
    device = trial.context.device
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    return f"{where}, {trial.slots} slot(s)"


def resolved(training: Training, trial: StepTrial) -> dict[str, Any]:
    """Return every value that the run uses, including defaults and computed values."""
    hparams = training.hparams
    return {
        "resolved": {
            "seed": hparams.seed,
            "peak_learning_rate": hparams.learning_rate(),
            "steps": trial.steps,
            "warmup_steps": trial.warmup,
            "epochs": trial.meter.epochs(trial.steps),
            "precision": str(trial.dtype).removeprefix("torch."),
            "max_tokens_per_forward": trial.max_tokens,
            "slots": trial.slots,
        },
        "hyperparameters": asdict(hparams),
        "data": asdict(training.workload.parsers.data(training.config["data"])),
    }

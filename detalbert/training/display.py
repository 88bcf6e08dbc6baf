"""Log lines at the start of a run: all that was read, counted and computed from the config.

A user who reads them can tell a wrong file, batch or learning rate before the first step. A restart
logs one line in their place.
"""

import logging
import warnings
from dataclasses import asdict

import torch
import transformers

from detalbert.engine.trial import StepTrial
from detalbert.run_page.run import count_parameters, describe_model
from detalbert.sums import Json
from detalbert.training.workload import Training

log = logging.getLogger(__name__)


def quiet_libraries() -> None:
    """Silence logs of libraries that would interrupt the progress lines; keep their warnings."""
    transformers.utils.logging.disable_progress_bar()
    for name in ("determined", "transformers", "huggingface_hub"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message="Initializing zero-element tensors")  # an error comes


def say_start(trial: StepTrial, steps_done: int, checkpoint: str | None) -> None:
    """Log the lines that open a run, or the one that opens a restart after `steps_done` steps."""
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
    warn_of_a_cpu(trial)


def warn_of_a_cpu(trial: StepTrial) -> None:
    """Log a warning if the config is one for a GPU, and there is none."""
    if trial.context.device.type != "cpu":
        return
    # What nobody would set for a CPU, or could wait for on one.
    signs = []
    if trial.hparams.compile:
        signs.append("compile: true")
    parameters = count_parameters(trial)
    if parameters > 100e6:
        signs.append(f"{parameters / 1e6:,.0f} M parameters")
    if signs:
        log.warning(
            "no GPU, and a config for one (%s): a step may take minutes; see configs/local.yaml",
            ", ".join(signs),
        )


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
    return f"{name}, {trial.slots} slot(s)"


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

"""What opens a run: libraries kept quiet, and the lines that say what was resolved."""

import logging
import warnings
from typing import Any

import torch
import transformers

from detalbert.engine.models import starts_from_scratch


def quiet_libraries() -> None:
    """Keep what others log out of the way of the progress lines; their warnings stay."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    transformers.utils.logging.disable_progress_bar()
    for name in ("determined", "transformers"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message=".*on_checkpoint_end.*", category=FutureWarning)


def describe(trial: Any) -> str:
    """The lines that open a run: all that was read, counted and computed from the config."""
    hparams, data = trial.hparams, trial.data
    summary = data.summary()
    windows, batch = summary.windows, hparams.global_batch_size
    parameters = sum(p.numel() for p in trial.model.parameters())
    scratch = " from random weights" if starts_from_scratch(hparams, data.tokenizer) else ""
    named = f"a {trial.model.config.model_type} of hyperparameters.model_config"
    named = hparams.model or getattr(hparams, "size", None) or named
    device = trial.context.device
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    rate = (
        f"{hparams.learning_rate():.3g} at the peak = {hparams.base_learning_rate:g} x {batch} / "
        f"{hparams.base_batch_size} x lr_scale {hparams.lr_scale:g}, {hparams.optimizer}"
    )
    tokens = batch * summary.tokens / windows
    lines = {
        **summary.lines,
        "model": f"{named}{scratch}, {parameters:,} parameters",
        "device": f"{where}, {trial.slots} slot(s), {str(trial.dtype).split('.')[1]}",
        "batch": f"{batch} windows, about {tokens:,.0f} tokens per step, "
        f"{trial.max_tokens:,} at most in one forward",
        "steps": f"{trial.steps:,} ({trial.steps * batch / windows:.2f} epochs), "
        f"{trial.warmup:,} of them warm-up",
        "learning rate": rate,
        "periods": f"validation {hparams.validation_period}, checkpoint "
        f"{hparams.checkpoint_period}, report {hparams.reporting_period} steps",
    }
    return "\n".join(f"{name:<14}{text}" for name, text in lines.items())

"""What a run shows: what was resolved, a progress bar or periodic lines, the scores."""

import logging
import sys
import time
import warnings
from collections.abc import Sequence
from typing import Any

import torch
import transformers
from determined import pytorch
from tqdm import tqdm

from detalbert.engine.models import starts_from_scratch


def quiet_libraries() -> None:
    """Keep what others log out of the way of the progress lines; their warnings stay."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    transformers.utils.logging.disable_progress_bar()
    for name in ("determined", "transformers"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message=".*on_checkpoint_end.*", category=FutureWarning)


class Progress(pytorch.PyTorchCallback):
    """Loss, learning rate, examples/s and time left, at every report of the chief.

    Args:
        steps: optimizer steps of the whole run.
        done: steps already behind a run that goes on.
        chief: the other ranks keep silent (Determined wants the same callbacks on every rank).
    """

    def __init__(self, steps: int, done: int, chief: bool) -> None:
        self.steps = steps
        self.done = done
        self.chief = chief
        self.bar: tqdm | None = None
        self.seconds = 0.0  # spent training, validation and checkpoints left out
        self.trained = 0  # steps in those seconds
        self.resumed_at = time.monotonic()

    def on_training_start(self) -> None:
        if self.chief and sys.stderr.isatty():
            self.bar = tqdm(total=self.steps, initial=self.done, unit="step", dynamic_ncols=True)
        self.resumed_at = time.monotonic()

    def on_training_workload_end(
        self, avg_metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]
    ) -> None:
        new = len(batch_metrics)
        self.done += new
        self.trained += new
        self.seconds += time.monotonic() - self.resumed_at
        facts = {
            "loss": f"{avg_metrics['loss']:.4f}",
            "lr": f"{avg_metrics['learning_rate']:.2e}",
            "examples/s": f"{avg_metrics['examples_per_second']:.1f}",
        }
        if self.bar is not None:
            self.bar.update(new)
            self.bar.set_postfix(facts)
        else:
            left = self.seconds / self.trained * (self.steps - self.done)
            text = "  ".join(f"{name} {value}" for name, value in facts.items())
            self.say(f"step {self.done}/{self.steps}  {text}  left {_clock(left)}")
        self.resumed_at = time.monotonic()

    def on_validation_end(self, metrics: dict[str, Any]) -> None:
        shown = ("exact", "f1", "HasAns_f1", "NoAns_exact", "best_f1")
        shown += ("mlm_accuracy", "mlm_baseline", "sop_accuracy", "span_accuracy", "loss")
        text = "  ".join(f"{key} {metrics[key]:.2f}" for key in shown if key in metrics)
        self.say(f"validation at step {self.done}:  {text}")
        self.resumed_at = time.monotonic()

    def on_checkpoint_upload_end(self, uuid: str) -> None:
        self.resumed_at = time.monotonic()

    def on_trial_shutdown(self) -> None:
        if self.bar is not None:
            self.bar.close()

    def say(self, line: str) -> None:
        """One line on standard error, above the bar where there is one."""
        if self.bar is not None:
            self.bar.write(line, file=sys.stderr)
        elif self.chief:
            print(line, file=sys.stderr, flush=True)


def _clock(seconds: float) -> str:
    """133 -> '2m13s', 7380 -> '2h03m'."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"


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


def summarize(validation: dict[str, float], order: Sequence[str]) -> str:
    """The scores of one validation, as a run prints them at its end, in this order."""
    scores = "  ".join(f"{name} {validation[name]:.2f}" for name in order if name in validation)
    return f"best validation (step {validation['steps']}):  {scores}"

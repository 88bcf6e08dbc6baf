"""Output of rank 0 during training: a progress bar or periodic lines, and the scores.

A line has what fits the WebUI's log unbroken; what does not fit is left out, for it is charted.
"""

import contextlib
import logging
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from determined import pytorch

from detalbert.engine.history import History
from detalbert.progress import Bar, clock, waiting

log = logging.getLogger(__name__)
LINE = 91  # characters that the WebUI shows unbroken at 1280 pixels, after container and rank
BAR = 55  # characters beside a bar: its name, a bar of some length, steps and time left
LEFT_OUT = ("GiB", "mfu", "norm", "windows/s", "tokens/s")  # where there is no room, in this order
SETTLED = 5  # steps of a start, after its first report, before it says how long the rest takes


class Progress(pytorch.PyTorchCallback):
    """Prints loss, learning rate, gradient norm, speed and time left; validations, checkpoints.

    The time left is estimated from this start's own steps, except its first report: those steps
    compile, warm caches, and wait for the loaders.

    Args:
        history: of the run, which counts its steps.
        steps: optimizer steps of the whole run.
        chief: whether this is rank 0, which alone prints.
        logged_metrics: names of the validation metrics to print, in this order.
    """

    def __init__(
        self, history: History, steps: int, chief: bool, logged_metrics: Sequence[str]
    ) -> None:
        self.history = history
        self.steps = steps
        self.chief = chief
        self.logged_metrics = logged_metrics
        self.bar: Bar | None = None  # while the loop runs
        self._waits = contextlib.ExitStack()
        self._first_report: int | None = None  # step of this start's first report
        self._seconds = 0.0  # spent training since then; no validation, no checkpoint

    def on_trial_startup(self, first_batch_idx: int, checkpoint_uuid: str | None) -> None:
        if self.chief and checkpoint_uuid:
            self._waits.enter_context(waiting("restoring the checkpoint"))

    def on_training_start(self) -> None:
        self._waits.close()
        if self.chief:
            bar = Bar("training", total=self.steps, unit="steps", done=self.history.step)
            self.bar = self._waits.enter_context(bar)
        self._resumed_at = time.monotonic()

    def on_step(self) -> None:
        """Count the steps of the bar, or of the line after a long silence, between two reports."""
        if self.bar is not None:
            self.bar.update(self.history.step - self.bar.n)

    def on_training_workload_end(self, avg_metrics: dict[str, Any], batch_metrics: Any) -> None:
        """Print a report: the means since the last one, given the metrics of each step."""
        step = self.history.step
        if self._first_report is None:
            self._first_report = step
        else:
            self._seconds += time.monotonic() - self._resumed_at
        self._warn_of_losses(avg_metrics)

        values = format_report(avg_metrics, batch_metrics[-1])
        if self.bar is not None and sys.stderr.isatty():
            # Of standard error, where the bar is; standard output may be a file.
            room = os.get_terminal_size(sys.stderr.fileno()).columns - BAR
            self.bar.set_postfix_str(join_fitting(values, room))
        else:
            # The first steps of a start are slow, and say nothing of the rest.
            timed_steps = step - self._first_report
            if timed_steps >= SETTLED and step < self.steps:
                seconds_per_step = self._seconds / timed_steps
                values["left"] = clock(seconds_per_step * (self.steps - step))
            self.say(format_step(f"step {step}/{self.steps}", values))
        self._resumed_at = time.monotonic()

    def _warn_of_losses(self, metrics: Mapping[str, Any]) -> None:
        """Log a warning if losses or gradients since the last report were not finite."""
        if not self.chief:
            return
        if metrics.get("skipped_steps"):
            log.warning(
                "%d step(s) had no finite gradient, taken as zero", metrics["skipped_steps"]
            )
        if metrics.get("uncounted_windows"):
            log.warning(
                "step %d: the loss of %d window(s) is not finite, though its gradient is: look at "
                "the losses that row_loss returns",
                self.history.step,
                metrics["uncounted_windows"],
            )

    def on_validation_end(self, metrics: dict[str, float]) -> None:
        head = f"validation at step {self.history.step}:"
        self.say(format_scores(metrics, names=self.logged_metrics, head=head))
        self._resumed_at = time.monotonic()

    def on_checkpoint_upload_end(self, uuid: str) -> None:
        self.say(f"checkpoint at step {self.history.step}: {uuid}")
        self._resumed_at = time.monotonic()

    def on_trial_shutdown(self) -> None:
        self._waits.close()

    def say_best(self, best: Mapping[str, float]) -> None:
        """Log the best validation of a finished run."""
        head = f"best validation (step {best['steps']:.0f}):"
        self.say(format_scores(best, names=self.logged_metrics, head=head))

    def say(self, line: str) -> None:
        if self.chief:
            log.info("%s", line)


def format_report(means: Mapping[str, float], last_step: Mapping[str, float]) -> dict[str, str]:
    """Return the values of a report by the names they are printed under, most important first."""
    values = {
        "loss": f"{means['loss']:.4f}",
        # Of the last step: the mean of the report, which is charted, is an earlier step's.
        "lr": f"{last_step['learning_rate_1e6'] / 1e6:.2e}",
    }
    if "grad_norm" in means:
        values["norm"] = f"{means['grad_norm']:.2f}"
    if "tokens_per_second" in means:
        values["tokens/s"] = f"{means['tokens_per_second']:.0f}"
    else:
        values["windows/s"] = f"{means['examples_per_second']:.1f}"
    if "mfu" in means:
        values["mfu"] = f"{means['mfu']:.2f}"
    if "memory_gib" in means:
        values["GiB"] = f"{means['memory_gib']:.1f}"
    return values


def format_step(head: str, values: Mapping[str, str]) -> str:
    """Return `head` and the values of a report, as many as fit a line of the WebUI."""
    return f"{head}  {join_fitting(values, LINE - len(head) - 2)}"


def join_fitting(values: Mapping[str, str], room: int) -> str:
    """Return the values of a report, without those charted ones for which there is no `room`."""
    printed = dict(values)
    for name in ("", *LEFT_OUT):
        printed.pop(name, None)
        text = "  ".join(f"{key} {value}" for key, value in printed.items())
        if len(text) <= room:
            break
    return text


def format_scores(metrics: Mapping[str, float], names: Sequence[str], head: str) -> str:
    """Return `head` and the validation metrics named in `names`, in this order, as many as fit a
    line of the WebUI: "validation at step 9:  exact 83.67  f1 84.27".
    """
    line = head
    for name in names:
        if name not in metrics:
            continue
        longer = f"{line}  {name} {metrics[name]:.2f}"
        if len(longer) <= LINE:
            line = longer
    return line

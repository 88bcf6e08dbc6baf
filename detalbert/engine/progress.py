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
from detalbert.progress import Bar, waiting

log = logging.getLogger(__name__)
LINE = 91  # characters that the WebUI shows unbroken at 1280 pixels, after container and rank
BAR = 55  # characters beside a bar: its name, a bar of some length, steps and time left
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
        if self.chief and avg_metrics.get("skipped_steps"):
            log.warning(
                "steps without a finite gradient, taken as zero: %d", avg_metrics["skipped_steps"]
            )

        values = format_report(avg_metrics, batch_metrics[-1], left=self._time_left())
        if self.bar is not None and sys.stderr.isatty():
            # Of standard error, where the bar is; standard output may be a file.
            room = os.get_terminal_size(sys.stderr.fileno()).columns - BAR
            self.bar.set_postfix_str(format_line("", values, room).strip())
        else:
            self.say(format_line(f"step {step}/{self.steps}", values))
            if self.bar is not None:
                self.bar.last_print_t = time.time()  # its line comes after a silence
        self._resumed_at = time.monotonic()

    def _time_left(self) -> str:
        """Return the time that the rest of the run takes, "" if it is not known, or on the bar."""
        steps_left = self.steps - self.history.step
        # The first steps of a start are slow, and say nothing of the rest.
        timed_steps = self.history.step - (self._first_report or 0)
        on_a_bar = self.bar is not None and sys.stderr.isatty()
        if on_a_bar or timed_steps < SETTLED or not steps_left:
            return ""
        return Bar.format_interval(self._seconds / timed_steps * steps_left)

    def on_validation_end(self, metrics: dict[str, float]) -> None:
        self._say_scores(f"validation at step {self.history.step}:", metrics)
        self._resumed_at = time.monotonic()

    def on_checkpoint_upload_end(self, uuid: str) -> None:
        self.say(f"checkpoint at step {self.history.step}: {uuid}")
        self._resumed_at = time.monotonic()

    def on_trial_shutdown(self) -> None:
        self._waits.close()

    def say_best(self, best: Mapping[str, float]) -> None:
        """Log the best validation of a finished run."""
        self._say_scores(f"best validation (step {best['steps']:.0f}):", best)

    def _say_scores(self, head: str, metrics: Mapping[str, float]) -> None:
        scores = {name: f"{metrics[name]:.2f}" for name in self.logged_metrics if name in metrics}
        self.say(format_line(head, scores))

    def say(self, line: str) -> None:
        if self.chief:
            log.info("%s", line)


def format_report(
    means: Mapping[str, float], last_step: Mapping[str, float], left: str
) -> dict[str, str]:
    """Return the values of a report by the names they are printed under, most important first."""
    # The rate is of the last step: the mean of the report, which is charted, is an earlier step's.
    values = {"loss": f"{means['loss']:.4f}", "lr": f"{last_step['learning_rate_1e6'] / 1e6:.2e}"}
    if "grad_norm" in means:
        values["norm"] = f"{means['grad_norm']:.2f}"
    if "tokens_per_second" in means:
        values["tokens/s"] = f"{means['tokens_per_second']:.0f}"
    else:
        values["windows/s"] = f"{means['examples_per_second']:.1f}"
    if left:
        values["left"] = left
    # Of GPUs; last, as a line may have no room for them.
    if "mfu" in means:
        values["mfu"] = f"{means['mfu']:.2f}"
    if "memory_gib" in means:
        values["GiB"] = f"{means['memory_gib']:.1f}"
    return values


def format_line(head: str, values: Mapping[str, str], room: int = LINE) -> str:
    """Return `head` and the values, each under its name, that fit `room` characters: "validation at
    step 9:  exact 83.67  f1 84.27".
    """
    line = head
    for name, value in values.items():
        longer = f"{line}  {name} {value}"
        if len(longer) <= room:
            line = longer
    return line

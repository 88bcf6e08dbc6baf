"""Output of rank 0 during training: a progress bar or periodic lines, and the scores."""

import contextlib
import logging
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from determined import pytorch

from detalbert.waiting import Wait, clock, waiting

log = logging.getLogger(__name__)
LINE = 91  # characters that the WebUI shows unbroken at 1280 pixels, after container and rank
SETTLED = 5  # steps of a start, after its first report, before it says how long the rest takes


class Progress(pytorch.PyTorchCallback):
    """Prints loss, learning rate, gradient norm, speed and time left; validations, checkpoints.

    The time left is estimated from this start's own steps, except its first report: those steps
    compile, warm caches, and wait for the loaders.

    Args:
        steps: optimizer steps of the whole run.
        done: steps completed before this start.
        chief: whether this is rank 0, which alone prints.
        shown: names of the validation metrics to print, in this order.
    """

    def __init__(self, steps: int, done: int, chief: bool, shown: Sequence[str]) -> None:
        self.steps, self.done, self.chief, self.shown = steps, done, chief, shown
        self.wait = Wait("training", steps, "steps", done)
        self._waits = contextlib.ExitStack()
        self.reports = 0  # of this start
        self.seconds = 0.0  # spent training since the first report; no validation, no checkpoint
        self.trained = 0  # steps in those seconds

    def on_trial_startup(self, first_batch_idx: int, checkpoint_uuid: str | None) -> None:
        if self.chief and checkpoint_uuid:
            self._waits.enter_context(waiting("restoring the checkpoint"))

    def on_training_start(self) -> None:
        self._waits.close()
        if self.chief:
            self.wait.start()
            self._waits.callback(self.wait.end)
        self.resumed_at = time.monotonic()

    def on_training_workload_end(self, avg_metrics: dict[str, Any], batch_metrics: Any) -> None:
        new = len(batch_metrics)
        self.done += new
        if self.reports:
            self.trained += new
            self.seconds += time.monotonic() - self.resumed_at
        self.reports += 1
        if self.chief and (skipped := avg_metrics.get("skipped_steps")):
            log.warning("%d step(s) had no finite gradient and changed nothing", skipped)
        facts = {
            "loss": f"{avg_metrics['loss']:.4f}",
            # Of the last step: the mean of the report, which is charted, is an earlier step's.
            "lr": f"{batch_metrics[-1]['learning_rate_1e6'] / 1e6:.2e}",
        }
        speeds = ("tokens/s", "tokens_per_second", 0), ("windows/s", "examples_per_second", 1)
        speed = next(speed for speed in speeds if speed[1] in avg_metrics)
        more = ("norm", "grad_norm", 2), speed, ("mfu", "mfu", 2), ("GiB", "memory_gib", 1)
        for name, metric, digits in more:
            if metric in avg_metrics:
                facts[name] = f"{avg_metrics[metric]:.{digits}f}"
        if self.wait.bar is not None:
            self.wait.bar.set_postfix(facts)
        else:
            if self.trained >= SETTLED and self.done < self.steps:
                facts["left"] = clock(self.seconds / self.trained * (self.steps - self.done))
            self.say(format_step(f"step {self.done}/{self.steps}", facts))
        self.resumed_at = time.monotonic()

    def on_validation_end(self, metrics: dict[str, Any]) -> None:
        style = format_table if sys.stderr.isatty() else format_scores
        self.say(style(metrics, self.shown, f"validation at step {self.done}:"))
        self.resumed_at = time.monotonic()

    def on_checkpoint_upload_end(self, uuid: str) -> None:
        self.say(f"checkpoint at step {self.done}: {uuid}")
        self.resumed_at = time.monotonic()

    def on_trial_shutdown(self) -> None:
        self._waits.close()

    def say_best(self, best: Mapping[str, float]) -> None:
        """Log the best validation of a finished run."""
        self.say(format_scores(best, self.shown, f"best validation (step {best['steps']:.0f}):"))

    def say(self, line: str) -> None:
        if self.chief:
            log.info("%s", line)


def format_step(head: str, values: Mapping[str, str]) -> str:
    """Return `head` and the values of a report, without the charted ones that the WebUI's line has
    no room for.
    """
    shown = dict(values)
    for name in ("", "GiB", "mfu", "norm"):  # in the order in which they are left out
        shown.pop(name, None)
        line = "  ".join([head, *(f"{name} {value}" for name, value in shown.items())])
        if len(line) <= LINE:
            break
    return line


def format_scores(metrics: Mapping[str, float], shown: Sequence[str], head: str) -> str:
    """Return `head` and the validation metrics named in `shown`, in this order, as many as fit a
    line of the WebUI: "validation at step 9:  exact 83.67  f1 84.27".
    """
    line = head
    for name in shown:
        if name in metrics and len(longer := f"{line}  {name} {metrics[name]:.2f}") <= LINE:
            line = longer
    return line


def format_table(metrics: Mapping[str, float], shown: Sequence[str], head: str) -> str:
    """Return `head`, and below it the metrics named in `shown` as a table of names and numbers."""
    table = [(name.rjust(6), f"{metrics[name]:.2f}") for name in shown if name in metrics]
    names = "  ".join(name for name, _ in table)
    return f"{head}\n{names}\n" + "  ".join(value.rjust(len(name)) for name, value in table)

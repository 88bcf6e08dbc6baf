"""Output of rank 0 during training: a progress bar or periodic lines, and the scores."""

import contextlib
import logging
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from determined import pytorch
from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

log = logging.getLogger(__name__)
LINE = 100 - len("INFO: ")  # characters of a line that the WebUI shows unbroken at 1280 pixels
SETTLED = 5  # steps of a start, after its first report, before it says how long the rest takes


class Progress(pytorch.PyTorchCallback):
    """Prints loss, learning rate, examples/s and time left; validations, checkpoints.

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
        self.bar: tqdm | None = None
        self.reports = 0  # of this start
        self.seconds = 0.0  # spent training since the first report; no validation, no checkpoint
        self.trained = 0  # steps in those seconds
        self._shown = contextlib.ExitStack()

    def on_training_start(self) -> None:
        if self.chief and sys.stderr.isatty():
            self.bar = tqdm(total=self.steps, initial=self.done, unit="step", dynamic_ncols=True)
            self._shown.enter_context(logging_redirect_tqdm())  # lines go above the bar
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
            "lr": f"{avg_metrics['learning_rate_1e6'] / 1e6:.2e}",
            "examples/s": f"{avg_metrics['examples_per_second']:.1f}",
        }
        for name, metric, digits in (("mfu", "mfu", 2), ("GiB", "memory_gib", 1)):
            if metric in avg_metrics:
                facts[name] = f"{avg_metrics[metric]:.{digits}f}"
        if self.bar is not None:
            self.bar.update(new)
            self.bar.set_postfix(facts)
        else:
            if self.trained >= SETTLED:
                facts["left"] = _clock(self.seconds / self.trained * (self.steps - self.done))
            text = "  ".join(f"{name} {value}" for name, value in facts.items())
            self.say(f"step {self.done}/{self.steps}  {text}")
        self.resumed_at = time.monotonic()

    def on_validation_end(self, metrics: dict[str, Any]) -> None:
        self.say(format_scores(metrics, self.shown, f"validation at step {self.done}:"))
        self.resumed_at = time.monotonic()

    def on_checkpoint_upload_end(self, uuid: str) -> None:
        self.say(f"checkpoint at step {self.done}: {uuid}")
        self.resumed_at = time.monotonic()

    def on_trial_shutdown(self) -> None:
        if self.bar is not None:
            self.bar.close()
            self._shown.close()

    def say(self, line: str) -> None:
        if self.chief:
            log.info("%s", line)


def _clock(seconds: float) -> str:
    """Format seconds: 133 as '2m13s', 7380 as '2h03m'."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"


def format_scores(metrics: Mapping[str, float], shown: Sequence[str], head: str) -> str:
    """Return `head` and the validation metrics named in `shown`, in this order, as many as fit a
    line of the WebUI: "validation at step 9:  exact 83.67  f1 84.27".
    """
    line = head
    for name in shown:
        if name in metrics and len(longer := f"{line}  {name} {metrics[name]:.2f}") <= LINE:
            line = longer
    return line

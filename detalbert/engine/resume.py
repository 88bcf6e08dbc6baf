"""Resuming a run: what a checkpoint holds besides Determined's state, and what is restored of it.

Determined restores weights, optimizer, schedule and position. Results also depend on settings that
the config may leave to the machine: threads, tokens per forward, compiled layers. They are saved
too, so that a restart elsewhere rounds as the first start did; the price is that a run keeps what
suited its first machine. Of another trial's checkpoint only the weights are loaded.
"""

import logging
import platform
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import determined
import torch
from determined import pytorch
from loky import cpu_count

from detalbert.engine.cpu import set_threads
from detalbert.settings.hparams import StepHParams

if TYPE_CHECKING:
    from detalbert.engine.trial import StepTrial

log = logging.getLogger(__name__)
CALLBACK = "handover"  # interface: the name of ResumeCallback in checkpoints
SavedState = Mapping[str, Any]  # of ResumeCallback, in a checkpoint; empty in one of other code


class ResumeCallback(pytorch.PyTorchCallback):
    """Restores settings that affect rounding on a restart, and only weights on a warm start.

    Determined loads another trial's checkpoint (`searcher.source_trial_id`, in the WebUI "Continue
    Trial in New Experiment") as for a restart: the schedule would be at its end. Only the weights
    are loaded, as its documentation says.

    Args:
        context: of Determined.
        hparams: of this start.
        trial: which saves and restores; its attributes may be set later.
    """

    def __init__(
        self, context: pytorch.PyTorchTrialContext, hparams: StepHParams, trial: "StepTrial"
    ) -> None:
        self.context = context
        self.hparams = hparams
        self.trial = trial
        self.on_cpu = context.device.type == "cpu"  # a GPU's bits do not depend on threads
        info = determined.get_cluster_info()
        self.trial_id: int | None = None  # of a local run
        if info is not None and info.task_type == "TRIAL":
            self.trial_id = info.trial.trial_id
        self.threads = set_threads(hparams.threads, context.distributed)
        self.threads_reason = f"hyperparameters.threads: {hparams.threads}"
        self.machine = _describe_machine(context)
        # Of a restart: settings of the run's first start, and the optimizer's of this config.
        self.saved_settings: dict[str, object] = {}
        self.configured_groups: list[dict[str, Any]] = []

    def state_dict(self) -> dict[str, Any]:
        return {
            "threads": self.threads,
            "trial": self.trial_id,
            "not_finite": int(self.trial.finite.streak),  # steps in a row, up to this one
            # What the run began with wins, over all restarts.
            **self._numeric_settings(),
            **self.saved_settings,
        }

    def _numeric_settings(self) -> dict[str, object]:
        """Return the settings of this start that change the bits of results, besides the config."""
        # The machine's versions and device choose kernels, its ranks how sums are split.
        settings = {**self.trial.numeric_settings(), **self.machine}
        if self.on_cpu:
            settings["threads"] = self.threads
        return settings

    def on_checkpoint_load_start(self, checkpoint: dict[str, Any]) -> None:
        """Restore from the trial's own checkpoint, before Determined loads it. Of another trial's,
        replace all but the weights by this start's state: Determined loads whatever is there.
        """
        saved = checkpoint.get("callbacks", {}).get(CALLBACK) or {}
        if self.is_own(saved):
            return self.restore(saved)
        checkpoint["optimizers_state_dict"] = [self.trial.optimizer.state_dict()]
        checkpoint["lr_schedulers_state_dict"] = [
            scheduler.state_dict() for scheduler in self.context.lr_schedulers
        ]
        checkpoint["scaler_state_dict"] = self.trial.scaler.state_dict()
        checkpoint["callbacks"] = {}
        self._log("warm start", "another trial's weights; optimizer and schedule begin anew")

    def is_own(self, saved: SavedState) -> bool:
        """Return whether a checkpoint is this trial's own, by this callback's state in it."""
        return bool(saved) and saved["trial"] == self.trial_id

    def restore(self, saved: SavedState) -> None:
        """Restore what the config leaves to the run from this callback's state in the trial's own
        checkpoint. Call once, after `is_own`.
        """
        if self.on_cpu and self.hparams.threads == "auto":
            self.threads = set_threads(saved["threads"])
            self.threads_reason = "as the run began"
        self.trial.finite.resume(saved["not_finite"])
        names = self._numeric_settings()
        self.saved_settings = {name: saved[name] for name in names if name in saved}
        for group in self.trial.optimizer.param_groups:
            settings = {name: value for name, value in group.items() if name != "params"}
            self.configured_groups.append(settings)

        # How a forward is cut and compiled makes its rounding, too.
        if self.hparams.max_tokens_per_forward == "auto":
            tokens = saved["max_tokens_per_forward"]
            if saved["device"] != self.machine["device"]:  # another GPU may have room for more
                tokens = min(tokens, self.trial.max_tokens)
            self.trial.max_tokens = tokens
        if self.hparams.compile is None and saved.get("compile") is False:
            self.trial.run_uncompiled(saved["row_multiple"])

    def on_training_start(self) -> None:
        """Log the number of threads at the first start, or if they are more than the cores. After a
        restart apply the config's rate, decay and betas, and log what has changed.
        """
        first_step = self.trial.history.step
        if self.saved_settings:
            self._apply_configured_groups(first_step)
        slots = self.context.distributed.local_size
        cores = cpu_count()
        text = f"{self.threads} a slot ({self.threads_reason})"
        if self.threads * slots > cores:
            text += f"; slots here: {slots}, cores: {cores}, so it is slow"
            self._log("threads", text, level=logging.WARNING)
        elif first_step == 0:
            self._log("threads", text)
        if self.saved_settings:
            self._log_changed_settings()

    def _apply_configured_groups(self, first_step: int) -> None:
        """Set rate, decay and betas to the config's, which a run of another length or `det
        experiment continue` may have changed.
        """
        # The checkpoint's schedule has the old peak rates, and its optimizer the old settings.
        schedule = self.trial.schedule
        param_groups = self.trial.optimizer.param_groups
        schedule.base_lrs = [configured["initial_lr"] for configured in self.configured_groups]
        old_rate = param_groups[0]["lr"]
        for group, configured, factor in zip(
            param_groups, self.configured_groups, schedule.lr_lambdas, strict=True
        ):
            group.update(configured)
            group["lr"] = configured["initial_lr"] * factor(schedule.last_epoch)

        new_rate = param_groups[0]["lr"]
        if new_rate != old_rate:
            self._log(
                "learning rate",
                f"{old_rate:.3g} -> {new_rate:.3g} at step {first_step}, "
                "as length, schedule or peak changed",
            )

    def _log_changed_settings(self) -> None:
        """Log a warning if this start's results are rounded in another way than the run's first."""
        settings = self._numeric_settings()
        changes = []
        for name, saved in self.saved_settings.items():
            if saved != settings[name]:
                changes.append(f"{name} {saved} -> {settings[name]}")
        if not changes:
            return
        text = ", ".join(changes)
        text += ": the run goes on; its rounding may differ from an uncut one's"
        if self.saved_settings.get("slots", settings["slots"]) != settings["slots"]:
            text += ", as will the masks of dropout"
        self._log("restart", text, level=logging.WARNING)

    def _log(self, name: str, text: str, level: int = logging.INFO) -> None:
        """Log on rank 0 alone, as a line of a table."""
        if self.context.distributed.rank == 0:
            log.log(level, "%-14s%s", name, text)


def _describe_machine(context: pytorch.PyTorchTrialContext) -> dict[str, object]:
    """Return versions, kinds of device and number of ranks. Collective."""
    if context.device.type == "cuda":
        device = torch.cuda.get_device_name(context.device)
    else:
        device = f"CPU with {torch.backends.cpu.get_cpu_capability()}"  # AVX2 or AVX512, say
    devices = set(context.distributed.allgather(device))
    return {
        "torch": str(torch.__version__),
        "Python": platform.python_version(),
        "device": ", ".join(sorted(devices)),
        "slots": context.distributed.size,
    }

"""Checkpoint contents on load: everything for a restart, only the weights for another trial."""

import logging
import platform
from typing import Any

import determined
import torch
from determined import pytorch
from torch.distributed.tensor import DTensor

from detalbert.engine.cpu import set_threads
from detalbert.errors import UserError
from detalbert.processes import count_cores
from detalbert.settings.hparams import StepHParams

log = logging.getLogger(__name__)


class Handover(pytorch.PyTorchCallback):
    """Restores settings that affect rounding on a restart, and only weights on a warm start.

    Determined loads another trial's checkpoint (`searcher.source_trial_id`, in the WebUI "Continue
    Trial in New Experiment") as for a restart: the schedule would be at its end. Only the weights
    are loaded, as its documentation says. `trained` is the trial.
    """

    def __init__(
        self, context: pytorch.PyTorchTrialContext, hparams: StepHParams, trained: Any
    ) -> None:
        self.context, self.hparams, self.trained = context, hparams, trained
        self.chief = context.distributed.rank == 0
        self.cpu = context.device.type == "cpu"  # a GPU's bits do not depend on threads
        info = determined.get_cluster_info()
        self.trial = info.trial.trial_id if info and info.task_type == "TRIAL" else None
        fresh = context.get_initial_batch() == 0
        self.threads = set_threads(hparams.threads, context.distributed, fresh)
        self.notes = f"hyperparameters.threads: {hparams.threads}"
        self.machine = _describe_machine(context)
        self.began: dict[str, Any] = {}  # of a restart: `_rounding` of the run's first start

    def state_dict(self) -> dict[str, Any]:
        own = {
            "threads": self.threads,
            "trial": self.trial,
            "warmup": self.trained.warmup,
            "not_finite": int(self.trained.finite.streak),  # steps in a row, up to this one
        }
        if not getattr(self.trained.model.config, "segments", True):
            own["segments"] = False
        return {**own, **self._rounding(), **self.began}

    def _rounding(self) -> dict[str, Any]:
        threads = {"threads": self.threads} if self.cpu else {}
        return {**self.trained.rounding(), **self.machine, **threads}

    def on_trial_startup(self, first_batch_idx: int, checkpoint_uuid: str | None) -> None:
        self.first_step = first_batch_idx
        groups = self.context.optimizers[0].param_groups
        self.recipe = [{k: v for k, v in group.items() if k != "params"} for group in groups]

    def on_checkpoint_load_start(self, checkpoint: dict[str, Any]) -> None:
        """Remove all but the weights from another trial's checkpoint before it is loaded."""
        if not self.is_own_checkpoint(checkpoint.get("callbacks", {}).get("handover") or {}):
            self._keep_weights(checkpoint)

    def is_own_checkpoint(self, kept: dict[str, Any]) -> bool:
        """Return whether a checkpoint is this trial's own, by `kept`, this callback's state in it.

        If so, restore its thread count (CPU only) and the other settings that affect rounding.
        """
        # A checkpoint of an older version does not say whose it is.
        same = kept["trial"] == self.trial if kept else self.trial is None or self.first_step > 0
        if same:
            self._restore(kept)
        return same

    def _restore(self, kept: dict[str, Any]) -> None:
        """Restore settings that the config leaves to the run; old versions saved none of them."""
        if self.cpu and self.hparams.threads == "auto" and (threads := kept.get("threads")):
            self.threads, self.notes = set_threads(threads), "as the run began"
        self.trained.keep_warmup(kept.get("warmup", self.trained.warmup))
        self.trained.finite.resume(kept.get("not_finite", 0))
        config = self.trained.model.config
        if hasattr(config, "segments") and kept.get("segments", True):
            del config.segments  # of an older version, which trained with segments at any rate
        self.began = began = {key: kept[key] for key in self._rounding() if key in kept}
        here = self.trained.max_tokens
        tokens = began.get("max_tokens_per_forward", here)
        if began.get("device") != self.machine["device"]:
            tokens = min(tokens, here)  # another kind of GPU may have room for more
        if self.hparams.max_tokens_per_forward == "auto":
            self.trained.max_tokens = tokens
        if self.hparams.compile is None and began.get("compile") is False:
            self.trained.forward.run_uncompiled(began["row_multiple"])

    def _keep_weights(self, checkpoint: dict[str, Any]) -> None:
        (model,), (weights,) = self.context.models, checkpoint["models_state_dict"]
        own, loaded = ({k: v.shape for k, v in w.items()} for w in (model.state_dict(), weights))
        if wrong := [name for name in own | loaded if own.get(name) != loaded.get(name)]:
            said = f"{wrong[0]} of the source checkpoint is not of this model"
            cure = "set source_trial_id or source_checkpoint_uuid to one of the same model"
            raise UserError(f"searcher: {said}; {cure}")
        for key in ("optimizers", "lr_schedulers"):
            checkpoint[f"{key}_state_dict"] = [x.state_dict() for x in getattr(self.context, key)]
        if "scaler_state_dict" in checkpoint:
            checkpoint["scaler_state_dict"] = self.trained.scaler.state_dict()
        checkpoint.get("callbacks", {}).pop("early_stopping", None)
        self._say("warm start", "another trial's weights; optimizer and schedule begin anew")

    def on_checkpoint_save_start(self, checkpoint: dict[str, Any]) -> None:
        """Raise UserError if a parameter is sharded: Determined's own loop, which calls this on
        rank 0, would silently save rank 0's shard only, and restore it on every rank.
        """
        (model,) = self.context.models
        for name, parameter in model.named_parameters():
            if isinstance(parameter, DTensor) and parameter.to_local().shape != parameter.shape:
                said = f"{name} is split over processes and would be saved in part"
                raise UserError(f"checkpoint: {said}; run this trial with train.py")

    def on_training_start(self) -> None:
        """Set rate, decay and betas to the config's, which `det experiment continue` may have
        changed; log threads and changes.
        """
        optimizer, scheduler = self.trained.optimizer, self.trained.schedule
        scheduler.base_lrs = [fresh["initial_lr"] for fresh in self.recipe]
        was = optimizer.param_groups[0]["lr"]
        groups = zip(optimizer.param_groups, self.recipe, scheduler.lr_lambdas, strict=True)
        for group, fresh, factor in groups:
            group.update(fresh, lr=fresh["initial_lr"] * factor(scheduler.last_epoch))
        if was != (now := optimizer.param_groups[0]["lr"]):
            text = f"{was:.3g} -> {now:.3g} at step {self.first_step}, as length, schedule or peak"
            self._say("learning rate", f"{text} changed")
        slots, cores = self.context.distributed.local_size, count_cores()
        text = f"{self.threads} a slot ({self.notes})"
        slow = self.threads * slots > cores
        if slow:
            text += f"; this machine has {cores} core(s) for {slots} slot(s), so it is slow here"
        if self.first_step == 0 or slow:
            self._say("threads", text, logging.WARNING if slow else logging.INFO)
        now = self._rounding()
        changed = {k: f"{k} {was} -> {now[k]}" for k, was in self.began.items() if was != now[k]}
        if changed:
            text = f"{', '.join(changed.values())}: the run goes on; its rounding may differ from "
            text += "an uncut one's" + ", as will the masks of dropout" * ("slots" in changed)
            self._say("restart", text, logging.WARNING)

    def _say(self, name: str, text: str, level: int = logging.INFO) -> None:
        if self.chief:
            log.log(level, "%-14s%s", name, text)


def _describe_machine(context: pytorch.PyTorchTrialContext) -> dict[str, Any]:
    device = context.device
    name = f"CPU with {torch.backends.cpu.get_cpu_capability()}"  # AVX2 or AVX512, say
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    return {
        "torch": str(torch.__version__),
        "Python": platform.python_version(),
        "device": ", ".join(sorted(set(context.distributed.allgather(name)))),
        "slots": context.distributed.size,
    }

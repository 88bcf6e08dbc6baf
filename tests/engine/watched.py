"""Complete runs of train.py in this process, watched step by step and stopped on request."""

import hashlib
import os
import signal

import torch

import train
from detalbert.engine.trial import StepTrial

WARM_UP = 2  # steps of a start in which it may wait for the device
train_batch = StepTrial.train_batch


class Watched:
    """Runs of a config, each in an output folder of its own.

    A step must not compile anything anew, but for the first one of a start, and must not wait for
    the device after WARM_UP of them.
    """

    def __init__(self, config, monkeypatch):
        self.config = config
        self.cut = 0  # step after which the run is stopped; 0: none
        self.starts = 0  # of train.py
        self.devices = set()
        self.trial = None  # of the last start
        monkeypatch.setattr(StepTrial, "train_batch", self.step())

    def step(self):
        """The method that stands in for `train_batch`."""

        def watched(trial, batch, epoch_idx, batch_idx):
            self.trial = trial
            self.devices.add(trial.context.device.type)
            steps_here = batch_idx - trial.context.get_initial_batch()
            refuse_waits(steps_here >= WARM_UP)
            try:
                with torch._dynamo.config.patch(error_on_recompile=steps_here > 0):
                    return train_batch(trial, batch, epoch_idx, batch_idx)
            finally:
                refuse_waits(False)
                if batch_idx + 1 == self.cut:
                    os.kill(os.getpid(), signal.SIGTERM)

        return watched

    def weights_after(self, folder, cuts=()):
        """The hash of the weights of a run that is stopped after each of these steps."""
        command = ["--config", str(self.config), "--output-dir", str(folder)]
        for cut in cuts:
            self.start(command, cut=cut, status=128 + signal.SIGTERM)
        self.start(command, cut=0, status=0)
        return hash_of(self.trial.model)

    def start(self, command, cut, status):
        torch._dynamo.reset()  # each start is a process: none finds the code of another
        self.starts += 1
        self.cut = cut
        assert train.main(command) == status


def refuse_waits(refuse):
    """Have torch fail, or not, where the host waits for a GPU."""
    if torch.cuda.is_available():
        torch.cuda.set_sync_debug_mode("error" if refuse else "default")


def hash_of(model):
    """Of all weights, which must be finite; their gradients must be fp32."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        assert parameter.grad is not None
        assert parameter.grad.dtype is torch.float32
        weight = getattr(parameter.detach(), "to_local", parameter.detach)().cpu()
        assert torch.isfinite(weight).all()
        digest.update(weight.numpy().tobytes())
    return digest.hexdigest()

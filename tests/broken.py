"""train.py with a part switched off that makes a restart exact, a gradient broken, or a stop.

    python -m tests.broken rng|order|position|gradient|early|alone|none TRAIN-ARGUMENTS...
    GO_ON=FILE python -m tests.broken start|validation|checkpoint TRAIN-ARGUMENTS...

`tests.chaos --without PART` runs this in the trainer's place and must then see a difference.
"""

import os
import runpy
import signal
import sys
import time

import numpy as np
import torch
from determined import pytorch

from detalbert.engine import order, trial
from detalbert.engine.gradients import local_part
from detalbert.engine.order import Steps
from detalbert.engine.packed_trial import PackedTrial
from detalbert.engine.trial import StepTrial
from detalbert.training import local
from detalbert.training.workload import Training


def switch_off(part):
    if part == "rng":  # Determined's own restore gives every rank the chief's generator
        trial.seed_step = lambda *_: None
    elif part == "order":  # a sampler's own shuffle, new in every process
        own = np.random.default_rng()
        order.TrainOrder._permute = lambda train, _: own.permutation(len(train))  # type: ignore[method-assign]
        order.ShardOrder._permute = lambda shards, *_: own.permutation(len(shards))  # type: ignore[method-assign]
    elif part == "position":  # the data starts over
        trial.Steps = lambda order, slot, first: Steps(order, slot, 0)
    elif part == "gradient":  # of the last rank at the seventh step: infinite
        backward = StepTrial.backward

        def planted(self, loss):
            backward(self, loss)
            if self.history.step == 6 and self.rank == self.slots - 1:
                local_part(next(self.model.parameters()).grad).view(-1)[0] = torch.inf

        StepTrial.backward = planted
    elif part == "start":
        stand_still(Training, "load")
    elif part == "validation":
        stand_still(pytorch._PyTorchTrialController, "_validate")  # private
    elif part == "checkpoint":
        stand_still(local, "copy_modules")
    elif part == "early":  # rank 1 alone gets SIGTERM before the first step
        terminate_rank_1(Training, "load")
    elif part == "alone":  # or in a step
        terminate_rank_1(PackedTrial, "add_gradients")
    elif part != "none":
        raise SystemExit(f"no such part: {part}")


def stand_still(owner, name):
    """Have the first call of a function say so, and wait until the file GO_ON is there."""
    original = getattr(owner, name)

    def wait_and_call(*args, **kwargs):
        setattr(owner, name, original)
        print("STANDS STILL", file=sys.stderr, flush=True)
        while not os.path.exists(os.environ["GO_ON"]):
            time.sleep(0.01)
        return original(*args, **kwargs)

    setattr(owner, name, wait_and_call)


def terminate_rank_1(owner, name):
    """Have the first call of a function on rank 1 send SIGTERM to its process."""
    original = getattr(owner, name)

    def terminated(*args, **kwargs):
        setattr(owner, name, original)
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGTERM)
        return original(*args, **kwargs)

    setattr(owner, name, terminated)


if __name__ == "__main__":
    switch_off(sys.argv.pop(1))
    runpy.run_path(str(local.HERE / "train.py"), run_name="__main__")

"""train.py with one of the parts that make a restart exact switched off, or a gradient broken.

    python -m tests.broken rng|order|position|gradient|none TRAIN-ARGUMENTS...

`tests.chaos --without PART` runs this in the trainer's place and must then see a difference.
"""

import functools
import sys
from typing import Any

import numpy as np
import torch

import train
from detalbert.engine import determinism, order, trial
from detalbert.engine.gradients import local_part
from detalbert.engine.order import Steps
from detalbert.engine.trial import StepTrial
from lm import order as windows
from pretrain import examples


def switch_off(part: str) -> None:
    if part == "rng":  # Determined's own restore gives every rank the chief's generator
        determinism.seed_step = lambda *_: None
    elif part == "order":  # a sampler's own shuffle, new in every process
        own = np.random.default_rng()
        order._permutation = functools.lru_cache(lambda seed, epoch, n: own.permutation(n))
        examples._permutation = functools.lru_cache(lambda seed, e, b, g: own.permutation(b[-1]))
        windows.permute = lambda places, size, rng: own.permutation(size)[places].astype(np.uint64)
    elif part == "position":  # the data starts over
        trial.Steps = lambda order, slot, first: Steps(order, slot, 0)
    elif part == "gradient":  # of the last rank at the seventh step: infinite
        backward = StepTrial.backward

        def planted(self: Any, loss: torch.Tensor) -> None:
            backward(self, loss)
            if self.meter.step == 6 and self.rank == self.slots - 1:
                local_part(next(self.model.parameters()).grad).view(-1)[0] = torch.inf

        StepTrial.backward = planted
    elif part != "none":
        raise SystemExit(f"no such part: {part}")


if __name__ == "__main__":
    switch_off(sys.argv[1])
    sys.exit(train.main(sys.argv[2:]))

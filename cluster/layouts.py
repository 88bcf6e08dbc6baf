"""Layouts that a language model's slots allow, the fastest that fit first."""

import contextlib
import dataclasses
from collections.abc import Iterator
from itertools import product
from typing import Any

from cluster.estimate import Estimate, find_faults
from cluster.job import Job
from cluster.models import Model
from detalbert.errors import UserError
from lm.hparams import LmHParams


def ranked(job: Job, model: Model) -> list[Estimate]:
    """Return all layouts that fit, with activation checkpointing of no, half the and all layers,
    fastest first.

    Each has the largest forward pass that leaves no data rank without windows; ties are sorted by
    memory, the smallest first.
    """
    found = [each for each in _layouts(job, model) if not list(find_faults(each))]
    return sorted(found, key=lambda each: (round(each.step, 3), each.memory.at(each.tokens)))


def _layouts(job: Job, model: Model) -> Iterator[Estimate]:
    assert job.pool is not None and isinstance(job.hparams, LmHParams)
    slots, length = job.slots, job.hparams.max_seq_length
    for tensor in _divisors(min(slots, job.pool.slots_per_agent or slots)):
        for shard, checkpointing in product(_divisors(slots // tensor), ("none", 0.5, "full")):
            layout = {"shard": shard, "tensor": tensor}
            keys: dict[str, Any] = {"layout": layout, "activation_checkpointing": checkpointing}
            with contextlib.suppress(UserError):  # heads that the tensor does not divide, no plan
                changed = dataclasses.replace(job.hparams, **keys)
                any_forward = Estimate(job._replace(hparams=changed), model)
                share = -(-job.hparams.global_batch_size // any_forward.data_ranks)
                if forward := min(any_forward.most // length, share) * length:
                    changed = dataclasses.replace(changed, max_tokens_per_forward=forward)
                    yield Estimate(job._replace(hparams=changed), model)


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def layout_keys(found: Estimate) -> dict[str, Any]:
    """Return the hyperparameters that set an estimate's layout and its forward passes."""
    hparams = found.hparams
    assert found.layout is not None and isinstance(hparams, LmHParams)
    return {
        "layout": dataclasses.asdict(found.layout),
        "activation_checkpointing": hparams.activation_checkpointing,
        "max_tokens_per_forward": hparams.max_tokens_per_forward,
    }

"""Layouts that a language model's slots allow, the fastest that fit first."""

import contextlib
import dataclasses
from collections.abc import Iterator
from itertools import product
from typing import Any

from cluster.estimates.estimate import Estimate, find_faults
from detalbert.errors import UserError
from lm.hparams import LmHParams


def ranked(found: Estimate) -> list[Estimate]:
    """Return all layouts that fit in place of an estimate's, with activation checkpointing of no,
    half the and all layers, fastest first.

    Each has the largest forward pass that leaves no data rank without windows; ties are sorted by
    memory, the smallest first.
    """
    fit = [each for each in _layouts(found) if not list(find_faults(each))]
    return sorted(fit, key=lambda each: (round(each.step, 3), each.needed))


def _layouts(found: Estimate) -> Iterator[Estimate]:
    slots, hparams = found.slots, found.hparams
    numbers = [n for n in range(1, slots + 1) if slots % n == 0]
    for tensor, shard, share in product(numbers, numbers, ("none", 0.5, "full")):
        if tensor <= found.width and slots // tensor % shard == 0:
            layout = {"shard": shard, "tensor": tensor}
            with contextlib.suppress(UserError):  # heads that the tensor does not divide, no plan
                some = found.changed(layout=layout, activation_checkpointing=share)
                windows = -(-hparams.global_batch_size // some.data_ranks)
                if forward := min(some.most // hparams.max_seq_length, windows):
                    yield some.changed(max_tokens_per_forward=forward * hparams.max_seq_length)


def layout_keys(found: Estimate) -> dict[str, Any]:
    """Return the hyperparameters that set an estimate's layout and its forward passes."""
    hparams = found.hparams
    assert found.layout is not None and isinstance(hparams, LmHParams)
    return {
        "layout": dataclasses.asdict(found.layout),
        "activation_checkpointing": hparams.activation_checkpointing,
        "max_tokens_per_forward": hparams.max_tokens_per_forward,
    }

"""The layouts that an experiment's slots allow, the fastest that fit first."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cluster import planner
from cluster.planner import Planned
from detalbert.errors import UserError

SHOWN = 8


def ranked(planned: Planned, root: Path) -> list[dict[str, Any]]:
    """A row for each layout, with and without activation checkpointing, at its largest forward
    that leaves no data rank without one. Raises UserError for an encoder, which is not split."""
    if planned.layout is None:
        raise UserError("--suggest: this model is whole on every GPU; it has no layout to choose")
    fitting = [each for each in _choices(planned, root) if not list(planner.faults(each))]
    # The fastest; among equals the one with the most room.
    fitting.sort(key=lambda each: (round(each.step, 3), each.memory.at(each.tokens)))
    return [_row(each) for each in fitting[:SHOWN]]


def _choices(planned: Planned, root: Path) -> Iterator[Planned]:
    for tensor in _divisors(planned.width):
        for shard in _divisors(planned.slots // tensor):
            for checkpointing in ("none", "full"):
                layout = {"shard": shard, "tensor": tensor}
                changed = {"layout": layout, "activation_checkpointing": checkpointing}
                hparams = dataclasses.replace(planned.hparams, **changed)
                try:
                    found = planner.plan(planned.config, hparams, planned.pool, root)
                except UserError:  # heads that the tensor does not divide, no plan
                    continue
                if found is not None and (tokens := _forward(found)):
                    budget = dataclasses.replace(hparams, max_tokens_per_forward=tokens)
                    yield found._replace(hparams=budget)


def _forward(planned: Planned) -> int:
    """Tokens of the largest forward: what fits, in windows, and no more than a rank's share."""
    length = planned.hparams.max_seq_length
    share = -(-planned.hparams.global_batch_size // planned.data_ranks)
    return min(planned.most // length, share) * length


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _row(planned: Planned) -> dict[str, Any]:
    layout, rate = planned.layout, planned.hparams.global_batch_size * planned.window / planned.step
    return {
        "replicate": layout.replicate,
        "shard": layout.shard,
        "tensor": layout.tensor,
        "activation_checkpointing": planned.hparams.activation_checkpointing,
        "max_tokens_per_forward": planned.tokens,
        "GiB": round(planned.memory.at(planned.tokens) / 2**30, 1),
        "compute s": round(planned.compute, 2),
        "network s": round(planned.network(planned.efa), 2),
        "tokens/s": round(rate),
    }

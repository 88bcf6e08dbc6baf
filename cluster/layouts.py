"""Layouts that an experiment's slots allow, the fastest that fit first."""

import dataclasses
from typing import Any

from cluster import planner
from cluster.masterconf import Pool
from cluster.models import Model
from cluster.planner import Planned
from detalbert.errors import UserError
from lm.hparams import LmHParams

SHOWN = 8


def table(planned: Planned) -> list[dict[str, Any]]:
    """Return a row for each of the first SHOWN layouts.

    Raises:
        UserError: if the model is an encoder, which is not sharded.
    """
    config, hparams, pool, model, slots, *_ = planned
    if not isinstance(hparams, LmHParams):
        raise UserError("--suggest: this model is whole on every GPU; it has no layout to choose")
    return [_row(each) for each in ranked(config, hparams, pool, model, slots)[:SHOWN]]


def ranked(
    config: dict[str, Any], hparams: LmHParams, pool: Pool, model: Model, slots: int
) -> list[Planned]:
    """Return all layouts that fit, with and without activation checkpointing, fastest first.

    Each has the largest forward pass that leaves no data rank without windows; ties are sorted by
    memory, the smallest first.
    """
    found = []
    for tensor in _divisors(pool.slots_per_agent or slots):
        for shard in _divisors(slots // tensor):
            for checkpointing in ("none", "full"):
                layout = {"shard": shard, "tensor": tensor}
                keys: dict[str, Any] = {"layout": layout, "activation_checkpointing": checkpointing}
                changed = dataclasses.replace(hparams, **keys)
                try:
                    found.append(planner.plan_model(config, changed, pool, model, slots))
                except UserError:  # heads that the tensor does not divide, no plan
                    continue
    fitting = [_at_most(each) for each in found if _forward(each)]
    fitting = [each for each in fitting if not list(planner.faults(each))]
    return sorted(fitting, key=lambda each: (round(each.step, 3), each.memory.at(each.tokens)))


def _at_most(planned: Planned) -> Planned:
    budget: dict[str, Any] = {"max_tokens_per_forward": _forward(planned)}
    return planned._replace(hparams=dataclasses.replace(planned.hparams, **budget))


def _forward(planned: Planned) -> int:
    """Return the tokens of the largest forward: full windows that fit, at most a data rank's."""
    length = planned.hparams.max_seq_length
    share = -(-planned.hparams.global_batch_size // planned.data_ranks)
    return min(planned.most // length, share) * length


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _row(planned: Planned) -> dict[str, Any]:
    layout, hparams = planned.layout, planned.hparams
    assert layout is not None and isinstance(hparams, LmHParams)
    rate = hparams.global_batch_size * planned.window / planned.step
    return {
        "replicate": layout.replicate,
        "shard": layout.shard,
        "tensor": layout.tensor,
        "activation_checkpointing": hparams.activation_checkpointing,
        "max_tokens_per_forward": planned.tokens,
        "GiB": round(planned.memory.at(planned.tokens) / 2**30, 1),
        "compute s": round(planned.compute, 2),
        "network s": round(planned.network(planned.efa), 2),
        "tokens/s": round(rate),
    }

"""Layouts that an experiment's slots allow, the fastest that fit first, and their throughput."""

import contextlib
import dataclasses
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

from cluster import planner
from cluster.machines import ROOT, gpu_of
from cluster.masterconf import Pool
from cluster.models import Model, find_model
from cluster.planner import Planned
from cluster.prices import Price
from cluster.schema import mapping
from detalbert.errors import UserError
from detalbert.settings.experiment import single_values
from lm.hparams import LmHParams
from workloads import parsers

SHOWN = 8


def layout_rows(planned: Planned) -> list[dict[str, Any]]:
    """Return a row for each of the first SHOWN layouts; UserError if the model is an encoder."""
    hparams, job = planned.hparams, (planned.pool, planned.model, planned.slots)
    if not isinstance(hparams, LmHParams):
        raise UserError("--suggest: this model is whole on every GPU; it has no layout to choose")
    return [_row(each) for each in ranked(planned.config, hparams, *job)[:SHOWN]]


def ranked(
    config: dict[str, Any], hparams: LmHParams, pool: Pool, model: Model, slots: int
) -> list[Planned]:
    """Return all layouts that fit, with and without activation checkpointing, fastest first.

    Each has the largest forward pass that leaves no data rank without windows; ties are sorted by
    memory, the smallest first.
    """
    found, length = [], hparams.max_seq_length
    for tensor in _divisors(pool.slots_per_agent or slots):
        for shard, checkpointing in product(_divisors(slots // tensor), ("none", "full")):
            layout = {"shard": shard, "tensor": tensor}
            keys: dict[str, Any] = {"layout": layout, "activation_checkpointing": checkpointing}
            with contextlib.suppress(UserError):  # heads that the tensor does not divide, no plan
                changed = dataclasses.replace(hparams, **keys)
                any_forward = Planned(config, changed, pool, model, slots)
                share = -(-hparams.global_batch_size // any_forward.data_ranks)
                if forward := min(any_forward.most // length, share) * length:
                    changed = dataclasses.replace(changed, max_tokens_per_forward=forward)
                    found.append(Planned(config, changed, pool, model, slots))
    fitting = [each for each in found if not list(planner.faults(each))]
    return sorted(fitting, key=lambda each: (round(each.step, 3), each.memory.at(each.tokens)))


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _row(planned: Planned) -> dict[str, Any]:
    layout, hparams = planned.layout, planned.hparams
    assert layout is not None and isinstance(hparams, LmHParams)
    return {
        **dataclasses.asdict(layout),
        "activation_checkpointing": hparams.activation_checkpointing,
        "max_tokens_per_forward": planned.tokens,
        "GiB": round(planned.memory.at(planned.tokens) / 2**30, 1),
        "compute s": round(planned.compute, 2),
        "network s": round(planned.network(planned.efa), 2),
        "tokens/s": round(hparams.global_batch_size * planned.window / planned.step),
    }


class Pace:
    """Planned tokens per second of a config at any slot count; UserError for an unknown model."""

    def __init__(self, path: Path, config: dict[str, Any]) -> None:
        values = single_values(mapping(config.get("hyperparameters")))
        self.config, self.hparams = config, parsers(config).hyperparameters(values)
        self.model: Any = find_model(config, self.hparams, ROOT)
        if self.model is None:
            problem = "hyperparameters.model: its sizes are not known; see lm_1b.yaml"
            raise UserError(f"{path}: {problem}")
        self._plan = lru_cache(self._fastest)

    def _fastest(self, slots: int, instance: str, width: int) -> Planned | None:
        if (gpu := gpu_of(instance)) is None:
            return None
        pool = Pool(instance, width, None, gpu, False, instance)
        return next(iter(ranked(self.config, self.hparams, pool, self.model, slots)), None)

    def fits(self, price: Price, slots: int) -> bool:
        """Return whether any layout trains on `slots` slots of these machines."""
        return self._plan(slots, price.instance, price.slots) is not None

    def batch(self, slots: int) -> float:
        """Return the tokens per step."""
        return float(self.hparams.global_batch_size * self.hparams.max_seq_length)

    def at(self, slots: int, price: Price) -> tuple[float, str]:
        """Return tokens per second and their source, published or modelled."""
        planned: Any = self._plan(slots, price.instance, price.slots)
        return self.batch(slots) / planned.step, planned.rate.source

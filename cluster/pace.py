"""Throughput of a language model's config on given machines, with the fastest layout there.

Parameters are counted with torch, imported only for such a config; other reports do without it.
"""

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster import goyaml
from cluster.machines import gpu_of
from cluster.masterconf import Pool
from cluster.prices import Price
from cluster.schema import mapping
from detalbert.errors import UserError
from detalbert.settings.experiment import single_values
from workloads import parsers

if TYPE_CHECKING:
    from cluster.planner import Planned

ROOT = Path(__file__).parents[1]


class Pace:
    """Planned tokens per second of the experiment config `path` at any slot count. Raises UserError
    if the sizes of its model are not known.
    """

    def __init__(self, path: Path) -> None:
        from cluster.models import find_model

        self.config = goyaml.load(path)
        values = single_values(mapping(self.config.get("hyperparameters")))
        self.hparams = parsers(self.config).hyperparameters(values)
        self.batch = self.hparams.global_batch_size * self.hparams.max_seq_length  # tokens a step
        self.model: Any = find_model(self.config, self.hparams, ROOT)
        if self.model is None:
            raise UserError(
                f"{path}: hyperparameters.model: its sizes are not known; see lm_1b.yaml"
            )
        self._plan = lru_cache(self._fastest)

    def _fastest(self, slots: int, instance: str, width: int) -> "Planned | None":
        from cluster import layouts

        gpu = gpu_of(instance)
        if gpu is None:
            return None
        pool = Pool(instance, width, None, gpu, False, instance)
        found = layouts.ranked(self.config, self.hparams, pool, self.model, slots)
        return found[0] if found else None

    def fits(self, price: Price, slots: int) -> bool:
        """Return whether any layout trains on `slots` slots of these machines."""
        return self._plan(slots, price.instance, price.slots) is not None

    def at(self, slots: int, price: Price) -> tuple[float, str]:
        """Return tokens per second and their source, published or modelled."""
        planned: Any = self._plan(slots, price.instance, price.slots)
        return self.batch / planned.step, planned.rate.source


def pace(path: Path) -> Pace | None:
    """Return the pace of a config; None unless it trains a language model."""
    return Pace(path) if "documents" in mapping(goyaml.load(path).get("data")) else None

"""How fast a language model's config is on any machines, at the fastest layout there.

What counts its parameters needs torch, and is imported where such a config is given: reports of
other runs do without.
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
    """Tokens a second of an experiment at any slot count, by the planner.

    Args: path: its config. Raises UserError for one of which nothing can be planned.
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
        """Whether any layout trains on so many slots of these machines."""
        return self._plan(slots, price.instance, price.slots) is not None

    def at(self, slots: int, price: Price) -> tuple[float, str]:
        """The rate, and whether that is published or modelled."""
        planned: Any = self._plan(slots, price.instance, price.slots)
        return self.batch / planned.step, planned.rate.source


def pace(path: Path) -> Pace | None:
    """None for a config that trains no language model."""
    return Pace(path) if "documents" in mapping(goyaml.load(path).get("data")) else None

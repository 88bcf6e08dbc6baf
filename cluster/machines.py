"""EC2 instance types: slots in Determined 0.38.1, and hardware (facts/machines.yaml)."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import yaml

from detalbert.engine.flops import PEAKS

ROOT = Path(__file__).parents[1]  # of the repository
_DATA = yaml.safe_load((ROOT / "cluster" / "facts" / "machines.yaml").read_text(encoding="utf-8"))


def _by_name(names: Mapping[int, str]) -> dict[str, int]:
    return {name: count for count, listed in names.items() for name in listed.split()}


DETERMINED_SLOTS = _by_name(_DATA["slots"])
EC2_GPUS = _by_name(_DATA["gpus"])


class Gpu(NamedTuple):
    """One GPU of an instance type."""

    name: str
    gigabytes: int  # as sold
    capability: float  # CUDA compute capability

    @property
    def teraflops(self) -> float:
        """Dense half-precision peak, TFLOP/s."""
        return PEAKS[self.name][0]

    @property
    def has_bf16(self) -> bool:
        return self.capability >= 8

    @property
    def has_fast_fp16(self) -> bool:
        return self.capability >= 7


FAMILIES = {family: Gpu(**gpu) for family, gpu in _DATA["families"].items()}
GCE_GPUS = {name: Gpu(**gpu) for name, gpu in _DATA["gce"].items()}


class Machine(NamedTuple):
    """Hardware of a machine other than GPUs, as AWS publishes it (instance type explorer, 2026)."""

    plain: int  # Gbit/s of the one interface that Determined 0.38.1 attaches, at most
    efa: int = 0  # Gbit/s of all interfaces with EFA
    store: int = 0  # GB of instance store (NVMe)
    link: int = 32  # GB/s between its GPUs, one way: PCIe 4, or NVLink


MACHINES = {name: Machine(**facts) for name, facts in _DATA["machines"].items()}


def instance_in(name: str) -> str:
    """Return the type in the name of a pool of your own: efa-p4d-24xlarge is p4d.24xlarge."""
    plain = name.replace(".", "-")
    found = [kind for kind in MACHINES if kind.replace(".", "-") in plain]
    return max(found, key=len, default="")


def gpu_of(instance_type: str | None) -> Gpu | None:
    """Return the GPU of `instance_type`; None for CPU machines and unknown families."""
    return FAMILIES.get((instance_type or "").split(".")[0])

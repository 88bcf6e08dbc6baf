"""GPUs of the machines of EC2, and what joins them (cluster/data/machines.yaml)."""

import datetime
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import yaml

from cluster import DATA
from detalbert.engine.flops import PEAKS


class Gpu(NamedTuple):
    """One GPU of a machine, and the machine's network."""

    name: str
    gigabytes: int  # as sold
    capability: float  # CUDA compute capability
    cuda: Sequence[str] = ("12.6", "12.8", "13.0")  # torch's builds with code for it
    gbits: float = 10  # Gbit/s of a machine's interface
    store: bool = True  # whether the machine has NVMe drives
    retired: datetime.date | None = None  # since when AWS launches none

    @property
    def flops(self) -> float:
        """Peak FLOP/s of dense products in half precision."""
        return PEAKS[self.name][0] * 1e12

    @property
    def has_bf16(self) -> bool:
        return self.capability >= 8

    def lacks_code(self, image: str | None) -> bool:
        """Return whether the torch of an image, whose tag names the version of CUDA as in
        `pytorch/pytorch:2.12.0-cuda12.6-cudnn9-devel`, has no machine code for this GPU.
        """
        tag = re.search(r":\d+\.\d+\S*?-cuda(\d+\.\d+)", image or "")
        return tag is not None and tag[1] not in self.cuda


_TABLES: dict[str, Any] = yaml.safe_load((DATA / "machines.yaml").read_text(encoding="utf-8"))
FAMILIES = {family: Gpu(**row) for family, row in _TABLES["families"].items()}


def gpu_of(machine: str) -> Gpu | None:
    """Return the GPU of an instance type; None of a machine without, or of an unknown family."""
    family, _, _ = machine.partition(".")
    gpu = FAMILIES.get(family)
    if gpu is None:
        return None
    return gpu._replace(gbits=_TABLES["gbits"].get(machine, gpu.gbits))

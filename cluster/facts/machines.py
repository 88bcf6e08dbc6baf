"""EC2 instance types: slots in Determined 0.38.1, and hardware (facts/machines.yaml).

The tables are read once, when the module is imported, and do not change: a new type is a line of
YAML.
"""

import re
from pathlib import Path
from typing import NamedTuple

import yaml

from detalbert.engine.flops import PEAKS

ROOT = Path(__file__).parents[2]  # of the repository
_FILE = ROOT / "cluster" / "facts" / "machines.yaml"
_DATA = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
# Slots by type. Those that Determined's own map lacks need `instance_slots` in the master.
SLOTS: dict[str, int] = {}
for _family, _sizes in _DATA["cpu"].items():
    SLOTS |= {f"{_family}.{_size}": 0 for _size in _sizes.split()}
MAPPED = set(SLOTS)  # of Determined's map


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


GCE_GPUS = {name: Gpu(**gpu) for name, gpu in _DATA["gce"].items()}


class Machine(NamedTuple):
    """Hardware of a machine, as AWS publishes it (instance type explorer, 2026)."""

    gpus: int
    plain: int  # Gbit/s of the one interface that Determined 0.38.1 attaches, at most
    efa: int = 0  # Gbit/s of all interfaces with EFA
    store: int = 0  # GB of instance store (NVMe)
    link: int = 32  # GB/s between its GPUs, one way: PCIe 4, or NVLink


FAMILIES: dict[str, Gpu] = {}
MACHINES: dict[str, Machine] = {}
for _family, _sizes in _DATA["families"].items():
    # All sizes of a family have one GPU; the keys that are left are its sizes.
    FAMILIES[_family] = Gpu(**_sizes.pop("gpu"))
    _mapped = _sizes.pop("mapped", False)
    for _size, _hardware in _sizes.items():
        _type = f"{_family}.{_size}"
        SLOTS[_type] = _hardware["gpus"]
        if _mapped:
            MAPPED.add(_type)
        if "plain" in _hardware:  # its network is known
            MACHINES[_type] = Machine(**_hardware)


def instance_in(name: str) -> str:
    """Return the type in the name of a pool of your own: efa-p4d-24xlarge is p4d.24xlarge."""
    dashed = name.replace(".", "-")
    types = [kind for kind in MACHINES if kind.replace(".", "-") in dashed]
    return max(types, key=len, default="")


def gpu_of(instance_type: str | None) -> Gpu | None:
    """Return the GPU of `instance_type`; None for CPU machines and unknown families."""
    return FAMILIES.get((instance_type or "").split(".")[0])


def no_code(image: str | None, gpu: Gpu | None) -> str | None:
    """Say that the torch of `image` has no code for `gpu`; None if it has, or is not known.

    Known are tags with the versions of torch and CUDA, as in pytorch/pytorch:2.12.0-cuda12.6-...
    """
    tag = re.search(r":(\d+)\.(\d+)\S*?-cuda(\d+\.\d+)", image or "")
    if gpu is None or tag is None:
        return None
    torch = (int(tag[1]), int(tag[2]))
    cuda = tag[3]
    if torch < (2, 11) or cuda not in _DATA["cuda"]:
        return None
    # Machine code runs on its own and later minor versions of the capability.
    suitable = []  # versions of CUDA
    for version, capabilities in _DATA["cuda"].items():
        for capability in capabilities:
            if int(gpu.capability) <= capability <= gpu.capability:
                suitable.append(version)
                break
    if cuda in suitable:
        return None
    cure = f"take one of CUDA {' or '.join(suitable)}" if suitable else "take other machines"
    return f"torch's builds for CUDA {cuda} have no code for a {gpu.name}; {cure}"

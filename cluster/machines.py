"""EC2 instance types: what Determined 0.38.1 counts on them, and what GPUs they have.

Slot counts are those of the master's own map (`ec2InstanceSlots`, 0.38.1); a type that is not in
it needs `instance_slots` in its pool, or the master does not start.
"""

from typing import NamedTuple

from detalbert.engine.flops import PEAKS

# Slots per instance in the master's map; CPU families are in it with 0 slots.
_BY_SLOTS = {
    1: "g4dn.xlarge g4dn.2xlarge g4dn.4xlarge g4dn.8xlarge g4dn.16xlarge "
    "g5.xlarge g5.2xlarge g5.4xlarge g5.8xlarge g5.16xlarge p2.xlarge p3.2xlarge",
    4: "g4dn.12xlarge g5.12xlarge g5.24xlarge p3.8xlarge",
    8: "g4dn.metal g5.48xlarge p2.8xlarge p3.16xlarge p3dn.24xlarge p4d.24xlarge",
    16: "p2.16xlarge",
}
DETERMINED_SLOTS = {name: slots for slots, names in _BY_SLOTS.items() for name in names.split()}
_CPU_SIZES = {
    "t2": "medium large xlarge 2xlarge",
    "t3": "nano micro small medium large xlarge 2xlarge",
    "c4": "large xlarge 2xlarge 4xlarge 8xlarge",
    "c5 c5d": "large xlarge 2xlarge 4xlarge 9xlarge 12xlarge 18xlarge 24xlarge",
    "c5n": "large xlarge 2xlarge 4xlarge 9xlarge 18xlarge",
    "m4": "large xlarge 2xlarge 4xlarge 10xlarge 16xlarge",
    "m5 m5d m5dn m5n": "large xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge 24xlarge",
    "m5zn": "large xlarge 2xlarge 3xlarge 6xlarge 12xlarge",
    "m6i": "large xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge",
}
DETERMINED_SLOTS |= {
    f"{family}.{size}": 0
    for families, sizes in _CPU_SIZES.items()
    for family in families.split()
    for size in sizes.split()
}


class Gpu(NamedTuple):
    """One GPU of an instance type."""

    name: str
    gigabytes: int  # as sold
    capability: float  # CUDA compute capability

    @property
    def teraflops(self) -> float:
        """Dense, in half precision."""
        return PEAKS[self.name].half

    @property
    def has_bf16(self) -> bool:
        return self.capability >= 8

    @property
    def has_fast_fp16(self) -> bool:
        return self.capability >= 7


_V100 = Gpu("V100", 16, 7.0)
_A100 = Gpu("A100", 40, 8.0)
_H200 = Gpu("H200", 141, 9.0)
FAMILIES: dict[str, Gpu] = {
    "p2": Gpu("K80", 12, 3.7),
    "p3": _V100,
    "p3dn": _V100._replace(gigabytes=32),
    "g4dn": Gpu("T4", 16, 7.5),
    "p4d": _A100,
    "p4de": _A100._replace(gigabytes=80),
    "g5": Gpu("A10G", 24, 8.6),
    "g6": Gpu("L4", 24, 8.9),
    "g6e": Gpu("L40S", 48, 8.9),
    "p5": Gpu("H100", 80, 9.0),
    "p5e": _H200,
    "p5en": _H200,
}
# The same GPUs on Google's machines, by its names for them.
GCE_GPUS: dict[str, Gpu] = {
    "nvidia-tesla-p4": Gpu("P4", 8, 6.1),
    "nvidia-tesla-p100": Gpu("P100", 16, 6.0),
    "nvidia-tesla-t4": FAMILIES["g4dn"],
    "nvidia-tesla-v100": _V100,
    "nvidia-tesla-a100": _A100,
    "nvidia-a100-80gb": FAMILIES["p4de"],
    "nvidia-l4": FAMILIES["g6"],
}
# GPUs per instance where Determined's map lacks the type: what `instance_slots` must say.
_BY_GPUS = {
    1: "p5.4xlarge g6.xlarge g6.2xlarge g6.4xlarge g6.8xlarge g6.16xlarge "
    "g6e.xlarge g6e.2xlarge g6e.4xlarge g6e.8xlarge g6e.16xlarge",
    4: "g6.12xlarge g6.24xlarge g6e.12xlarge g6e.24xlarge",
    8: "p4de.24xlarge p5.48xlarge p5e.48xlarge p5en.48xlarge g6.48xlarge g6e.48xlarge",
}
EC2_GPUS = {name: gpus for gpus, names in _BY_GPUS.items() for name in names.split()}


class Machine(NamedTuple):
    """What a machine has beside GPUs, as AWS publishes it (instance type explorer, 2026)."""

    plain: int  # Gbit/s of the one interface that Determined 0.38.1 attaches, at most
    efa: int = 0  # Gbit/s of all interfaces with EFA
    store: int = 0  # GB of instance store (NVMe)
    link: int = 32  # GB/s between its GPUs, one way: PCIe 4, or NVLink


MACHINES: dict[str, Machine] = {
    "p3.2xlarge": Machine(10), "p3.8xlarge": Machine(10, link=150),
    "p3.16xlarge": Machine(25, link=150),
    "p3dn.24xlarge": Machine(100, 100, 1800, 150),
    "p4d.24xlarge": Machine(100, 400, 8000, 300), "p4de.24xlarge": Machine(100, 400, 8000, 300),
    "p5.48xlarge": Machine(100, 3200, 30720, 450), "p5e.48xlarge": Machine(100, 3200, 30720, 450),
    "p5en.48xlarge": Machine(100, 3200, 30720, 450),
    "g4dn.xlarge": Machine(25, 0, 125), "g4dn.12xlarge": Machine(50, 50, 900),
    "g4dn.metal": Machine(100, 100, 1800),
    "g5.xlarge": Machine(10, 0, 250), "g5.12xlarge": Machine(40, 40, 3800),
    "g5.48xlarge": Machine(100, 100, 7600),
    "g6.xlarge": Machine(10, 0, 250), "g6.12xlarge": Machine(40, 40, 3760),
    "g6.48xlarge": Machine(100, 100, 7520),
    "g6e.xlarge": Machine(20, 0, 250), "g6e.12xlarge": Machine(100, 100, 3800),
    "g6e.48xlarge": Machine(100, 400, 7600),
}  # fmt: skip


def instance_in(name: str) -> str:
    """The type that a pool of your own machines has in its name: efa-p4d-24xlarge, p4d.24xlarge."""
    plain = name.replace(".", "-")
    found = [kind for kind in MACHINES if kind.replace(".", "-") in plain]
    return max(found, key=len, default="")


def gpu_of(instance_type: str | None) -> Gpu | None:
    """The GPU in `instance_type`; None for CPU machines and families not known here."""
    return FAMILIES.get((instance_type or "").split(".")[0])

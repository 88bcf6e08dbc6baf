"""Bytes that a machine sends: gradients and weights in every step, and checkpoints."""

from typing import Any

from cluster.machines import MACHINES
from cluster.masterconf import Pool
from cluster.schema import mapping, mappings
from lm.layout import Layout

NOTICE = 120  # seconds from EC2's notice to the machine's end
READ = 5  # seconds until the notice is read
STORE_RATE = 1e9  # bytes a second onto one NVMe drive; an assumption
UPLOAD_RATE = 0.25e9  # bytes a second of a process that uploads; an assumption
INFINIBAND = "/dev/infiniband"


def split_bytes(
    parameters: float, layout: Layout, width: int, slots: int, forwards: int, half: bool
) -> float:
    """Return the bytes that each machine of `width` slots sends per step, for a sharded model.

    A replica that spans m machines gathers its weights twice per forward and scatters gradients in
    fp32 (FSDP2, reshard after forward); (m - 1) / m of that leaves a machine in a ring. Replicas on
    r groups of machines sum fp32 gradients, 2 * 4 bytes. 13.2 B parameters in one replica on 8
    machines, one forward: 13.2e9 * (2 * 2 + 4) * 7 / 8 = 92 GB.
    """
    span = max(1, layout.shard * layout.tensor // width)
    sides = max(1, slots // width) // span
    inside = parameters * forwards * (2 * (2 if half else 4) + 4) * (span - 1) / span
    return inside + 8 * parameters / span * (sides - 1) / max(sides, 1)


def replicated_bytes(parameters: float, machines: int, allreduce_dtype: str) -> float:
    """Return the bytes that a machine sends per step for a replicated model: a ring all-reduce."""
    return 2 * parameters * (4 if allreduce_dtype == "fp32" else 2) * (machines - 1) / machines


def tensor_seconds(pool: Pool, tensor: int, layers: int, hidden: int, half: bool) -> float:
    """Return the seconds per token that tensor-parallel ranks wait for each other.

    Every layer sums its hidden state four times, forward and backward (Shoeybi 2019, section 3), in
    a ring between GPUs.
    """
    machine = MACHINES.get(pool.instance)
    sent = layers * 4 * 2 * (tensor - 1) / tensor * hidden * (2 if half else 4)
    return sent / (machine.link * 1e9) if machine else 0.0


def has_efa(config: dict[str, Any], pool: Pool) -> bool:
    """Return whether containers reach EFA: machines of your own, with their devices mapped."""
    devices = mapping(config.get("resources")).get("devices")  # mappings, or HOST:CONTAINER:MODE
    return pool.own and isinstance(devices, list) and any(INFINIBAND in str(d) for d in devices)


def network_rate(pool: Pool, efa: bool) -> float | None:
    """Return the peak bytes per second that a machine sends; None for unknown machines."""
    machine = MACHINES.get(pool.instance)
    return machine and (machine.efa if efa else machine.plain) / 8 * 1e9


def scratch(config: dict[str, Any], pool: Pool) -> tuple[str, float]:
    """Return where a checkpoint is written first, and the bytes per second there.

    A TMPDIR on a mounted folder is taken for the instance store. Otherwise it is the container's
    /tmp on the root volume, gp2 in 0.38.1: 3 I/O operations of 256 KiB per second and GiB, at most
    250 MiB/s (Amazon EBS user guide, General Purpose SSD), without bursts.
    """
    tasks = pool.tasks or {}
    listed = [mapping(config.get("environment")), tasks]
    variables = [v for each in listed for v in _variables(each.get("environment_variables"))]
    folder = next((v[7:] for v in variables if v.startswith("TMPDIR=")), None)
    mounts = mappings(config.get("bind_mounts")) + mappings(tasks.get("bind_mounts"))
    machine = MACHINES.get(pool.instance)
    inside = [str(mount.get("container_path")) for mount in mounts]
    if folder and machine and machine.store and any(folder.startswith(path) for path in inside):
        return f"{folder}, taken for the instance store", STORE_RATE
    rate = min(250.0, max(100, 3 * pool.root_gib) * 0.25) * 2**20
    return f"the root volume of {pool.root_gib} GiB (gp2)", rate


def _variables(value: Any) -> list[str]:
    """Return the NAME=VALUE items of a list, or of all lists of a mapping by kind of slot."""
    if isinstance(value, dict):
        return [item for items in value.values() for item in _variables(items)]
    return [str(item) for item in value] if isinstance(value, list) else []

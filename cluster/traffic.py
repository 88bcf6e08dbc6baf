"""What leaves a machine: gradients and weights in every step, and a checkpoint."""

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
    """Bytes out of each machine a step, of a model in parts; `width` slots a machine.

    A copy that spans m machines gathers its weights twice for every forward and scatters gradients
    in fp32 (FSDP2, reshard after forward), and (m - 1) / m of that leaves a machine in a ring.
    Copies on r sides of machines add up fp32 gradients, 2 * 4 bytes. 13.2 B parameters in one copy
    on 8 machines, one forward: 13.2e9 * (2 * 2 + 4) * 7 / 8 = 92 GB.
    """
    span = max(1, layout.shard * layout.tensor // width)
    sides = max(1, slots // width) // span
    inside = parameters * forwards * (2 * (2 if half else 4) + 4) * (span - 1) / span
    return inside + 8 * parameters / span * (sides - 1) / max(sides, 1)


def replicated_bytes(parameters: float, machines: int, allreduce_dtype: str) -> float:
    """The same of a model that every GPU holds: one all-reduce of its gradients, in a ring."""
    return 2 * parameters * (4 if allreduce_dtype == "fp32" else 2) * (machines - 1) / machines


def tensor_seconds(pool: Pool, tensor: int, layers: int, hidden: int, half: bool) -> float:
    """Seconds a token that tensor-parallel peers wait for each other: in every layer four sums of
    its hidden state, forward and backward (Shoeybi 2019, section 3), in a ring between GPUs."""
    machine = MACHINES.get(pool.instance)
    sent = layers * 4 * 2 * (tensor - 1) / tensor * hidden * (2 if half else 4)
    return sent / (machine.link * 1e9) if machine else 0.0


def has_efa(config: dict[str, Any], pool: Pool) -> bool:
    """Whether the containers reach EFA interfaces: machines of your own have them, and the
    experiment asks for their devices."""
    devices = mapping(config.get("resources")).get("devices")  # mappings, or HOST:CONTAINER:MODE
    return pool.own and isinstance(devices, list) and any(INFINIBAND in str(d) for d in devices)


def network_rate(pool: Pool, efa: bool) -> float | None:
    """Bytes a second that a machine sends at most; None for machines that are not known."""
    machine = MACHINES.get(pool.instance)
    return machine and (machine.efa if efa else machine.plain) / 8 * 1e9


def scratch(config: dict[str, Any], pool: Pool) -> tuple[str, float]:
    """Where a checkpoint is written first, and bytes a second there.

    TMPDIR on a mounted folder is taken for the instance store. Else it is the container's /tmp, on
    the root volume: 0.38.1 makes it gp2, which does 3 I/O operations of 256 KiB a second and GiB,
    250 MiB/s at most (Amazon EBS user guide, General Purpose SSD); bursts are not counted on.
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
    """NAME=VALUE of a list, or of the lists of a mapping by kind of slot."""
    if isinstance(value, dict):
        return [item for items in value.values() for item in _variables(items)]
    return [str(item) for item in value] if isinstance(value, list) else []

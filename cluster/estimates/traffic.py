"""Networks and disks: bytes that machines send in a step, and where they write checkpoints."""

from typing import Any

from cluster.configs.masterconf import Pool
from cluster.facts.machines import MACHINES
from detalbert.settings.schema import at, mapping, mappings

READ = 5  # seconds until the notice is read
STORE_RATE = 1e9  # bytes a second onto one NVMe drive; an assumption
UPLOAD_RATE = 0.25e9  # bytes a second of a process that uploads; an assumption
INFINIBAND = "/dev/infiniband"


def sent_bytes(
    parameters: float, machines: int, span: int, forwards: int, weight: int, gradient: int
) -> float:
    """Return the bytes that each machine sends per step, (n - 1) / n of the data in a ring of n.

    A replica that spans m machines gathers its weights twice per forward and scatters gradients in
    fp32 (FSDP2, reshard after forward); replicas sum their gradients, which takes two passes.
    `weight` and `gradient` are bytes per number. 13.2 B parameters in one replica on 8 machines,
    one forward: 13.2e9 * (2 * 2 + 4) * 7 / 8 = 92 GB.
    """
    replicas = max(1, machines // span)
    # Of weights and gradients inside a replica, then of the gradients of replicas.
    inside = forwards * (2 * weight + 4) * (span - 1) / span
    between = 2 * gradient / span * (replicas - 1) / replicas
    return parameters * (inside + between)


def has_efa(config: dict[str, Any], pool: Pool) -> bool:
    """Return whether containers reach EFA: machines of your own, with their devices mapped."""
    devices = at(config, "resources.devices")  # mappings, or HOST:CONTAINER:MODE
    if not pool.own or not isinstance(devices, list):
        return False
    names = [str(device) for device in devices]
    return any(INFINIBAND in name for name in names)


def scratch(config: dict[str, Any], pool: Pool) -> tuple[str, float]:
    """Return where a checkpoint is written first, and the bytes per second there.

    A TMPDIR on a mounted folder is taken for the instance store. Otherwise it is the container's
    /tmp on the root volume, gp2 in 0.38.1: 3 I/O operations of 256 KiB per second and GiB, at most
    250 MiB/s (Amazon EBS user guide, General Purpose SSD), without bursts.
    """
    variables = _variables(at(config, "environment.environment_variables"))
    variables += _variables(pool.tasks.get("environment_variables"))
    mounts = mappings(config.get("bind_mounts"))
    mounts += mappings(pool.tasks.get("bind_mounts"))
    mounted = tuple(str(mount.get("container_path")) for mount in mounts)
    machine = MACHINES.get(pool.instance)
    has_store = machine is not None and machine.store > 0
    for variable in variables:
        name, _, folder = variable.partition("=")
        if name == "TMPDIR":  # the experiment's own comes first
            if has_store and folder.startswith(mounted):
                return f"{folder}, taken for the instance store", STORE_RATE
            break
    operations = max(100, 3 * pool.root_gib)
    mib = min(250.0, operations * 0.25)
    rate = mib * 2**20
    return f"the root volume of {pool.root_gib} GiB (gp2)", rate


def _variables(value: Any) -> list[str]:
    """Return the NAME=VALUE items of a list, or of all lists of a mapping by kind of slot."""
    if isinstance(value, list):
        return [str(item) for item in value]
    variables = []
    for items in mapping(value).values():
        variables += _variables(items)
    return variables


def seconds(sent: float, gbits: int) -> float:
    """Return the seconds of sending bytes at `gbits` Gbit/s; 0 if the rate is not known."""
    if not gbits:
        return 0.0
    rate = gbits / 8 * 1e9
    return sent / rate

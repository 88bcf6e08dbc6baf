"""Networks and disks: bytes that machines send in a step, and where they write checkpoints.

Volumes follow from sizes and layout; rates are what AWS publishes, or assumptions that say so.
Latency is left out: a step of a small model on many machines takes longer than is said here.
"""

from cluster.configs.masterconf import Pool
from cluster.configs.values import at, mapping, mappings
from cluster.facts.machines import MACHINES
from detalbert.settings.values import Config

READ_SECONDS = 5  # until the notice is read
STORE_RATE = 1e9  # bytes a second onto one NVMe drive; an assumption
UPLOAD_RATE = 0.25e9  # bytes a second of a process that uploads; an assumption
INFINIBAND = "/dev/infiniband"


def sent_bytes(
    parameters: float,
    machines: int,
    span: int,
    forwards: int,
    weight_bytes: int,
    gradient_bytes: int,
) -> float:
    """Return the bytes that each machine sends per step, (n - 1) / n of the data in a ring of n.

    A replica that spans m machines gathers its weights twice per forward and scatters gradients in
    fp32 (FSDP2, reshard after forward); replicas sum their gradients, which takes two passes. 13.2
    B parameters in one replica on 8 machines, one forward: 13.2e9 * (2 * 2 + 4) * 7 / 8 = 92 GB.

    Args:
        parameters: of the model.
        machines: of the job.
        span: machines of a replica.
        forwards: forward passes of a data rank in a step.
        weight_bytes: per number in products.
        gradient_bytes: per number of a gradient that replicas send.
    """
    replicas = max(1, machines // span)
    # Of weights and gradients inside a replica, then of the gradients of replicas.
    inside = forwards * (2 * weight_bytes + 4) * (span - 1) / span
    between = 2 * gradient_bytes / span * (replicas - 1) / replicas
    return parameters * (inside + between)


def has_efa(config: Config, pool: Pool) -> bool:
    """Return whether containers reach EFA: machines of your own, with their devices mapped."""
    devices = at(config, "resources.devices")  # mappings, or HOST:CONTAINER:MODE
    if not pool.own or not isinstance(devices, list):
        return False
    return any(INFINIBAND in str(device) for device in devices)


def scratch(config: Config, pool: Pool) -> tuple[str, float]:
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

    # No TMPDIR on a store: the root volume, whose rate grows with its size.
    operations = max(100, 3 * pool.root_gib)  # per second; AWS grants 100 to the smallest
    mib_per_second = min(250.0, operations * 0.25)
    return f"the root volume of {pool.root_gib} GiB (gp2)", mib_per_second * 2**20


def _variables(value: object) -> list[str]:
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
    bytes_per_second = gbits / 8 * 1e9
    return sent / bytes_per_second

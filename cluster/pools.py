"""Resource pools: of a master's config file, or of a running master."""

import math
import re
from argparse import Namespace
from typing import Any, NamedTuple

from cluster.experiment import mapping
from cluster.machines import Gpu, gpu_of
from cluster.prices import slots_of
from detalbert.errors import UserError
from detalbert.settings.values import Config
from detalbert.settings.yaml_files import read_yaml

# Of a shipped master config, to be filled in.
PLACEHOLDER = re.compile("<<.*>>")
# A config with one of these is a master's.
MASTER_KEYS = {"resource_pools", "resource_manager"}
# Determined 0.38.1's defaults of a provider.
USUAL_MACHINE = "g4dn.metal"
USUAL_MAX_MACHINES = 5


class Pool(NamedTuple):
    """A resource pool, as far as it matters to an experiment."""

    name: str
    machine: str = ""  # instance type; empty: machines of your own
    slots: int | None = None  # per machine; None: not known
    spot: bool = False
    max_machines: int | None = None  # None: not known
    region: str = ""  # of AWS; empty: not known
    gpu: Gpu | None = None  # None: not known, or a machine without
    price: float = math.nan  # dollars per hour of a machine; nan: not known
    is_default: bool = False  # of experiments that name no pool


def connect(args: Namespace) -> tuple[dict[str, Pool], Any]:
    """Return the pools of the master's config `args.master`, or with `args.ask` of the master that
    is asked, and a session of it, else None.

    Raises:
        UserError: if the file is no master's config.
        Unavailable: if the master does not answer.
    """
    if not args.ask:
        return configured_pools(read_yaml(args.master), file=str(args.master)), None
    from cluster.master import login  # takes a second

    session = login()
    return running_pools(session), session


def configured_pools(config: Config, file: str) -> dict[str, Pool]:
    """Return the pools of a master's config, by name.

    Args:
        config: of a master.
        file: its name, for the error.

    Raises:
        UserError: if it is no master's config.
    """
    rows = config.get("resource_pools") or [{"pool_name": "default"}]
    if MASTER_KEYS.isdisjoint(config) or not isinstance(rows, list):
        raise UserError(
            "not a master config: it has no resource_pools, a list",
            key=file,
            cure="give a master.yaml; of a Helm chart, the one that `helm template` makes",
        )
    manager = mapping(config.get("resource_manager"))
    default = manager.get("default_compute_resource_pool", "default")
    pools = {}
    for row in map(mapping, rows):
        pool = _configured_pool(str(row.get("pool_name")), mapping(row.get("provider")))
        pools[pool.name] = pool._replace(is_default=pool.name == default)
    return pools


def _configured_pool(name: str, provider: Config) -> Pool:
    maximum = provider.get("max_instances", USUAL_MAX_MACHINES)
    if provider.get("type") == "aws":
        machine = str(provider.get("instance_type", USUAL_MACHINE))
        slots = slots_of(machine)
        if slots == 0 and provider.get("cpu_slots_allowed") is True:
            slots = 1  # all of its CPUs
        region = str(provider.get("region") or "")
        return Pool(
            name=name,
            machine=machine,
            slots=slots,
            spot=provider.get("spot") is True,
            max_machines=maximum if isinstance(maximum, int) else None,
            region="" if PLACEHOLDER.search(region) else region,
            gpu=gpu_of(machine),
        )
    return Pool(name)


def running_pools(session: Any) -> dict[str, Pool]:
    """Return the pools of a running master, by name.

    Args:
        session: a `cluster.master.BoundedSession`.

    Raises:
        Unavailable: if the master does not answer.
    """
    from determined.common.api import bindings  # takes a second

    from cluster.master import reaching

    with reaching(session.master, problem=f"{session.master} does not answer", cure="try again"):
        rows = bindings.get_GetResourcePools(session).resourcePools or []
        agents = bindings.get_GetAgents(session).agents
    pools = {}
    for row in rows:
        pool = Pool(name=row.name, is_default=row.defaultComputePool)
        if row.type == bindings.v1ResourcePoolType.STATIC:
            # The machines that are there; one width holds if it does for all of them.
            widths = [
                len(agent.slots or {})
                for agent in agents
                if agent.enabled and row.name in (agent.resourcePools or [])
            ]
            same = len(set(widths)) == 1
            pool = pool._replace(slots=widths[0] if same else None, max_machines=len(widths))
        else:
            aws = row.details.aws
            machine = row.instanceType or ""
            pool = pool._replace(
                machine=machine,
                slots=row.slotsPerAgent if (row.slotsPerAgent or -1) >= 0 else slots_of(machine),
                max_machines=row.maxAgents or None,  # 0 on Kubernetes
                gpu=gpu_of(machine),
                spot=bool(aws and aws.spotEnabled),
                region=aws.region if aws else "",
            )
        pools[pool.name] = pool
    return pools

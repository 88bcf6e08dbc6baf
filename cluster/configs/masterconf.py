"""Checks of a master config (0.38.1) that span several keys, and its pools.

Single keys are checked by master.yaml. What the master alone can know is left out: whether an
instance profile, a subnet or a logo is there.

The config as it was read stays a mapping; what the planner and the checks need of it is taken out
into `Cluster` and `Pool` first, so that wrong types and defaults are dealt with here alone.
"""

from typing import NamedTuple

from cluster.configs import schema
from cluster.configs.schema import Findings
from cluster.configs.values import Finding, at, mapping, mappings, whole
from cluster.facts.machines import GCE_GPUS, MAPPED, SLOTS, Gpu, gpu_of, instance_in
from cluster.facts.prices import load_prices, retired
from detalbert.errors import nearest
from detalbert.settings.values import Config


class Pool(NamedTuple):
    """A resource pool, as far as it matters to an experiment."""

    name: str
    slots_per_agent: int | None  # None: machines of your own, which the config does not describe
    max_agents: int | None
    gpu: Gpu | None
    spot: bool
    instance: str = ""  # the cloud's name of its machines
    tasks: Config = {}  # its task_container_defaults over the master's
    slots: int | None = None  # of all agents there now, where the master was asked
    root_gib: int = 200  # of a machine's root volume, 0.38.1's default
    own: bool = False  # machines of your own, which no provider starts
    region: str = ""  # of the cloud, as the config names it
    price_of: tuple[str, bool] | None = None  # of --price-pool: a type, and whether on spot

    @property
    def priced_as(self) -> tuple[str, bool]:
        """Return the type whose price counts, and whether on spot; no type if nobody sells the
        machines by the hour.
        """
        if self.price_of is not None:
            return self.price_of
        return "" if self.own else self.instance, self.spot


class Cluster(NamedTuple):
    """A master's pools and its settings that affect experiments."""

    pools: dict[str, Pool]
    default: str  # the pool of an experiment that names none
    launch_error: bool = True  # a trial that no longer fits its pool ends in ERROR
    storage: Config | None = None  # its checkpoint_storage, merged into the experiment's
    live: bool = False  # a running master, which was asked
    images_known: bool = True  # False: it did not say what its task_container_defaults name
    tasks: Config = {}  # its task_container_defaults
    partitions: Config | None = None  # overrides by lower-case name; None: not Slurm, not PBS

    def pool_name(self, config: Config) -> str:
        """Return the name of an experiment's pool: the configured one or the default."""
        return str(at(config, "resources.resource_pool") or self.default)

    def pool_of(self, config: Config) -> Pool | None:
        """Return the pool of an experiment; None if there is none of its name."""
        name = self.pool_name(config)
        if name in self.pools or self.partitions is None:
            return self.pools.get(name)
        # The launcher of 0.38.1 makes a pool of each partition: any name may be one.
        overrides = mapping(self.partitions.get(name.lower()))
        tasks = self.tasks | mapping(overrides.get("task_container_defaults"))
        return own_pool(name, tasks=tasks)


HPC = "slurm", "pbs"  # resource managers whose pools are the partitions of the site
MASTER_KEYS = {"db", "resource_pools", "resource_manager"}  # a config with one is no experiment's
# Of the chart's values.yaml, which a site may replace in part.
HELM_KEYS = frozenset(
    "checkpointStorage clusterName createNonNamespacedObjects defaultAuxResourcePool "
    "defaultComputeResourcePool defaultImages defaultPassword defaultScheduler detVersion "
    "enterpriseEdition imagePullSecretName imageRegistry initialUserPassword logLevel masterPort "
    "masterService maxSlotsPerPod resourceManager resourcePools retentionPolicy slotType "
    "slotResourceRequests taskContainerDefaults tlsSecret useNodePortForMaster".split()
)
_DEFAULT_POOLS = {  # key of a default pool: its name before 0.15
    "default_aux_resource_pool": "default_cpu_resource_pool",
    "default_compute_resource_pool": "default_gpu_resource_pool",
}


def check_master(config: Config) -> Findings:
    """Yield findings on keys, types, instance types, prices and pool names of a master config."""
    if is_helm(config):
        yield Finding(
            key="file",
            problem="this is a values.yaml of the Helm chart, not a master config",
            cure="check the master.yaml that `helm template` makes of it",
        )
        return
    yield from schema.check(config, kind="master")
    yield from _check_pool_names(config)
    yield from _check_default_pools(config)

    # Prices and Determined's map of slots are known of EC2's types alone.
    for number, pool in enumerate(mappings(config.get("resource_pools"))):
        provider = mapping(pool.get("provider"))
        instance = provider.get("instance_type")
        if provider.get("type") == "aws" and isinstance(instance, str):
            yield from _check_instance(
                key=f"resource_pools[{number}].provider",
                instance=instance,
                slots=provider.get("instance_slots"),
            )


def is_helm(config: Config) -> bool:
    """Return whether a config is a values.yaml of Determined's Helm chart."""
    return not HELM_KEYS.isdisjoint(config)


def _manager_type(config: Config) -> object:
    """Return the type of the resource manager: `agent`, `kubernetes`, or what a mistake left."""
    return mapping(config.get("resource_manager")).get("type", "agent")


def _check_pool_names(config: Config) -> Findings:
    """Yield findings on pools that have one name, whichever manager they are of."""
    # An experiment names a pool and no manager.
    names = [str(pool.get("pool_name")) for pool in _pools(config)]
    for manager in mappings(config.get("additional_resource_managers")):
        names += [str(pool.get("pool_name")) for pool in mappings(manager.get("resource_pools"))]
    repeated = {name for name in names if names.count(name) > 1}
    for name in sorted(repeated):
        yield Finding(
            key="resource_pools",
            problem=f"two pools are named {name!r}",
            cure="rename one",
        )


def _check_default_pools(config: Config) -> Findings:
    """Yield a finding for each default pool of an agent manager that is not there."""
    manager = mapping(config.get("resource_manager"))
    if _manager_type(config) != "agent" or manager.get("no_default_resource_pools"):
        return
    names = [str(pool.get("pool_name")) for pool in _pools(config)]
    for key in _DEFAULT_POOLS:
        name = _default(manager, key)
        if name not in names:
            yield Finding(
                key=f"resource_manager.{key}",
                problem=f"no pool is named {name!r}",
                cure=nearest(name, names),
            )


def _default(manager: Config, key: str = "default_compute_resource_pool") -> str:
    fallback = "<<the default partition>>" if manager.get("type") in HPC else "default"
    return str(manager.get(key) or manager.get(_DEFAULT_POOLS[key]) or fallback)


def _pools(config: Config) -> list[Config]:
    """Return the main manager's pools; `default`, as the master does, if the config has none.
    Those of Slurm and PBS, which are the partitions, have no such default.
    """
    if config.get("resource_pools") is None and _manager_type(config) not in HPC:
        return [{"pool_name": "default"}]
    return mappings(config.get("resource_pools"))


def _check_instance(key: str, instance: str, slots: object) -> Findings:
    """Yield findings on the instance type of the provider at `key`, and its `instance_slots`."""
    gpus = SLOTS.get(instance)
    retirement = retired(instance, load_prices())
    if retirement:
        yield Finding(f"{key}.instance_type", problem=retirement, warning=True)
    if slots is not None:
        if gpus not in (None, slots):
            yield Finding(
                f"{key}.instance_slots",
                problem=f"{slots}, but a {instance} has {gpus}",
                cure=f"set {gpus}",
            )
        elif gpus is None and not schema.PLACEHOLDER.search(instance):
            # Determined asks EC2 for any type that has instance_slots.
            yield Finding(
                f"{key}.instance_type",
                problem=f"no {instance} is known here, and EC2 starts none of a misspelt type",
                cure=nearest(instance, SLOTS),
                warning=True,
            )
    elif instance not in MAPPED and not schema.PLACEHOLDER.search(instance):
        cure = f"Determined's map has no {instance}: set instance_slots to its GPUs, {gpus}"
        if gpus is None:
            near = nearest(instance, SLOTS)
            cure = f"Determined's map has no {instance} ({near}): set instance_slots to its GPUs"
        yield Finding(f"{key}.instance_slots", problem="missing", cure=cure)


def cluster_of(config: Config) -> Cluster:
    """Return the pools and settings of the master with this config that affect experiments."""
    tasks = mapping(config.get("task_container_defaults"))
    manager = mapping(config.get("resource_manager"))
    pools = [_pool(pool, tasks) for pool in _pools(config)]
    if _manager_type(config) == "kubernetes":
        pools = [_with_pods(pool, manager) for pool in pools]
    for other in mappings(config.get("additional_resource_managers")):  # all are Kubernetes
        other_manager = mapping(other.get("resource_manager"))
        for pool in mappings(other.get("resource_pools")):
            pools.append(_with_pods(_pool(pool, tasks), other_manager))
    partitions = None
    if _manager_type(config) in HPC:
        overrides = mapping(manager.get("partition_overrides"))
        partitions = {name.lower(): override for name, override in overrides.items()}
    return Cluster(
        pools={pool.name: pool for pool in pools},
        default=_default(manager),
        launch_error=config.get("launch_error") is not False,
        storage=mapping(config.get("checkpoint_storage")) or None,
        tasks=tasks,
        partitions=partitions,
    )


def _with_pods(pool: Pool, manager: Config) -> Pool:
    """Return a pool of Kubernetes, whose pods stand for machines: the pool's own number of slots
    counts before the manager's.
    """
    # Without either number it is not known how wide a pod is.
    slots = whole(at(pool.tasks, "kubernetes.max_slots_per_pod"))
    if slots is None:
        slots = whole(manager.get("max_slots_per_pod"))
    return own_pool(pool.name, tasks=pool.tasks)._replace(slots_per_agent=slots)


def _pool(pool: Config, tasks: Config) -> Pool:
    """Return a pool of a master's config; `tasks` are the master's task_container_defaults."""
    name = str(pool.get("pool_name"))
    provider = mapping(pool.get("provider"))
    tasks = tasks | mapping(pool.get("task_container_defaults"))
    if provider.get("type", "hpc") == "hpc":
        return own_pool(name, tasks=tasks)
    instance, slots, gpu = _machine(provider)
    if slots == 0 and provider.get("cpu_slots_allowed"):
        slots = 1  # a machine without a GPU is one slot then
    region = str(provider.get("region") or "")
    if provider.get("type") != "aws" or schema.PLACEHOLDER.search(region):
        region = ""  # prices are of AWS's regions

    # `spot` is a key of an AWS provider, `preemptible` one of a GCE machine type.
    preemptible = at(provider, "instance_type.preemptible")
    return Pool(
        name=name,
        slots_per_agent=slots,
        max_agents=whole(provider.get("max_instances", 5)),
        gpu=gpu,
        spot=True in (provider.get("spot"), preemptible),
        instance=instance,
        tasks=tasks,
        root_gib=whole(provider.get("root_volume_size")) or 200,
        region=region,
    )


def own_pool(name: str, tasks: Config) -> Pool:
    """Return a pool without provider, whose machines are of the type in its name, if any is."""
    instance = instance_in(name)
    return Pool(
        name=name,
        slots_per_agent=SLOTS.get(instance),
        max_agents=None,
        gpu=gpu_of(instance),
        spot=False,
        instance=instance,
        tasks=tasks,
        own=True,
    )


def _machine(provider: Config) -> tuple[str, int | None, Gpu | None]:
    """Return a provider's machine type, slots per machine and GPU, each as far as known."""
    if provider.get("type") == "gcp":
        return _gce_machine(mapping(provider.get("instance_type")))
    instance = str(provider.get("instance_type", "g4dn.metal"))  # 0.38.1's default
    slots = whole(provider.get("instance_slots"))
    if slots is None or instance in MAPPED:  # Determined's map counts before the config
        slots = SLOTS.get(instance)
    return instance, slots, gpu_of(instance)


def _gce_machine(machine: Config) -> tuple[str, int | None, Gpu | None]:
    # What is not set has 0.38.1's defaults. The name is for people: prices are of EC2 alone.
    instance = str(machine.get("machine_type", "n1-standard-32"))
    slots = whole(machine.get("gpu_num", 4))
    gpu = GCE_GPUS.get(str(machine.get("gpu_type", "nvidia-tesla-t4")))
    if gpu and slots:
        instance = f"{instance} with {slots} {gpu.name}"
    return instance, slots, gpu

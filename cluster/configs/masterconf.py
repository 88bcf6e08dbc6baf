"""Checks of a master config (0.38.1) that span several keys, and its pools."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from cluster.configs import schema
from cluster.facts.machines import GCE_GPUS, MAPPED, SLOTS, Gpu, gpu_of, instance_in
from cluster.facts.prices import load_prices, retired
from detalbert.errors import nearest
from detalbert.settings.schema import Finding, at, mapping, mappings, whole


class Pool(NamedTuple):
    """A resource pool, as far as it matters to an experiment."""

    name: str
    slots_per_agent: int | None  # None: machines of your own, which the config does not describe
    max_agents: int | None
    gpu: Gpu | None
    spot: bool
    instance: str = ""  # the cloud's name of its machines
    tasks: dict[str, Any] = {}  # its task_container_defaults over the master's
    slots: int | None = None  # of all agents there now, where the master was asked
    root_gib: int = 200  # of a machine's root volume, 0.38.1's default
    own: bool = False  # machines of your own, which no provider starts
    region: str = ""  # of the cloud, as the config names it


class Cluster(NamedTuple):
    """A master's pools and its settings that affect experiments."""

    pools: dict[str, Pool]
    default: str  # the pool of an experiment that names none
    launch_error: bool = True  # a trial that no longer fits its pool ends in ERROR
    storage: dict[str, Any] | None = None  # its checkpoint_storage, merged into the experiment's
    live: bool = False  # a running master, which was asked
    images_known: bool = True  # False: it did not say what its task_container_defaults name

    def pool_name(self, config: dict[str, Any]) -> str:
        """Return the name of an experiment's pool: the configured one or the default."""
        return str(at(config, "resources.resource_pool") or self.default)

    def pool_of(self, config: dict[str, Any]) -> Pool | None:
        """Return the pool of an experiment; None if there is none of its name."""
        return self.pools.get(self.pool_name(config))


_OLD = {"scheduler", "provisioner"}  # of the schema before 0.13
_DEFAULTS = {
    "default_aux_resource_pool": "default_cpu_resource_pool",
    "default_compute_resource_pool": "default_gpu_resource_pool",
}


def check_master(config: dict[str, Any]) -> Iterator[Finding]:
    """Yield findings on keys, types, instance types, prices and pool names of a master config."""
    old, new = sorted(_OLD & set(config)), {"resource_manager", "resource_pools"} & set(config)
    if old and new:
        yield Finding(old[0], f"old schema beside {min(new)}; the master takes one of them")
    elif old:
        yield Finding(old[0], "the schema of 0.12; use resource_pools", warning=True)
    config = {key: value for key, value in config.items() if key not in _OLD}
    yield from schema.check(config, "master")
    yield from _check_pool_names(config)
    pods = [at(config, "resource_manager.max_slots_per_pod")]
    if not config.get("additional_resource_managers"):
        pods.append(at(config, "task_container_defaults.kubernetes.max_slots_per_pod"))
    if at(config, "resource_manager.type") == "kubernetes" and pods.count(None) != len(pods) - 1:
        problem = "give it here or in task_container_defaults.kubernetes, exactly once"
        yield Finding("resource_manager.max_slots_per_pod", problem)
    for number, pool in enumerate(mappings(config.get("resource_pools"))):
        provider = mapping(pool.get("provider"))
        if provider.get("type") == "aws" and isinstance(provider.get("instance_type"), str):
            yield from _check_instance(f"resource_pools[{number}].provider", provider)


def _check_pool_names(config: dict[str, Any]) -> Iterator[Finding]:
    """Yield findings on pools that have one name, and on default pools that are not there."""
    manager = mapping(config.get("resource_manager"))
    kind, pools = manager.get("type", "agent"), config.get("resource_pools")
    if pools == [] and kind in ("agent", "kubernetes"):
        problem = "empty; name a pool, or leave the key out (only the fork takes it)"
        yield Finding("resource_pools", problem)
    mine = [pool.get("pool_name") for pool in _pools(config)]
    extra = mappings(config.get("additional_resource_managers"))
    others = [pool for one in extra for pool in mappings(one.get("resource_pools"))]
    names = mine + [pool.get("pool_name") for pool in others]
    for name in sorted({str(name) for name in names if names.count(name) > 1}):
        yield Finding("resource_pools", f"two pools are named {name!r}; rename one")
    for key in _DEFAULTS if kind == "agent" else ():
        name = _default(manager, key)
        if name not in mine and not manager.get("no_default_resource_pools"):
            hint = nearest(str(name), [str(n) for n in mine])
            yield Finding(f"resource_manager.{key}", f"no pool is named {name!r}; {hint}")


def _default(manager: dict[str, Any], key: str = "default_compute_resource_pool") -> Any:
    return manager.get(key) or manager.get(_DEFAULTS[key]) or "default"


def _pools(config: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the main manager's pools; `default`, as the master does, if the config has none."""
    if config.get("resource_pools") is None:
        return [{"pool_name": "default"}]
    return mappings(config["resource_pools"])


def _check_instance(key: str, provider: dict[str, Any]) -> Iterator[Finding]:
    """Yield findings on the instance type of a provider and its slots."""
    kind, slots = provider["instance_type"], provider.get("instance_slots")
    if problem := retired(kind, load_prices()):
        yield Finding(f"{key}.instance_type", problem, warning=True)
    right = SLOTS.get(kind)
    if kind not in MAPPED and slots is None and not schema.PLACEHOLDER.search(kind):
        near, count = ("", f", {right}") if right else (f" ({nearest(kind, SLOTS)})", "")
        problem = f"missing; Determined's map has no {kind}{near}: set instance_slots to its GPUs"
        yield Finding(f"{key}.instance_slots", problem + count)
    if slots is not None and right is not None and slots != right:
        problem = f"{slots}, but a {kind} has {right}; set {right}"
        yield Finding(f"{key}.instance_slots", problem)


def cluster_of(config: dict[str, Any]) -> Cluster:
    """Return the pools and settings of the master with this config that affect experiments."""
    tasks = mapping(config.get("task_container_defaults"))
    pools = {str(raw.get("pool_name")): _pool(raw, tasks) for raw in _pools(config)}
    storage = mapping(config.get("checkpoint_storage")) or None
    default = str(_default(mapping(config.get("resource_manager"))))
    return Cluster(pools, default, config.get("launch_error") is not False, storage)


def _pool(raw: dict[str, Any], tasks: dict[str, Any]) -> Pool:
    name, provider = str(raw.get("pool_name")), mapping(raw.get("provider"))
    tasks = tasks | mapping(raw.get("task_container_defaults"))
    if not provider:
        return own_pool(name, tasks=tasks)
    kind, slots, gpu = _machine(provider)
    if slots == 0 and provider.get("cpu_slots_allowed"):
        slots = 1
    spot = True in (provider.get("spot"), at(provider, "instance_type.preemptible"))
    most, root = whole(provider.get("max_instances", 5)), whole(provider.get("root_volume_size"))
    region = str(provider.get("region") or "") if provider.get("type") == "aws" else ""
    region = "" if schema.PLACEHOLDER.search(region) else region
    pool = Pool(name, slots, most, gpu, spot, kind, tasks, root_gib=root or 200)
    return pool._replace(region=region)


def own_pool(name: str, **known: Any) -> Pool:
    """Return a pool without provider, whose machines are of the type in its name, if any is."""
    kind = instance_in(name)
    pool = Pool(name, SLOTS.get(kind), None, gpu_of(kind), False, kind, own=True)
    return pool._replace(**known)


def _machine(provider: dict[str, Any]) -> tuple[str, int | None, Gpu | None]:
    """Return a provider's machine type, slots per machine and GPU, each as far as known."""
    if provider.get("type") == "gcp":
        instance = mapping(provider.get("instance_type"))
        gpu = GCE_GPUS.get(str(instance.get("gpu_type", "nvidia-tesla-t4")))
        slots = whole(instance.get("gpu_num", 4))
        kind = str(instance.get("machine_type", "n1-standard-32"))
        return f"{kind} with {slots} {gpu.name}" if gpu and slots else kind, slots, gpu
    kind = str(provider.get("instance_type", "g4dn.metal"))
    slots = whole(provider.get("instance_slots"))
    return kind, SLOTS.get(kind) if slots is None or kind in MAPPED else slots, gpu_of(kind)

"""Checks of a master config (0.38.1) that span several keys, and its pools."""

from collections.abc import Iterator
from typing import Any, NamedTuple, cast

from cluster import schema
from cluster.machines import GCE_GPUS, MAPPED, SLOTS, Gpu, gpu_of, instance_in
from cluster.prices import load_prices, retired
from cluster.schema import Finding
from detalbert.errors import nearest


class Pool(NamedTuple):
    """A resource pool, as far as it matters to an experiment."""

    name: str
    slots_per_agent: int | None  # None: machines of your own, which the config does not describe
    max_agents: int | None
    gpu: Gpu | None
    spot: bool
    instance: str = ""  # the cloud's name of its machines
    image: Any = None  # what task_container_defaults name, of the pool or of the master
    slots: int | None = None  # of all agents there now, where the master was asked
    root_gib: int = 200  # of a machine's root volume, 0.38.1's default
    own: bool = False  # machines of your own, which no provider starts
    tasks: dict[str, Any] | None = None  # its task_container_defaults over the master's

    @property
    def known_gpu(self) -> Gpu:
        return cast(Gpu, self.gpu)  # of a pool that is known to have one


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
        resources = schema.mapping(config.get("resources"))
        return str(resources.get("resource_pool") or self.default)

    def pool_of(self, config: dict[str, Any]) -> Pool | None:
        """Return the pool of an experiment; None if there is none of its name."""
        return self.pools.get(self.pool_name(config))


_OLD = {"scheduler", "provisioner"}  # of the schema before 0.13


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
    yield from _check_kubernetes(config)
    yield from _check_defaults(config)
    for number, pool in enumerate(schema.mappings(config.get("resource_pools"))):
        provider = schema.mapping(pool.get("provider"))
        yield from _check_provider(f"resource_pools[{number}].provider", provider)


def _check_pool_names(config: dict[str, Any]) -> Iterator[Finding]:
    """Yield findings on pools that have one name, and on default pools that are not there."""
    manager = schema.mapping(config.get("resource_manager"))
    kind, pools = manager.get("type", "agent"), config.get("resource_pools")
    if pools == [] and kind in ("agent", "kubernetes"):
        problem = "empty; name a pool, or leave the key out (only the fork takes it)"
        yield Finding("resource_pools", problem)
    mine = [pool.get("pool_name") for pool in _pools(config)]
    extra = schema.mappings(config.get("additional_resource_managers"))
    others = [pool for one in extra for pool in schema.mappings(one.get("resource_pools"))]
    names = mine + [pool.get("pool_name") for pool in others]
    for name in sorted({str(name) for name in names if names.count(name) > 1}):
        yield Finding("resource_pools", f"two pools are named {name!r}; rename one")
    for key, old in _DEFAULTS.items() if kind == "agent" else ():
        name = manager.get(key) or manager.get(old) or "default"
        if name not in mine and not manager.get("no_default_resource_pools"):
            hint = nearest(str(name), [str(n) for n in mine])
            yield Finding(f"resource_manager.{key}", f"no pool is named {name!r}; {hint}")


_DEFAULTS = {
    "default_aux_resource_pool": "default_cpu_resource_pool",
    "default_compute_resource_pool": "default_gpu_resource_pool",
}


def _pools(config: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the main manager's pools; `default`, as the master does, if the config has none."""
    if config.get("resource_pools") is None:
        return [{"pool_name": "default"}]
    return schema.mappings(config["resource_pools"])


def _check_kubernetes(config: dict[str, Any]) -> Iterator[Finding]:
    manager = schema.mapping(config.get("resource_manager"))
    if manager.get("type") != "kubernetes":
        return
    tasks = schema.mapping(config.get("task_container_defaults"))
    there = [manager, schema.mapping(tasks.get("kubernetes"))]
    if config.get("additional_resource_managers"):
        there = [manager]
    if sum(one.get("max_slots_per_pod") is not None for one in there) != 1:
        problem = "give it here or in task_container_defaults.kubernetes, exactly once"
        yield Finding("resource_manager.max_slots_per_pod", problem)


def _check_defaults(config: dict[str, Any]) -> Iterator[Finding]:
    """Warn about valid settings that surprise users later."""
    if config.get("checkpoint_storage") is None:
        problem = "missing: every experiment has to name its own, or is refused"
        yield Finding("checkpoint_storage", problem, warning=True)
    security = schema.mapping(config.get("security"))
    if not security.get("initial_user_password"):
        problem = "missing: a new cluster's users have blank passwords, which 0.38's det refuses"
        yield Finding("security.initial_user_password", problem, warning=True)
    if schema.mapping(security.get("authz")).get("type") == "rbac":
        problem = "the open-source master starts with it, and has no roles"
        yield Finding("security.authz.type", problem, warning=True)


def _check_provider(key: str, provider: dict[str, Any]) -> Iterator[Finding]:
    """Yield findings on the number of machines, and on an instance type and its slots."""
    least, most = provider.get("min_instances"), provider.get("max_instances", 5)
    if isinstance(least, int) and isinstance(most, int) and least > most:
        yield Finding(f"{key}.min_instances", f"{least} is more than max_instances {most}")
    kind, slots = provider.get("instance_type"), provider.get("instance_slots")
    if provider.get("type") != "aws" or not isinstance(kind, str):
        return
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
    manager = schema.mapping(config.get("resource_manager"))
    key = "default_compute_resource_pool"
    default = manager.get(key) or manager.get(_DEFAULTS[key]) or "default"
    storage = config.get("checkpoint_storage")
    kept = storage if isinstance(storage, dict) else None
    return Cluster(pools(config), str(default), config.get("launch_error") is not False, kept)


def pools(config: dict[str, Any]) -> dict[str, Pool]:
    """Return the pools of a master config by name."""
    tasks = schema.mapping(config.get("task_container_defaults"))
    found = {}
    for raw in _pools(config):
        name, provider = str(raw.get("pool_name")), schema.mapping(raw.get("provider"))
        kind, slots, gpu = _machine(provider) if provider else own_machine(name)
        if slots == 0 and provider.get("cpu_slots_allowed"):
            slots = 1
        most = schema.whole(provider.get("max_instances", 5)) if provider else None
        on_gcp = schema.mapping(provider.get("instance_type"))
        spot = provider.get("spot") is True or on_gcp.get("preemptible") is True
        own = tasks | schema.mapping(raw.get("task_container_defaults"))
        root = schema.whole(provider.get("root_volume_size")) or 200
        found[name] = Pool(
            name, slots, most, gpu, spot, kind, own.get("image"), None, root, not provider, own
        )
    return found


def own_machine(name: str) -> tuple[str, int | None, Gpu | None]:
    """Return the type in the name of a pool without provider, and that type's slots and GPU."""
    kind = instance_in(name)
    return kind, SLOTS.get(kind), gpu_of(kind)


def _machine(provider: dict[str, Any]) -> tuple[str, int | None, Gpu | None]:
    """Return a provider's machine type, slots per machine and GPU, each as far as known."""
    if provider.get("type") == "gcp":
        instance = schema.mapping(provider.get("instance_type"))
        gpu = GCE_GPUS.get(str(instance.get("gpu_type", "nvidia-tesla-t4")))
        slots = schema.whole(instance.get("gpu_num", 4))
        kind = str(instance.get("machine_type", "n1-standard-32"))
        return f"{kind} with {slots} {gpu.name}" if gpu and slots else kind, slots, gpu
    kind = str(provider.get("instance_type", "g4dn.metal"))
    slots = schema.whole(provider.get("instance_slots"))
    return kind, SLOTS.get(kind) if slots is None or kind in MAPPED else slots, gpu_of(kind)

"""The keys of a master config (0.38.1, agents on EC2 or on machines of your own) and its pools.

The master refuses unknown keys and does not start, so they are all named here. The `gcp`
provider, Kubernetes and Slurm are not: this package brings no config for them.
"""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from cluster import schema
from cluster.expconf import BIND_MOUNTS, CHECKPOINT_STORAGE, LOG_POLICIES
from cluster.machines import DETERMINED_SLOTS, EC2_GPUS, Gpu, gpu_of
from cluster.schema import ANY_MAP, FLAG, TEXT, WHOLE, Finding, Map, Seq, Union_, Value, keys

_FITTING = {
    "type": TEXT,
    "fitting_policy": Value((str,), choices=("best", "worst")),
    "allow_heterogeneous_fits": FLAG,
}
_PREEMPTING = {"preemption": FLAG, "default_priority": schema.PRIORITY}
_SCHEDULER = Union_(
    "type", {"priority": Map({**_FITTING, **_PREEMPTING}), "fair_share": Map(_FITTING)}
)
_TASKS = Map(
    {
        **keys(TEXT, "dtrain_network_interface nccl_port_range gloo_port_range network_mode"),
        **keys(TEXT, "work_dir startup_hook"),
        **keys(schema.POSITIVE, "shm_size_bytes preemption_timeout"),
        **keys(schema.TEXTS, "add_capabilities drop_capabilities"),
        "image": Value((str, dict)),
        "registry_auth": ANY_MAP,
        "force_pull_image": FLAG,
        "environment_variables": Value((list, dict)),
        "devices": Seq(ANY_MAP),
        "bind_mounts": BIND_MOUNTS,
        "log_policies": LOG_POLICIES,
    }
)
_DURATION = Value((str,), hint='write it as "10m" or "1h30m"')
_AWS = Map(
    {
        **keys(TEXT, "type master_url master_cert_name startup_script container_startup_script"),
        **keys(TEXT, "agent_docker_network agent_docker_runtime agent_docker_image region"),
        **keys(TEXT, "image_id tag_key tag_value instance_name ssh_key_name instance_type"),
        **keys(TEXT, "iam_instance_profile_arn log_group log_stream"),
        **keys(WHOLE, "agent_reconnect_attempts agent_reconnect_backoff"),
        **keys(_DURATION, "max_idle_agent_period max_agent_starting_period launch_error_timeout"),
        **keys(schema.COUNT, "min_instances launch_error_retries instance_slots"),
        **keys(FLAG, "spot cpu_slots_allowed"),
        "agent_config_file_contents": ANY_MAP,
        "max_instances": schema.POSITIVE,
        "root_volume_size": Value((int,), minimum=100),
        "network_interface": Map({"public_ip": FLAG, **keys(TEXT, "subnet_id security_group_id")}),
        "spot_max_price": Value((str,), hint='quote it, without a currency sign: "7.50"'),
        "custom_tags": Seq(Map(keys(TEXT, "key value"), ("key", "value"))),
    },
    ("ssh_key_name", "instance_type", "max_instances"),
    {"agent_fluent_image": "no longer read; leave it out"},
)
_POOL = Map(
    {
        **keys(TEXT, "pool_name description"),
        "provider": Union_("type", {"aws": _AWS}),
        "scheduler": _SCHEDULER,
        "max_aux_containers_per_agent": schema.COUNT,
        "task_container_defaults": _TASKS,
        "agent_reconnect_wait": _DURATION,
    },
    ("pool_name",),
    {
        "agent_reattach_enabled": "always on since 0.21; leave it out",
        "max_cpu_containers_per_agent": "use max_aux_containers_per_agent",
    },
)
_MANAGER = Map(
    {
        "type": Value((str,), choices=("agent",), hint="only agent clusters are checked here"),
        **keys(TEXT, "cluster_name client_ca"),
        **keys(TEXT, "default_aux_resource_pool default_compute_resource_pool"),
        **keys(FLAG, "no_default_resource_pools require_authentication"),
        "scheduler": _SCHEDULER,
        "metadata": ANY_MAP,
    },
    ("type",),
    {
        "name": "use cluster_name",
        "default_cpu_resource_pool": "use default_aux_resource_pool",
        "default_gpu_resource_pool": "use default_compute_resource_pool",
    },
)
MASTER = Map(
    {
        **keys(ANY_MAP, "db security log telemetry logging retention_policy observability"),
        **keys(ANY_MAP, "ui_customization webhooks integrations cache scim saml oidc det_cloud"),
        "__internal": ANY_MAP,
        **keys(TEXT, "config_file root cluster_name"),
        **keys(schema.COUNT, "tensorboard_timeout notebook_timeout"),
        **keys(FLAG, "enable_cors launch_error"),
        "feature_switches": schema.TEXTS,
        "reserved_ports": Seq(WHOLE),
        "additional_resource_managers": Seq(schema.ANY),
        "port": Value((int,), minimum=0, maximum=65535),
        "checkpoint_storage": CHECKPOINT_STORAGE,
        "task_container_defaults": _TASKS,
        "resource_manager": _MANAGER,
        "resource_pools": Seq(_POOL),
    },
    ("resource_manager", "resource_pools", "checkpoint_storage"),
)


class Pool(NamedTuple):
    """A resource pool as an experiment sees it."""

    name: str
    slots_per_agent: int | None  # None: machines of your own, which the config does not describe
    max_agents: int | None
    gpu: Gpu | None
    spot: bool


def check_master(file: str, config: dict[str, Any]) -> Iterator[Finding]:
    """Keys, types, instance types, prices and pool names of a master config."""
    yield from schema.check(file, "", config, MASTER)
    raw_pools = schema.mappings(config.get("resource_pools"))
    names = [pool.get("pool_name") for pool in raw_pools]
    for name in sorted({str(name) for name in names if names.count(name) > 1}):
        yield Finding(file, "resource_pools", f"two pools are named {name!r}; rename one")
    manager = schema.mapping(config.get("resource_manager"))
    for key in ("default_aux_resource_pool", "default_compute_resource_pool"):
        name = manager.get(key, "default")
        if name not in names and not manager.get("no_default_resource_pools"):
            hint = schema.nearest(str(name), [str(n) for n in names])
            yield Finding(file, f"resource_manager.{key}", f"no pool is named {name!r}; {hint}")
    for number, pool in enumerate(raw_pools):
        provider = pool.get("provider")
        if isinstance(provider, dict):
            yield from _check_provider(file, f"resource_pools[{number}].provider", provider)


def _check_provider(file: str, key: str, provider: dict[str, Any]) -> Iterator[Finding]:
    kind, slots = provider.get("instance_type"), provider.get("instance_slots")
    known = DETERMINED_SLOTS.get(str(kind))
    named = isinstance(kind, str) and not schema.PLACEHOLDER.search(kind)
    if named and known is None and slots is None:
        near, count = f" ({schema.nearest(kind, [*DETERMINED_SLOTS, *EC2_GPUS])})", ""
        if kind in EC2_GPUS:
            near, count = "", f", {EC2_GPUS[kind]}"
        problem = f"missing; Determined's map has no {kind}{near}: set instance_slots to its GPUs"
        yield Finding(file, f"{key}.instance_slots", problem + count)
    right = EC2_GPUS.get(str(kind), known)
    if slots is not None and right is not None and slots != right:
        problem = f"{slots}, but a {kind} has {right}; set {right}"
        yield Finding(file, f"{key}.instance_slots", problem)
    price = provider.get("spot_max_price")
    if isinstance(price, str) and not re.fullmatch(r"\d+(\.\d*)?|<<.*>>", price):
        problem = f'{price!r} is not digits with at most one point; write it as "7.50"'
        yield Finding(file, f"{key}.spot_max_price", problem)
    if price is not None and not provider.get("spot"):
        yield Finding(file, f"{key}.spot_max_price", "only read with spot: true; set that too")
    least, most = provider.get("min_instances"), provider.get("max_instances")
    if isinstance(least, int) and isinstance(most, int) and least > most:
        yield Finding(file, f"{key}.min_instances", f"{least} is more than max_instances {most}")


def pools(config: dict[str, Any]) -> dict[str, Pool]:
    """The pools of a master config by name."""
    found = {}
    for raw in schema.mappings(config.get("resource_pools")):
        provider = schema.mapping(raw.get("provider"))
        kind = str(provider.get("instance_type"))
        slots = provider.get("instance_slots")
        if not isinstance(slots, int):
            slots = DETERMINED_SLOTS.get(kind, EC2_GPUS.get(kind))
        if slots == 0 and provider.get("cpu_slots_allowed"):
            slots = 1
        name = str(raw.get("pool_name"))
        most = provider.get("max_instances", 5) if provider else None
        most = most if isinstance(most, int) else None
        found[name] = Pool(name, slots, most, gpu_of(kind), provider.get("spot") is True)
    return found

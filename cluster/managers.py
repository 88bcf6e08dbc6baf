"""The resource managers of a master config, and `task_container_defaults`, as 0.38.1 takes them."""

from typing import Any

from cluster import gotext, parts, schema
from cluster.schema import ANY_MAP, COUNT, FLAG, TEXT, WHOLE, Map, Named, Union_, Value, keys

_FITTING = {
    "type": TEXT,
    "fitting_policy": Value((str,), choices=("best", "worst", "")),
    "allow_heterogeneous_fits": FLAG,
}
_PREEMPTING = {"preemption": FLAG, "default_priority": schema.PRIORITY}
SCHEDULER = Union_(
    "type",
    {"priority": Map({**_FITTING, **_PREEMPTING}), "fair_share": Map(_FITTING)},
    required=False,
)


def _network_problem(name: str) -> str | None:
    """Docker takes any other word as the name of a network, which has to be on every agent."""
    modes = ["bridge", "host", "none", "default"]
    hint = schema.nearest(name, modes)
    if name and (name in modes or name.startswith("container:") or "did you" not in hint):
        return None
    return f"{name!r} is a Docker network that may not be there; {hint}"


_DEVICE_TYPES = Value((str,), choices=("cpu", "cuda", "rocm", "gpu"))
TASKS = Map(
    {
        **keys(TEXT, "dtrain_network_interface nccl_port_range gloo_port_range startup_hook"),
        "network_mode": Value((str,), rule=_network_problem),
        "work_dir": Value((str,), rule=gotext.absolute_problem),
        **keys(schema.POSITIVE, "shm_size_bytes preemption_timeout"),
        **keys(schema.TEXTS, "add_capabilities drop_capabilities"),
        **keys(ANY_MAP, "cpu_pod_spec gpu_pod_spec checkpoint_gc_pod_spec"),
        "kubernetes": Map({"max_slots_per_pod": COUNT}),
        "slurm": parts.hpc("sbatch_args", "gpu_type"),
        "pbs": parts.hpc("pbsbatch_args"),
        "image": parts.IMAGE,
        "registry_auth": parts.REGISTRY_AUTH,
        "force_pull_image": FLAG,
        "environment_variables": parts.VARIABLES,
        "devices": parts.DEVICES,
        "bind_mounts": parts.BIND_MOUNTS,
        "log_policies": parts.LOG_POLICIES,
    }
)
_DEFAULT_POOLS = {
    **keys(TEXT, "default_aux_resource_pool default_compute_resource_pool"),
    "no_default_resource_pools": FLAG,
}
_ANY_MANAGER = {**keys(TEXT, "type name cluster_name"), "metadata": Named(TEXT), **_DEFAULT_POOLS}
_NAME = {"name": "use cluster_name"}
_OLD_POOLS = {
    "default_cpu_resource_pool": "use default_aux_resource_pool",
    "default_gpu_resource_pool": "use default_compute_resource_pool",
}
_AGENT = Map(
    {
        **_ANY_MANAGER,
        **keys(TEXT, " ".join(["client_ca", *_OLD_POOLS])),
        "require_authentication": FLAG,
        "no_default_resource_pools": Value(
            (bool,),
            rule=lambda none: (
                "0.38.1 refuses it, with default pools and without; leave it out" if none else None
            ),
        ),
        "scheduler": SCHEDULER,
    },
    deprecated={**_NAME, **_OLD_POOLS},
)
_GATEWAY_PORT = Value((int,), minimum=1025, maximum=65535)


def _gateway_problem(gateway: dict[str, Any]) -> str | None:
    first = schema.whole(gateway.get("gateway_port_range_start", 32768))
    last = schema.whole(gateway.get("gateway_port_range_end", 65535))
    if first is not None and last is not None and first >= last:
        return f"the port range {first} to {last} is empty"
    return None


_GATEWAY = Map(
    {
        **keys(schema.FILLED, "gateway_name gateway_namespace gateway_ip"),
        **keys(_GATEWAY_PORT, "gateway_port_range_start gateway_port_range_end"),
    },
    ("gateway_name", "gateway_namespace", "gateway_ip"),
    rule=_gateway_problem,
)
_KUBERNETES = Map(
    {
        **_ANY_MANAGER,
        **keys(TEXT, "default_namespace master_service_name kubeconfig_path"),
        **keys(TEXT, "determined_master_scheme determined_master_host determined_master_ip"),
        "determined_master_port": WHOLE,
        "max_slots_per_pod": COUNT,
        "leave_kubernetes_resources": FLAG,
        "default_scheduler": Value((str,), choices=("", "coscheduler")),
        "slot_type": _DEVICE_TYPES,
        "slot_resource_requests": Map({"cpu": schema.NUMBER}),
        "fluent": Map({"image": TEXT, **keys(WHOLE, "uid gid")}),
        "internal_task_gateway": _GATEWAY,
    },
    deprecated={**_NAME, "fluent": "no longer read; leave it out"},
    rule=lambda manager: (
        "slot_type cpu needs slot_resource_requests.cpu above 0"
        if manager.get("slot_type") == "cpu"
        and not (schema.mapping(manager.get("slot_resource_requests")).get("cpu") or 0)
        else None
    ),
)
_PARTITION = Map(
    {
        **keys(TEXT, "rendezvous_network_interface proxy_network_interface description"),
        "slot_type": _DEVICE_TYPES,
        "task_container_defaults": TASKS,
    }
)
TLS_CLIENT = Map(
    {**keys(FLAG, "enabled skip_verify"), **keys(TEXT, "certificate certificate_name")},
    rule=lambda tls: (
        "a certificate is not read with skip_verify; leave one out"
        if tls.get("skip_verify") and tls.get("certificate")
        else None
    ),
)
_HPC = Map(
    {
        **{key: spec for key, spec in _ANY_MANAGER.items() if key != "no_default_resource_pools"},
        **keys(TEXT, "master_host host protocol auth_file rendezvous_network_interface"),
        **keys(TEXT, "proxy_network_interface user_name group_name singularity_image_root"),
        **keys(TEXT, "apptainer_image_root job_storage_root path ld_library_path sudo_authorized"),
        **keys(TEXT, "launcher_jvm_args job_project_source"),
        "container_run_type": Value(
            (str,), choices=("singularity", "apptainer", "podman", "enroot")
        ),
        **keys(WHOLE, "master_port port"),
        **keys(FLAG, "tres_supported gres_supported"),
        "slot_type": Value((str,), choices=("cpu", "cuda", "rocm")),
        "security": Map({"tls": TLS_CLIENT}),
        "partition_overrides": Named(_PARTITION),
    },
    deprecated=_NAME,
)
MANAGER = Union_(
    "type",
    {"agent": _AGENT, "kubernetes": _KUBERNETES, "slurm": _HPC, "pbs": _HPC},
    default="agent",
)

"""The keys of a master config, as Determined 0.38.1's master takes them.

It refuses an unknown key and does not start; in a pool, in task_container_defaults and in a
provider's network_interface it ignores one silently, which is as bad: all are named here.
"""

from typing import Any

from cluster import gotext, parts, schema
from cluster.parts import CHECKPOINT_STORAGE, LOG_POLICIES
from cluster.provider import PROVIDER
from cluster.schema import (
    ANY_MAP,
    COUNT,
    FLAG,
    TEXT,
    WHOLE,
    Map,
    Named,
    Seq,
    Union_,
    Value,
    keys,
)

_FITTING = {
    "type": TEXT,
    "fitting_policy": Value((str,), choices=("best", "worst", "")),
    "allow_heterogeneous_fits": FLAG,
}
_PREEMPTING = {"preemption": FLAG, "default_priority": schema.PRIORITY}
_SCHEDULER = Union_(
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
        "log_policies": LOG_POLICIES,
    }
)
POOL = Map(
    {
        "pool_name": schema.FILLED,
        "description": TEXT,
        "provider": PROVIDER,
        "scheduler": _SCHEDULER,
        "max_aux_containers_per_agent": COUNT,
        "max_cpu_containers_per_agent": Value((int,), minimum=-1),
        "agent_reattach_enabled": FLAG,
        "task_container_defaults": TASKS,
        "agent_reconnect_wait": Value((str,), rule=gotext.duration_problem),
    },
    ("pool_name",),
    {
        "agent_reattach_enabled": "always on since 0.21; leave it out",
        "max_cpu_containers_per_agent": "use max_aux_containers_per_agent",
        "max_slots": "no key of a pool any more; leave it out",
    },
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
            rule=lambda none: "0.38.1 refuses it, with default pools and without; leave it out"
            if none
            else None,
        ),
        "scheduler": _SCHEDULER,
    },
    deprecated={**_NAME, **_OLD_POOLS},
)
_GATEWAY = Map(
    {
        **keys(schema.FILLED, "gateway_name gateway_namespace gateway_ip"),
        **keys(Value((int,), minimum=1025, maximum=65535), "gateway_port_range_start"),
        **keys(Value((int,), minimum=1025, maximum=65535), "gateway_port_range_end"),
    },
    ("gateway_name", "gateway_namespace", "gateway_ip"),
    rule=lambda gate: "the port range ends before it starts"
    if (gate.get("gateway_port_range_start") or 32768) >= (gate.get("gateway_port_range_end") or 65535)
    else None,
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
    rule=lambda manager: "slot_type cpu needs slot_resource_requests.cpu above 0"
    if manager.get("slot_type") == "cpu"
    and not (schema.mapping(manager.get("slot_resource_requests")).get("cpu") or 0)
    else None,
)
_PARTITION = Map(
    {
        **keys(TEXT, "rendezvous_network_interface proxy_network_interface description"),
        "slot_type": _DEVICE_TYPES,
        "task_container_defaults": TASKS,
    }
)
_TLS_CLIENT = Map(
    {**keys(FLAG, "enabled skip_verify"), **keys(TEXT, "certificate certificate_name")},
    rule=lambda tls: "a certificate is not read with skip_verify; leave one out"
    if tls.get("skip_verify") and tls.get("certificate")
    else None,
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
        "security": Map({"tls": _TLS_CLIENT}),
        "partition_overrides": Named(_PARTITION),
    },
    deprecated=_NAME,
)
MANAGER = Union_(
    "type",
    {"agent": _AGENT, "kubernetes": _KUBERNETES, "slurm": _HPC, "pbs": _HPC},
    default="agent",
)
_EXTRA = Map({"resource_manager": MANAGER, "resource_pools": Seq(POOL)}, ("resource_manager",))

_LOGGING = Union_(
    "type",
    {
        "default": Map({"type": TEXT}),
        "elastic": Map(
            {
                **keys(TEXT, "type host"),
                "port": WHOLE,
                "security": Map(
                    {**keys(TEXT, "username password"), "tls": _TLS_CLIENT},
                    rule=lambda login: "username and password go together"
                    if ("username" in login) != ("password" in login)
                    else None,
                ),
            }
        ),
    },
    required=False,
)
_PROVISION = "auto_provision_users always_redirect enabled"
_ATTRIBUTES = """provider idp_recipient_url idp_sso_url groups_attribute_name
display_name_attribute_name agent_uid_attribute_name agent_gid_attribute_name
agent_user_name_attribute_name agent_group_name_attribute_name"""
_SAML_NEEDS = "provider idp_recipient_url idp_sso_url idp_sso_descriptor_url idp_metadata_url"
_SAML = Map(
    {
        **keys(FLAG, _PROVISION),
        **keys(TEXT, f"{_ATTRIBUTES} idp_sso_descriptor_url idp_metadata_url"),
    },
    rule=lambda saml: f"enabled needs all of {', '.join(_SAML_NEEDS.split())}"
    if saml.get("enabled") and not all(saml.get(name) for name in _SAML_NEEDS.split())
    else None,
)
_SCIM_AUTH = Union_(
    "type",
    {
        "basic": Map({"type": TEXT, **keys(schema.FILLED, "username password")},
                     ("username", "password")),
        "oauth": Map({"type": TEXT}),
    },
    required=False,
)  # fmt: skip
_PROXIED = Map(keys(schema.FILLED, "path_prefix destination"), ("path_prefix", "destination"))
_SESSIONS = Map(keys(TEXT, "login_uri logout_uri invalidation_uri jwt_key org_id cluster_id"))
_INTERNAL = Map(
    {
        "audit_logging_enabled": FLAG,
        "external_sessions": _SESSIONS,
        "proxied_servers": Seq(_PROXIED),
        "preemption_timeout": TEXT,  # moved to task_container_defaults
    }
)
_LOGOS = schema.FILLED
_LEVELS = ("panic", "fatal", "error", "warn", "warning", "info", "debug", "trace")
LOOSE_TEXT = Value((str, int, float, bool))  # the master makes text of these
_TRUTHS = ("true", "True", "TRUE", "t", "T", "1", "false", "False", "FALSE", "f", "F", "0")
LOOSE_FLAG = Value((bool, str, int), choices=(True, False, *_TRUTHS))  # and a truth value of these


def _digits_problem(value: Any) -> str | None:
    """Any other text is the same as 0 to the master."""
    if isinstance(value, str) and not value.isdigit():
        return f"{value!r} is no number; give one"
    return None


LOOSE_COUNT = Value((int, str), minimum=0, rule=_digits_problem)
SECTIONS: dict[str, Any] = {
    "log": Map({"level": Value((str,), choices=_LEVELS), "color": LOOSE_FLAG}),
    "telemetry": Map(
        {
            **keys(LOOSE_FLAG, "enabled otel_enabled"),
            **keys(LOOSE_TEXT, "segment_master_key segment_webui_key otel_endpoint"),
            "cluster_id": TEXT,
        }
    ),
    "logging": _LOGGING,
    "retention_policy": Map(
        {
            "log_retention_days": Value((int,), minimum=-1, maximum=32767),
            "schedule": Value((str,), rule=gotext.schedule_problem),
        }
    ),
    "observability": Map({"enable_prometheus": FLAG}),
    "cache": Map({"cache_dir": TEXT}),
    "webhooks": Map(keys(LOOSE_TEXT, "base_url signing_key")),
    "integrations": Map({"pachyderm": Map({"address": TEXT})}),
    "ui_customization": Map(
        {"logo_paths": Map(keys(TEXT, "dark_horizontal dark_vertical light_horizontal "
                                      "light_vertical"))}
    ),
    "scim": Map({"enabled": FLAG, "auth": _SCIM_AUTH}),
    "saml": _SAML,
    "oidc": Map(
        {
            **keys(FLAG, f"{_PROVISION} exclude_groups_scope"),
            **keys(TEXT, f"{_ATTRIBUTES} client_id client_secret authentication_claim"),
            "scim_authentication_attribute": TEXT,
        }
    ),
    "det_cloud": Map({**keys(FLAG, "enabled always_redirect"), "login_url": TEXT}),
    "__internal": _INTERNAL,
}  # fmt: skip
ROOT: dict[str, Any] = {
    **keys(LOOSE_TEXT, "config_file root"),
    "cluster_name": TEXT,
    **keys(COUNT, "tensorboard_timeout notebook_timeout"),
    **keys(FLAG, "enable_cors launch_error"),
    "feature_switches": schema.TEXTS,
    "reserved_ports": Seq(WHOLE),
    "additional_resource_managers": Seq(_EXTRA),
    "port": Value((int, str), minimum=0, maximum=65535, rule=_digits_problem),
    "checkpoint_storage": CHECKPOINT_STORAGE,
    "task_container_defaults": TASKS,
    "resource_manager": MANAGER,
    "resource_pools": Seq(POOL),
}

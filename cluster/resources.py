"""What an experiment config asks of its containers: `environment:` and `resources:`."""

from typing import Any

from cluster import parts, schema
from cluster.schema import FLAG, TEXT, WHOLE, Map, Named, Seq, Value, keys

_POD_SPEC = """activeDeadlineSeconds affinity automountServiceAccountToken containers dnsConfig
dnsPolicy enableServiceLinks ephemeralContainers hostAliases hostIPC hostNetwork hostPID hostUsers
hostname imagePullSecrets initContainers nodeName nodeSelector os overhead preemptionPolicy priority
priorityClassName readinessGates resourceClaims restartPolicy runtimeClassName schedulerName
schedulingGates securityContext serviceAccount serviceAccountName setHostnameAsFQDN
shareProcessNamespace subdomain terminationGracePeriodSeconds tolerations topologySpreadConstraints
volumes""".split()
_OUR_CONTAINER = """image command args working_dir ports liveness_probe readiness_probe
startup_probe lifecycle termination_message_path termination_message_policy image_pull_policy
security_context""".split()


def _pod_problem(pod: dict[str, Any]) -> str | None:
    """What Determined does not let a pod spec set, and what Kubernetes would drop silently."""
    spec = pod.get("spec")
    if {"name", "name_space"} & set(pod):
        return "a pod's name and namespace are Determined's to set; leave them out"
    if spec is not None and not isinstance(spec, dict):
        return f"spec: expected a mapping of keys, got {schema.shown(spec)}"
    texts = {"kind": str, "apiVersion": str, "metadata": dict}
    for key in [key for key, kind in texts.items() if not isinstance(pod.get(key, kind()), kind)]:
        return f"{key}: got {schema.shown(pod[key])}"
    for key in spec or ():
        if key not in _POD_SPEC:
            hint = schema.nearest(str(key), _POD_SPEC)
            return f"spec.{key}: unknown key, dropped silently; {hint}"
    containers = (spec or {}).get("containers")
    if containers is not None and not isinstance(containers, list):
        return "spec.containers: expected a list; begin lines with '-'"
    for container in schema.mappings(containers):
        ours = container.get("name", "determined-container") == "determined-container"
        taken = set(_OUR_CONTAINER) & set(container)
        if ours and taken:
            return f"determined-container: {', '.join(sorted(taken))} is not the pod spec's to set"
    return None


_PROXY = {"proxy_port": schema.PORT, **keys(FLAG, "proxy_tcp unauthenticated default_service_id")}
ENVIRONMENT = Map(
    {
        "image": parts.IMAGE,
        "environment_variables": parts.VARIABLES,
        "proxy_ports": Seq(Map(_PROXY, ("proxy_port",))),
        "force_pull_image": FLAG,
        "ports": Named(WHOLE),
        "registry_auth": parts.REGISTRY_AUTH,
        "pod_spec": Value((dict,), rule=_pod_problem),
        **keys(schema.TEXTS, "add_capabilities drop_capabilities"),
    }
)


def _slots_problem(resources: dict[str, Any]) -> str | None:
    most, slots = resources.get("max_slots"), resources.get("slots_per_trial", 1)
    if isinstance(most, int) and isinstance(slots, int) and most < slots:
        return f"max_slots {most} is less than a trial's {slots} slots: it may never be scheduled"
    return None


SHM_HINT = "give a whole number of bytes, as 4294967296: 0.38.1 refuses text, whatever its form"
RESOURCES = Map(
    {
        "devices": parts.DEVICES,
        **keys(FLAG, "is_single_node native_parallel"),
        "agent_label": TEXT,
        "max_slots": WHOLE,
        "slots": Value((), hint="for commands only; an experiment has slots_per_trial"),
        "priority": schema.PRIORITY,
        "resource_pool": TEXT,
        "shm_size": Value((int,), minimum=0, hint=SHM_HINT),
        "slots_per_trial": schema.COUNT,
        "weight": Value((int, float), rule=schema.above(0)),
    },
    deprecated={
        "agent_label": "resource pools took its place; use resource_pool",
        "native_parallel": "it does nothing; processes come from determined.launch",
    },
    rule=_slots_problem,
)

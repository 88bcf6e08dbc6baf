"""Rules for experiment configs in Determined 0.38.1; keys.yaml refers to them by name."""

from typing import Any, TypeGuard

from cluster import parts, schema
from detalbert.errors import nearest

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


def pod_problem(pod: dict[str, Any]) -> str | None:
    """Say which key Determined does not allow in a pod spec, or Kubernetes would drop silently."""
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
            hint = nearest(str(key), _POD_SPEC)
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


def slots_problem(resources: dict[str, Any]) -> str | None:
    """Say why a trial may never be scheduled; None if it can be."""
    most, slots = resources.get("max_slots"), resources.get("slots_per_trial", 1)
    if isinstance(most, int) and isinstance(slots, int) and most < slots:
        return f"max_slots {most} is less than a trial's {slots} slots: it may never be scheduled"
    return None


def length_problem(length: dict[str, Any]) -> str | None:
    """Say why `length` is not exactly one length; None if it is."""
    if len(length) == len(parts.given(length)) == 1:
        return None
    return "give exactly one of batches, records and epochs"


def profiling_problem(profiling: dict[str, Any]) -> str | None:
    """Say why nothing would be profiled; None if something is."""
    first, last = profiling.get("begin_on_batch"), profiling.get("end_after_batch")
    first = first if isinstance(first, (int, float)) else 0
    if isinstance(last, (int, float)) and first > last:
        return "begin_on_batch is after end_after_batch; change one"
    return None


def base_problem(base: float) -> str | None:
    """Say why `base` is not a base of a logarithm; None if it is."""
    return None if base > 0 else f"{base} is not more than 0"


def vals_problem(vals: list[Any]) -> str | None:
    """Say why there is nothing to choose from; None if there is."""
    return None if vals else "empty; give at least one value"


def ends_problem(value: dict[str, Any]) -> str | None:
    """Say why a range is empty; None if it is not."""
    low, high = value.get("minval"), value.get("maxval")
    if is_number(low) and is_number(high) and low >= high:
        return f"minval {low} is not below maxval {high}"
    return None


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether `value` is a number and not a bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)

"""A pool's `provider:`, the machines that the master starts and ends by itself: EC2 and GCE."""

import re
from collections.abc import Iterator
from typing import Any

from cluster import gotext, schema
from cluster.machines import DETERMINED_SLOTS, EC2_GPUS
from cluster.schema import ANY_MAP, COUNT, FLAG, TEXT, WHOLE, Finding, Map, Seq, Union_, Value, keys

# Regions that 0.38.1 has an agent image (AMI) for; elsewhere a pool names its own.
AMI_REGIONS = """ap-northeast-1 ap-northeast-2 ap-southeast-1 ap-southeast-2 eu-central-1 eu-west-1
eu-west-2 us-east-1 us-east-2 us-west-2""".split()
_PERIOD = Value((str,), rule=gotext.period_problem, hint='write it as "10m" or "1h30m"', null=False)
_COMMON = {
    **keys(TEXT, "type master_cert_name startup_script container_startup_script"),
    **keys(TEXT, "agent_docker_network agent_docker_runtime agent_fluent_image"),
    "master_url": Value((str,), rule=gotext.master_url_problem),
    "agent_docker_image": schema.FILLED,
    **keys(WHOLE, "agent_reconnect_attempts agent_reconnect_backoff"),
    **keys(_PERIOD, "max_idle_agent_period max_agent_starting_period"),
    "launch_error_timeout": Value((str,), rule=gotext.duration_problem),
    **keys(COUNT, "min_instances launch_error_retries"),
    "max_instances": schema.POSITIVE,
    "agent_config_file_contents": ANY_MAP,
    "cpu_slots_allowed": FLAG,
}


def _identifier(kind: str) -> Value:
    """The ID of an EC2 resource, which begins with its kind."""

    def rule(text: str) -> str | None:
        if not text or re.match(rf"{kind}-[0-9a-f]+$", text):
            return None
        return f"{text!r} is no ID, and EC2 would refuse every launch; write it as {kind}-0123abcd"

    return Value((str,), rule=rule)


def _profile_problem(text: str) -> str | None:
    if not text or re.match(r"arn:aws[\w-]*:iam::\d{12}:instance-profile/\S+$", text):
        return None
    example = "arn:aws:iam::123456789012:instance-profile/NAME"
    return f"{text!r} is no instance profile's ARN, and EC2 would refuse every launch; as {example}"


_NETWORK = Map(
    {
        "public_ip": FLAG,
        "subnet_id": _identifier("subnet"),
        "security_group_id": _identifier("sg"),
    }
)
_OLD = {"agent_fluent_image": "no longer read; leave it out"}
_AWS = Map(
    {
        **_COMMON,
        **keys(TEXT, "region image_id tag_key tag_value instance_name instance_type"),
        **keys(TEXT, "log_group log_stream"),
        "ssh_key_name": schema.FILLED,
        "iam_instance_profile_arn": Value((str,), rule=_profile_problem),
        "instance_slots": COUNT,
        "spot": FLAG,
        "root_volume_size": Value((int,), minimum=100),
        "network_interface": _NETWORK,
        "spot_max_price": Value((str,), hint='quote it, without a currency sign: "7.50"'),
        "custom_tags": Seq(Map(keys(TEXT, "key value"), ("key",))),
    },
    ("ssh_key_name",),
    _OLD,
)

GCE_MACHINES = """n1-standard n1-highmem n1-highcpu n1-ultramem m2-ultramem n1-megamem c2-standard
a2-highgpu a2-megagpu a2-ultragpu g2-standard n2-standard custom""".split()
GCE_GPUS = {
    "": (0,),
    **dict.fromkeys(("nvidia-tesla-t4", "nvidia-tesla-p100", "nvidia-tesla-p4"), (0, 1, 2, 4)),
    **dict.fromkeys(("nvidia-tesla-v100", "nvidia-a100-80gb", "nvidia-l4"), (0, 1, 2, 4, 8)),
    "nvidia-tesla-a100": (0, 1, 2, 4, 8, 16),
}


def _gce_problem(instance: dict[str, Any]) -> str | None:
    machine = instance.get("machine_type", "n1-standard-32")
    gpu, count = instance.get("gpu_type", "nvidia-tesla-t4"), instance.get("gpu_num", 4)
    if not isinstance(machine, str) or not isinstance(gpu, str):
        return None  # their type is reported
    if len(machine.split("-")) != 3 or not machine.startswith(tuple(GCE_MACHINES)):
        return f"machine_type {machine!r} is not taken; {schema.nearest(machine, GCE_MACHINES)}"
    if gpu not in GCE_GPUS:
        return f"gpu_type {gpu!r} is not taken; {schema.nearest(gpu, list(GCE_GPUS))}"
    if count not in GCE_GPUS[gpu]:
        return f"gpu_num {count}: {gpu} has {', '.join(map(str, GCE_GPUS[gpu]))}"
    return None


_GCP = Map(
    {
        **_COMMON,
        **keys(TEXT, "project zone boot_disk_source_image boot_disk_type label_key label_value"),
        "name_prefix": TEXT,
        "base_config": ANY_MAP,
        "boot_disk_size": Value((int,), minimum=100),
        "labels": schema.Named(TEXT),
        "network_interface": Map({**keys(TEXT, "network subnetwork"), "external_ip": FLAG}),
        "network_tags": schema.TEXTS,
        "service_account": Map({"email": TEXT, "scopes": schema.TEXTS}),
        "instance_type": Map(
            {**keys(TEXT, "machine_type gpu_type"), "gpu_num": COUNT, "preemptible": FLAG},
            rule=_gce_problem,
        ),
        "operation_timeout_period": _PERIOD,
        "use_cloud_logging": FLAG,
    },
    deprecated=_OLD,
)
PROVIDER = Union_("type", {"aws": _AWS, "gcp": _GCP})


def check_provider(file: str, key: str, provider: dict[str, Any]) -> Iterator[Finding]:
    """What of a provider does not go together: instance type, slots, prices, region, numbers."""
    least, most = provider.get("min_instances"), provider.get("max_instances", 5)
    if isinstance(least, int) and isinstance(most, int) and least > most:
        yield Finding(file, f"{key}.min_instances", f"{least} is more than max_instances {most}")
    if provider.get("type") != "aws":
        return
    yield from _check_slots(file, key, provider)
    price = provider.get("spot_max_price")
    if price and isinstance(price, str) and price != "OnDemand":
        if not re.fullmatch(r"\d*\.?\d*|<<.*>>", price):
            problem = f'{price!r} is not digits with at most one point; write it as "7.50"'
            yield Finding(file, f"{key}.spot_max_price", problem)
        if not provider.get("spot"):
            yield Finding(file, f"{key}.spot_max_price", "only read with spot: true; set that too")
    region = provider.get("region")
    if provider.get("image_id") or not region or not isinstance(region, str):
        return
    if region not in AMI_REGIONS and not schema.PLACEHOLDER.search(region):
        hint = schema.nearest(region, AMI_REGIONS)
        problem = f"0.38.1 has no agent image for {region!r}, the master stops; set image_id"
        yield Finding(file, f"{key}.region", f"{problem}, or {hint}")


def _check_slots(file: str, key: str, provider: dict[str, Any]) -> Iterator[Finding]:
    kind, slots = provider.get("instance_type"), provider.get("instance_slots")
    known = DETERMINED_SLOTS.get(str(kind))
    named = isinstance(kind, str) and not schema.PLACEHOLDER.search(kind)
    if named and known is None and slots is None:
        near, count = f" ({schema.nearest(str(kind), [*DETERMINED_SLOTS, *EC2_GPUS])})", ""
        if kind in EC2_GPUS:
            near, count = "", f", {EC2_GPUS[kind]}"
        problem = f"missing; Determined's map has no {kind}{near}: set instance_slots to its GPUs"
        yield Finding(file, f"{key}.instance_slots", problem + count)
    right = EC2_GPUS.get(str(kind), known)
    if slots is not None and right is not None and slots != right:
        problem = f"{slots}, but a {kind} has {right}; set {right}"
        yield Finding(file, f"{key}.instance_slots", problem)

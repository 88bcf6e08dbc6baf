"""A pool's `provider:`, the EC2 or GCE machines that the master starts and ends by itself."""

import re
from collections.abc import Iterator
from typing import Any

from cluster import schema
from cluster.machines import DETERMINED_SLOTS, EC2_GPUS
from cluster.schema import Finding, Rule
from detalbert.errors import nearest

# Regions that 0.38.1 has an agent image (AMI) for; elsewhere a pool names its own.
AMI_REGIONS = """ap-northeast-1 ap-northeast-2 ap-southeast-1 ap-southeast-2 eu-central-1 eu-west-1
eu-west-2 us-east-1 us-east-2 us-west-2""".split()


def identifier(kind: str) -> Rule:
    """Return the rule for the ID of an EC2 resource, which begins with its kind."""

    def rule(text: str) -> str | None:
        if not text or re.match(rf"{kind}-[0-9a-f]+$", text):
            return None
        return f"{text!r} is no ID, and EC2 would refuse every launch; write it as {kind}-0123abcd"

    return rule


def profile_problem(text: str) -> str | None:
    """Say why `text` is not the ARN of an instance profile."""
    if not text or re.match(r"arn:aws[\w-]*:iam::\d{12}:instance-profile/\S+$", text):
        return None
    example = "arn:aws:iam::123456789012:instance-profile/NAME"
    return f"{text!r} is no instance profile's ARN, and EC2 would refuse every launch; as {example}"


GCE_MACHINES = """n1-standard n1-highmem n1-highcpu n1-ultramem m2-ultramem n1-megamem c2-standard
a2-highgpu a2-megagpu a2-ultragpu g2-standard n2-standard custom""".split()
GCE_GPUS = {
    "": (0,),
    **dict.fromkeys(("nvidia-tesla-t4", "nvidia-tesla-p100", "nvidia-tesla-p4"), (0, 1, 2, 4)),
    **dict.fromkeys(("nvidia-tesla-v100", "nvidia-a100-80gb", "nvidia-l4"), (0, 1, 2, 4, 8)),
    "nvidia-tesla-a100": (0, 1, 2, 4, 8, 16),
}


def gce_problem(instance: dict[str, Any]) -> str | None:
    """Say which key of a GCE machine is invalid."""
    machine = instance.get("machine_type", "n1-standard-32")
    gpu, count = instance.get("gpu_type", "nvidia-tesla-t4"), instance.get("gpu_num", 4)
    if not isinstance(machine, str) or not isinstance(gpu, str):
        return None  # their type is reported
    if len(machine.split("-")) != 3 or not machine.startswith(tuple(GCE_MACHINES)):
        return f"machine_type {machine!r} is not taken; {nearest(machine, GCE_MACHINES)}"
    if gpu not in GCE_GPUS:
        return f"gpu_type {gpu!r} is not taken; {nearest(gpu, list(GCE_GPUS))}"
    if count not in GCE_GPUS[gpu]:
        return f"gpu_num {count}: {gpu} has {', '.join(map(str, GCE_GPUS[gpu]))}"
    return None


def check_provider(file: str, key: str, provider: dict[str, Any]) -> Iterator[Finding]:
    """Yield findings on a provider's instance type, slots, prices, region and machine numbers."""
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
        hint = nearest(region, AMI_REGIONS)
        problem = f"0.38.1 has no agent image for {region!r}, the master stops; set image_id"
        yield Finding(file, f"{key}.region", f"{problem}, or {hint}")


def _check_slots(file: str, key: str, provider: dict[str, Any]) -> Iterator[Finding]:
    kind, slots = provider.get("instance_type"), provider.get("instance_slots")
    known = DETERMINED_SLOTS.get(str(kind))
    named = isinstance(kind, str) and not schema.PLACEHOLDER.search(kind)
    if named and known is None and slots is None:
        near, count = f" ({nearest(str(kind), [*DETERMINED_SLOTS, *EC2_GPUS])})", ""
        if kind in EC2_GPUS:
            near, count = "", f", {EC2_GPUS[kind]}"
        problem = f"missing; Determined's map has no {kind}{near}: set instance_slots to its GPUs"
        yield Finding(file, f"{key}.instance_slots", problem + count)
    right = EC2_GPUS.get(str(kind), known)
    if slots is not None and right is not None and slots != right:
        problem = f"{slots}, but a {kind} has {right}; set {right}"
        yield Finding(file, f"{key}.instance_slots", problem)

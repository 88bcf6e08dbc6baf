"""Speeds of a GPU (published, measured here, or modelled from the nearest), networks and disks."""

import json
import math
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import numpy as np

from cluster.machines import FAMILIES, MACHINES, ROOT, Gpu, gpu_of
from cluster.masterconf import Pool
from cluster.published import FINE_TUNING, LANGUAGE, LENGTH
from cluster.schema import mapping, mappings
from detalbert.engine.flops import causal_flops, training_flops
from detalbert.engine.memory import Sizes
from pretrain.hparams import SIZE_KEYS, SIZES

MEASURED = ROOT / "benchmarks" / "results" / "step-h100.json"
REAL = 174.4 / 384  # of a window of SQuAD: tokens that are no padding
NOTICE = 120  # seconds from EC2's notice to the machine's end
READ = 5  # seconds until the notice is read
STORE_RATE = 1e9  # bytes a second onto one NVMe drive; an assumption
UPLOAD_RATE = 0.25e9  # bytes a second of a process that uploads; an assumption
INFINIBAND = "/dev/infiniband"
_XXL = SimpleNamespace(**dict(zip(SIZE_KEYS, SIZES["xxlarge"], strict=True)))


class Rate(NamedTuple):
    """Speed of one GPU without time spent waiting for the network."""

    tokens: float  # a second
    source: str  # published, measured or modelled
    how: str


def causal_token(config: Any, length: int) -> float:
    """Return training FLOPs per token in a window of `length` tokens (see flops.causal_flops)."""
    return cast(float, causal_flops(config, np.array([length]))) / length


def encoder_token(config: Any, length: float, masked: float = 0.0) -> float:
    """Return an encoder's training FLOPs per token, a share `masked` with a vocabulary head."""
    head = 2 * getattr(config, "embedding_size", config.hidden_size)
    head *= config.hidden_size + config.vocab_size if masked else 0
    return training_flops(config, np.array([length])) / length + 3 * masked * head


def language_rate(
    sizes: Sizes, flops: float, gpu: Gpu, slots: int, length: int, checkpointing: bool
) -> Rate:
    """Estimate a causal model's speed from the FLOP/s of the closest published training.

    Closest by GPU, then parameters, then number of GPUs. Activation recomputation costs 4/3 of the
    compute. Only llm-foundry's rows are used: the shapes of their models are known, so FLOPs are
    counted alike. `flops` are per token.
    """

    def distance(row: SimpleNamespace) -> tuple[float, ...]:
        size = abs(math.log(row.millions * 1e6 / sizes.parameters))
        other = row.gpu != gpu.name, row.gigabytes != gpu.gigabytes
        return (*other, size, abs(math.log(row.gpus / slots)))

    row = min((row for row in LANGUAGE if row.by == "llm-foundry"), key=distance)
    h, published = row.hidden, next(g for g in FAMILIES.values() if g.name == row.gpu)
    mpt = SimpleNamespace(
        model_type="gpt_neox", vocab_size=50_368, hidden_size=h, intermediate_size=4 * h,
        num_attention_heads=h // 64, num_hidden_layers=row.layers,
    )  # fmt: skip
    done = row.tokens * causal_token(mpt, row.length)  # FLOP/s
    again = (1 + checkpointing / 3) / (1 + bool(row.checkpointing) / 3)
    tokens = done / flops / again * gpu.teraflops / published.teraflops
    near = abs(row.millions * 1e6 / sizes.parameters - 1) < 0.15
    same = (row.gpu, row.gigabytes, row.gpus, row.length, row.checkpointing)
    alike = near and same == (gpu.name, gpu.gigabytes, slots, length, checkpointing)
    where = f"{row.by}'s {row.model} on {row.gpus} {row.gpu} of {row.gigabytes} GB"
    how = f"as {where}, MFU {row.mfu:.1%}"
    return Rate(tokens, "published" if alike else "modelled", how)


def encoder_rate(flops: float, gpu: Gpu, slots: int) -> Rate:
    """Estimate an encoder's speed over real tokens; `flops` are per token.

    GPUs from Ampere on are assumed to reach the MFU measured on an H100; older ones that of the
    widest published run on V100s, padding included.
    """
    if gpu.has_bf16:
        result = json.loads(MEASURED.read_text(encoding="utf-8"))
        mfu, length = result["results"]["ours"]["mfu"]["median"], 384 * REAL
        alike = gpu.name == "H100" and slots == 1
        source, how = "measured", f"MFU {mfu:.1%}, albert-xxlarge on one H100"
    else:
        run, length = FINE_TUNING[-1], LENGTH
        done = encoder_token(_XXL, length) * run.throughput * length / run.slots
        mfu = done / 1e12 / cast(Gpu, gpu_of(run.instance)).teraflops
        alike = gpu.name == "V100" and slots == run.slots
        source, how = "published", f"MFU {mfu:.1%}, albert-xxlarge on {run.slots} V100, padded"
    alike = alike and math.isclose(flops, encoder_token(_XXL, length), rel_tol=1e-3)
    return Rate(mfu * (gpu.teraflops * 1e12) / flops, source if alike else "modelled", how)


def sent_bytes(
    parameters: float, machines: int, span: int, forwards: int, weight: int, gradient: int
) -> float:
    """Return the bytes that each machine sends per step, (n - 1) / n of the data in a ring of n.

    A replica that spans m machines gathers its weights twice per forward and scatters gradients in
    fp32 (FSDP2, reshard after forward); replicas sum their gradients, which takes two passes.
    `weight` and `gradient` are bytes per number. 13.2 B parameters in one replica on 8 machines,
    one forward: 13.2e9 * (2 * 2 + 4) * 7 / 8 = 92 GB.
    """
    replicas = max(1, machines // span)
    inside = forwards * (2 * weight + 4) * (span - 1) / span
    return parameters * (inside + 2 * gradient / span * (replicas - 1) / replicas)


def has_efa(config: dict[str, Any], pool: Pool) -> bool:
    """Return whether containers reach EFA: machines of your own, with their devices mapped."""
    devices = mapping(config.get("resources")).get("devices")  # mappings, or HOST:CONTAINER:MODE
    return pool.own and isinstance(devices, list) and any(INFINIBAND in str(d) for d in devices)


def scratch(config: dict[str, Any], pool: Pool) -> tuple[str, float]:
    """Return where a checkpoint is written first, and the bytes per second there.

    A TMPDIR on a mounted folder is taken for the instance store. Otherwise it is the container's
    /tmp on the root volume, gp2 in 0.38.1: 3 I/O operations of 256 KiB per second and GiB, at most
    250 MiB/s (Amazon EBS user guide, General Purpose SSD), without bursts.
    """
    tasks = pool.tasks or {}
    listed = [mapping(config.get("environment")), tasks]
    variables = [v for each in listed for v in _variables(each.get("environment_variables"))]
    folder = next((v[7:] for v in variables if v.startswith("TMPDIR=")), None)
    mounts = mappings(config.get("bind_mounts")) + mappings(tasks.get("bind_mounts"))
    machine = MACHINES.get(pool.instance)
    inside = [str(mount.get("container_path")) for mount in mounts]
    if folder and machine and machine.store and any(folder.startswith(path) for path in inside):
        return f"{folder}, taken for the instance store", STORE_RATE
    rate = min(250.0, max(100, 3 * pool.root_gib) * 0.25) * 2**20
    return f"the root volume of {pool.root_gib} GiB (gp2)", rate


def _variables(value: Any) -> list[str]:
    """Return the NAME=VALUE items of a list, or of all lists of a mapping by kind of slot."""
    if isinstance(value, dict):
        return [item for items in value.values() for item in _variables(items)]
    return [str(item) for item in value] if isinstance(value, list) else []

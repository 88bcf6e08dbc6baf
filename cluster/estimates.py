"""What a job needs of a GPU, from its model config: memory, and seconds per step at the slowest.

Estimates, not measurements: the memory is counted from what autograd keeps for the backward pass;
the speed is scaled from the published run on V100s. Both are on the careful side.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cluster import published
from cluster.machines import Gpu, gpu_of
from detalbert.engine.flops import training_flops

OVERHEAD = 1.5 * 2**30  # CUDA context, cuBLAS and NCCL buffers, fragmentation
USABLE = 0.95  # of the memory as sold; the driver keeps some

_ALBERT = {"vocab_size": 30000, "embedding_size": 128, "max_position_embeddings": 512}
KNOWN_CONFIGS: dict[str, dict[str, Any]] = {
    f"albert-{size}-v2": {
        "model_type": "albert",
        "hidden_size": hidden,
        "intermediate_size": 4 * hidden,
        "num_hidden_layers": layers,
        **_ALBERT,
    }
    for size, hidden, layers in [
        ("base", 768, 12), ("large", 1024, 24), ("xlarge", 2048, 24), ("xxlarge", 4096, 12)
    ]
}  # fmt: skip


class Shape(NamedTuple):
    """The sizes of an encoder that its memory and its arithmetic depend on."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    embedding_size: int
    parameters: int

    def flops_per_token(self) -> float:
        """Forward and backward over one token, as a window of its own.

        The scores of attention are left out that way: below 3 % at 384 tokens and hidden size
        4,096.
        """
        return training_flops(self, np.ones(1))


def model_shape(hparams: Mapping[str, Any], root: Path) -> Shape | None:
    """The shape of `model` (an `albert-*-v2` hub name or a folder under `root`) or `model_config`.

    None for any other hub name: nothing is downloaded here.
    """
    config = hparams.get("model_config")
    if config is None:
        name = str(hparams.get("model"))
        config = KNOWN_CONFIGS.get(name.split("/")[-1])
        path = root / name / "config.json"
        if path.is_file():
            config = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(config, Mapping):
        return None
    config = {"model_type": "albert", **_ALBERT, **config}
    albert = config["model_type"] == "albert"
    try:
        hidden, layers = int(config["hidden_size"]), int(config["num_hidden_layers"])
        inner = int(config["intermediate_size"])
    except (KeyError, TypeError, ValueError):
        return None  # left to the library's defaults, or no encoder of this family
    width = int(config["embedding_size"]) if albert else hidden
    embeddings = (config["vocab_size"] + config["max_position_embeddings"] + 2) * width
    layer = 4 * (hidden**2 + hidden) + 2 * hidden * inner + hidden + inner + 4 * hidden
    mapping = (width + 1) * hidden if albert else 0
    parameters = embeddings + mapping + layer * (1 if albert else layers) + 2 * hidden
    return Shape(hidden, inner, layers, width, parameters)


def activation_bytes_per_token(shape: Shape, half: bool) -> int:
    """What autograd keeps per real token in all layers, none of them compiled.

    fp32: 8 bytes per intermediate element (before and after GELU) and 36 per hidden element,
    counted with saved-tensor hooks. Half precision: 4, and 34, since LayerNorm stays fp32 on CUDA
    and every linear layer keeps its own cast of the input. Without a flash kernel the windows are
    in a padded grid, about 2.2 times the real tokens on SQuAD: 8 (fp32: 16) more bytes per hidden
    element and 1.2.
    """
    per_intermediate, per_hidden, grid = (4, 34, 8) if half else (8, 36, 16)
    per_layer = per_intermediate * shape.intermediate_size
    per_layer += (per_hidden + 1.2 * grid) * shape.hidden_size
    return int(shape.num_hidden_layers * per_layer)


def state_bytes(shape: Shape, slots: int, half: bool) -> int:
    """Parameters, gradients and two moments in fp32; a half-precision copy; DDP's buckets."""
    return shape.parameters * (16 + (2 if half else 0) + (4 if slots > 1 else 0))


def largest_token_budget(shape: Shape, gpu: Gpu, slots: int, half: bool) -> int:
    """The largest `max_tokens_per_forward` that fits `gpu`; 0 or less when the model does not."""
    room = gpu.gigabytes * 2**30 * USABLE - OVERHEAD - state_bytes(shape, slots, half)
    return int(room // activation_bytes_per_token(shape, half))


def seconds_per_step(shape: Shape, gpu: Gpu, slots: int, batch: int, window: int) -> float:
    """One optimizer step at the efficiency of the widest published run.

    Every window is padded to `window` tokens. Other GPUs are scaled by their peak arithmetic.
    """
    run = published.FINE_TUNING[-1]
    trained = model_shape({"model_config": KNOWN_CONFIGS[published.MODEL]}, Path())
    tokens_per_second = run.throughput / run.slots * published.LENGTH  # of one V100
    scale = gpu.teraflops / gpu_of(run.instance).teraflops
    flops = tokens_per_second * trained.flops_per_token() * scale
    return batch * window * shape.flops_per_token() / (slots * flops)

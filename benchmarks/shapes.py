"""The models that steps are measured on, and what their device could do at most."""

from typing import Any

import torch

from benchmarks.measure import Options, now
from detalbert.engine import flops
from detalbert.errors import UserError
from pretrain.hparams import SIZE_KEYS, SIZES

# The published sizes, and two of our own that a CPU trains in no time.
_SIZES = {**SIZES, "tiny": (32, 2, 2, 16, 64), "small": (256, 4, 4, 128, 1024)}
SHAPES = {
    name: dict(zip(SIZE_KEYS, _SIZES[name], strict=True))
    for name in ("tiny", "small", "base", "large", "xxlarge")
}


def device_of(options: Options) -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def shape_of(options: Options, on_gpu: str = "xxlarge") -> str:
    """A key of SHAPES; auto: small on a CPU, `on_gpu` on a GPU."""
    name = options.shape
    if name == "auto":
        name = on_gpu if device_of(options).type == "cuda" else "small"
    if name not in SHAPES:
        raise UserError(f"--shape {name}: no such shape; choose one of {', '.join(SHAPES)}")
    return name


def peak_flops(device: torch.device) -> Any:
    """FLOP/s that an MFU of 1 would reach, and where the number is from."""
    name = torch.cuda.get_device_name() if device.type == "cuda" else ""
    if (known := flops.peak_flops(name, half=True)) is not None:
        return known, "data sheet, half precision"
    a, seconds = torch.rand(2048, 2048, device=device), []
    for _ in range(6):
        began = now(device)
        a @ a
        seconds.append(now(device) - began)
    return 2 * 2048**3 / min(seconds), "measured: fp32 product of two 2048 x 2048 matrices"

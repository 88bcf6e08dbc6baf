"""Measuring for every stage: models, interleaved runs, a synchronised clock, rates."""

import copy
import json
import os
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor

from detalbert.corpus.api_text import find_services, read_service
from detalbert.engine import flops
from detalbert.errors import Different, UserError
from detalbert.settings.albert import SIZE_KEYS, SIZES

ROOT = Path(__file__).resolve().parents[1]
EXPERIMENTS = yaml.safe_load((ROOT / "benchmarks" / "experiments.yaml").read_text())
# The published sizes, and two of our own that a CPU trains in no time.
_SIZES = {**SIZES, "tiny": (32, 2, 2, 16, 64), "small": (256, 4, 4, 128, 1024)}
SHAPES = {name: dict(zip(SIZE_KEYS, size, strict=True)) for name, size in _SIZES.items()}


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def shape_of(options: Namespace, on_gpu: str = "xxlarge") -> str:
    """Return a key of SHAPES; auto is small on a CPU and `on_gpu` on a GPU."""
    auto = on_gpu if torch.cuda.is_available() else "small"
    return auto if options.shape == "auto" else str(options.shape)


def experiment(stage: str, **hyperparameters: Any) -> dict[str, Any]:
    """Return the experiment config of a stage, with further hyperparameters."""
    config: dict[str, Any] = copy.deepcopy(EXPERIMENTS[stage])
    config["hyperparameters"] |= hyperparameters
    return config


def write_text(options: Namespace, folder: Path, joined: int = 1) -> str:
    """Write the documents of `--text`, or botocore's, `joined` in each line; return the path."""
    if options.text is not None:
        found = options.text.read_text(encoding="utf-8").splitlines()
    else:
        found = (text for service in find_services() for text in read_service(service))
    texts = list(islice(filter(None, (" ".join(text.split()) for text in found)), options.examples))
    if not texts:
        raise UserError(f"--text {options.text}: no text in it; give a file of documents")
    lines = (" ".join(texts[i : i + joined]) for i in range(0, len(texts), joined))
    path = folder / "text.jsonl"
    path.write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    return str(path)


def run_python(*words: str, **env: str) -> str:
    """Run Python in the repository's root; return its output. Raises Different if it fails."""
    command: Any = {"args": [sys.executable, *words], "cwd": ROOT, "env": os.environ | env}
    done = subprocess.run(**command, capture_output=True, text=True)
    if done.returncode:
        raise Different(f"{words[0]} {words[1]}: status {done.returncode}: {done.stderr[-500:]}")
    return done.stdout


def peak_and_source() -> tuple[float, str]:
    """Return the peak FLOP/s, at which the MFU is 1, and the source of the number."""
    name = torch.cuda.get_device_name() if device().type == "cuda" else ""
    if (known := flops.peak_flops(name, half=True)) is not None:
        return known, "data sheet, half precision"
    matrix = torch.rand(2048, 2048, device=device())
    seconds = interleave({"product": lambda: matrix @ matrix}, repeats=5)["product"]
    return 2 * 2048**3 / min(seconds), "measured: fp32 product of two 2048 x 2048 matrices"


def now() -> float:
    """Return the time in seconds after all work queued on the GPU is done."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def interleave(sides: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """Return the seconds of each call, in turn to spread other load."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, call in sides.items():
            began = now()
            call()
            seconds[name].append(now() - began)
    return seconds


def spread_of(values: list[float]) -> dict[str, Any]:
    """Return the median, the spread (greatest less least) and every repeat."""
    spread, repeats = float(max(values) - min(values)), list(map(float, values))
    return {"median": float(np.median(values)), "spread": spread, "repeats": repeats}


def compare(seconds: Mapping[str, list[float]], unit: str, amount: float) -> dict[str, Any]:
    """Return the `results` of both sides, which did `amount` units per run, and the `ratio`."""
    figure, results = f"{unit}_per_second", dict[str, Any]()
    for side, values in seconds.items():
        speeds = [amount / value for value in values]
        results[side] = {"seconds": spread_of(values), figure: spread_of(speeds)}
    ours, peer = (results[side][figure]["median"] for side in ("ours", "peer"))
    return {"results": results, "ratio": {figure: ours / peer}}


def pad(row: Mapping[str, Tensor], length: int, **columns: tuple[Tensor, int]) -> dict[str, Tensor]:
    """Return columns (values [T], fill) of a packed row as int64 [windows, length], and a mask."""
    real = torch.arange(length) < row["cu_seqlens"].diff()[:, None]
    padded = {"attention_mask": real.long()}
    for name, (values, fill) in columns.items():
        padded[name] = torch.full(real.shape, fill)
        padded[name][real] = values
    return padded

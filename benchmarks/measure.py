"""Measuring for every stage: models, interleaved runs, a synchronised clock, rates.

Both sides run in turn in the same process or machine, so that other load falls on both; the price
is that caches and clocks are shared, too.
"""

import copy
import json
import os
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from detalbert.settings.values import Config
from pretrain.hparams import SIZE_KEYS, SIZES

# Of a stage, as it becomes JSON.
Result = dict[str, Any]

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


def experiment(stage: str, **hyperparameters: object) -> Config:
    """Return the experiment config of a stage, with further hyperparameters."""
    config: Config = copy.deepcopy(EXPERIMENTS[stage])
    config["hyperparameters"] |= hyperparameters
    return config


def write_text(options: Namespace, folder: Path, joined: int = 1) -> str:
    """Write the documents of `--text`, or botocore's, `joined` in each line; return the path."""
    # A document is a line, without runs of white space; empty ones are left out.
    texts = (" ".join(text.split()) for text in _read_documents(options.text))
    not_empty = (text for text in texts if text)
    documents = list(islice(not_empty, options.examples))
    if not documents:
        raise UserError(
            "no text in it", key=f"--text {options.text}", cure="give a file of documents"
        )
    path = folder / "text.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for start in range(0, len(documents), joined):
            end = start + joined
            line = " ".join(documents[start:end])
            file.write(json.dumps({"text": line}) + "\n")
    return str(path)


def _read_documents(path: Path | None) -> Iterator[str]:
    if path is not None:
        yield from path.read_text(encoding="utf-8").splitlines()
        return
    # Text that every installation has: botocore comes with Determined.
    for service in find_services():
        yield from read_service(service)


def run_python(*arguments: str, **env: str) -> str:
    """Run Python in the repository's root; return its output.

    Raises:
        Different: if it fails.
    """
    process = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=os.environ | env,
        capture_output=True,
        text=True,
    )
    if process.returncode != 0:
        raise Different(
            f"status {process.returncode}: {process.stderr[-500:]}",
            key=f"{arguments[0]} {arguments[1]}",
        )
    return process.stdout


def peak_and_source() -> tuple[float, str]:
    """Return the peak FLOP/s, at which the MFU is 1, and the source of the number."""
    gpu_name = torch.cuda.get_device_name() if device().type == "cuda" else ""
    peak = flops.peak_flops(gpu_name, half=True)
    if peak is not None:
        return peak, "data sheet, half precision"
    # No data sheet names a CPU's: the best of five products stands for it.
    size = 2048
    matrix = torch.rand(size, size, device=device())
    seconds = interleave({"product": lambda: matrix @ matrix}, repeats=5)
    fastest = min(seconds["product"])
    product_flops = 2 * size**3
    return product_flops / fastest, "measured: fp32 product of two 2048 x 2048 matrices"


def now() -> float:
    """Return the time in seconds after all work queued on the GPU is done."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def interleave(sides: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Return the seconds of each call, in turn to spread other load."""
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(repeats):
        for side, call in sides.items():
            start = now()
            call()
            seconds[side].append(now() - start)
    return seconds


def spread_of(values: Sequence[float]) -> Result:
    """Return the median, the spread (greatest less least) and every repeat."""
    return {
        "median": float(np.median(values)),
        "spread": float(max(values) - min(values)),
        "repeats": [float(value) for value in values],
    }


def compare(seconds: Mapping[str, list[float]], unit: str, amount: float) -> Result:
    """Return the `results` of both sides and their `ratio`.

    Args:
        seconds: of each run, by side.
        unit: of the work, such as "tokens".
        amount: of the work of a run.
    """
    figure = f"{unit}_per_second"
    results: dict[str, Result] = {}
    for side, side_seconds in seconds.items():
        # Median and spread of the speeds, which are not those of the seconds turned over.
        speeds = [amount / value for value in side_seconds]
        results[side] = {
            "seconds": spread_of(side_seconds),
            figure: spread_of(speeds),
        }
    ours = results["ours"][figure]["median"]
    baseline = results["peer"][figure]["median"]
    return {"results": results, "ratio": {figure: ours / baseline}}


def pad(row: Mapping[str, Tensor], length: int, **columns: tuple[Tensor, int]) -> dict[str, Tensor]:
    """Return a packed row's columns as padded windows.

    Args:
        row: has `cu_seqlens`, where its windows begin and end.
        length: tokens of a padded window.
        columns: values [T], and what fills a window up.

    Returns:
        The columns and `attention_mask`, int64 [windows, length] each.
    """
    # In order: real tokens of the grid, row by row, are those of the packed row.
    window_lengths = row["cu_seqlens"].diff()  # [windows]
    is_real = torch.arange(length) < window_lengths[:, None]
    padded = {"attention_mask": is_real.long()}
    for name, (values, fill) in columns.items():
        grid = torch.full(is_real.shape, fill)
        grid[is_real] = values
        padded[name] = grid
    return padded

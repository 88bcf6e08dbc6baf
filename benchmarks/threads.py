"""`threads: auto` against torch's default, a thread for every core: idle, and with one core busy.

Whole runs of train.py with configs/local.yaml, cut to 200 steps; validation and checkpoints do not
count. The busy process multiplies matrices on one thread. Both runs train the same windows; their
losses agree to rounding, for another number of threads adds up in another order.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from benchmarks.measure import ROOT, Different, Options, spread_of
from benchmarks.scaling import throughput_of
from detalbert.processes import count_cores

STEPS = 200
APART = 0.02  # of the loss, at most
BUSY = "import torch; torch.set_num_threads(1); a = torch.rand(500, 500)\nwhile True: a @ a"


def threads(options: Options) -> dict[str, Any]:
    """Windows per second of both, in turn, with 0 and with 1 busy process beside them."""
    cores = count_cores()
    rates: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for load in (0, 1):
            sides = rates[str(load)] = {"ours": [], "peer": []}
            for _ in range(max(1, options.repeats // 2)):
                losses = []
                with busy(load):
                    for side, wanted in (("ours", "auto"), ("peer", cores)):
                        rate, loss = _run(Path(folder), wanted, options)
                        sides[side].append(rate)
                        losses.append(loss)
                if abs(losses[0] / losses[1] - 1) > APART:
                    raise Different(f"threads: the losses end at {losses[0]} and {losses[1]}")
    results = {
        load: {side: {"windows_per_second": spread_of(found)} for side, found in sides.items()}
        for load, sides in rates.items()
    }
    ratio = {
        load: sides["ours"]["windows_per_second"]["median"]
        / sides["peer"]["windows_per_second"]["median"]
        for load, sides in results.items()
    }
    return {
        "results": results,
        "ratio": ratio,
        "settings": {"steps": min(STEPS, options.steps), "peer_threads": cores},
    }


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """So many processes that keep a core each busy."""
    started = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def _run(folder: Path, wanted: str | int, options: Options) -> tuple[float, float]:
    """(windows per second, loss of the validation at the end) of a run."""
    config = yaml.safe_load((ROOT / "configs" / "local.yaml").read_text())
    config["hyperparameters"].update(max_steps=min(STEPS, options.steps), threads=wanted)
    config["data"].update(cache_dir=str(folder / "cache"), max_validation_examples=100)
    throughput = throughput_of(config, folder, 1, LOKY_MAX_CPU_COUNT=str(os.cpu_count()))
    last = json.loads((folder / "run" / "metrics.json").read_text())["last"]
    return throughput["training_windows"] / throughput["training_seconds"], last["loss"]

"""The step-time model against two real processes, and what it says of 1, 8 and 64 GPUs.

Whole runs of train.py, each process on one core: one process at two batch sizes gives the seconds
per token and the seconds that every step costs whatever its size; `allreduce` gives the exchange.
The sum for two processes is a prediction, held against a run of two processes.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.allreduce import two_processes
from benchmarks.measure import ROOT, Different, Options, spread_of
from benchmarks.shapes import SHAPES, shape_of
from benchmarks.step import SEARCHER, squad_data, trial_of
from benchmarks.step_time import Network, Work, predict
from cluster.published import FINE_TUNING, LENGTH, PARAMETERS

# V100s of p3.16xlarge: NVLink inside, 25 Gbit/s between machines.
P3 = Network(slots=8, inside=100e9, between=25e9 / 8)
FAR_OFF = 0.25  # a prediction that misses by more is a fault of the model, not of the machine
STEPS = 8


def scaling(options: Options) -> dict[str, Any]:
    """Seconds per step of two processes, predicted and measured, and the published runs."""
    with trial_of(options) as trial:
        lengths = trial.data.train.windows.lengths
        parameters = len(trial.gradients.flat)
    with tempfile.TemporaryDirectory() as folder:
        half, whole, pair = [], [], []
        for _ in range(max(1, options.repeats // 2)):
            half.append(_seconds_per_step(options, Path(folder), 1, options.windows // 2))
            whole.append(_seconds_per_step(options, Path(folder), 1, options.windows))
            pair.append(_seconds_per_step(options, Path(folder), 2, options.windows))
    one, two, both = (float(np.median(values)) for values in (half, whole, pair))
    per_window = (two - one) / (options.windows - options.windows // 2)
    fixed = max(0.0, two - per_window * options.windows)
    exchange = float(np.median(two_processes(parameters, options.repeats)["fp32"]))
    work = Work(lengths, options.windows, 4 * parameters)
    loopback = Network(slots=2, inside=4 * parameters / exchange, between=1.0, latency=0.0)
    tokens_per_second = float(lengths.mean()) / per_window
    row = predict(work, tokens_per_second, loopback, [2], fixed)[2]
    error = row["seconds"] / both - 1
    if abs(error) > FAR_OFF:
        raise Different(f"scaling: two processes take {both:.3f} s, predicted {row['seconds']:.3f}")
    return {
        "results": {
            "one_process": {"seconds": spread_of(whole)},
            "two_processes": {"seconds": spread_of(pair)},
            "predicted": row,
        },
        "ratio": {"predicted_to_measured": row["seconds"] / both},
        "efficiency": two / (2 * both),
        "published": published(),
        "settings": {"shape": shape_of(options), "windows": options.windows, "steps": STEPS},
    }


def published() -> dict[str, dict[str, float]]:
    """Windows per second of the published runs and of the model, from the one on a single GPU."""
    table = {}
    tokens_per_second = FINE_TUNING[0].throughput * LENGTH  # of one GPU
    for run in FINE_TUNING:
        work = Work(np.full(10_000, LENGTH), run.batch, 4 * PARAMETERS)
        row = predict(work, tokens_per_second, P3, [run.slots])[run.slots]
        predicted = row["windows_per_second"]
        table[str(run.slots)] = {"published": run.throughput, "predicted": predicted}
    return table


def _seconds_per_step(options: Options, folder: Path, processes: int, windows: int) -> float:
    """Train from random weights with train.py; validation and checkpoints do not count."""
    config = {
        "name": "scaling",
        "entrypoint": "python3 train.py",
        "hyperparameters": {
            "model_config": SHAPES[shape_of(options)],
            "global_batch_size": windows,
            "max_steps": STEPS,
            "num_workers": 0,
            "reporting_period": 1,
        },
        "data": {**squad_data(options, str(folder / "cache")), "max_validation_examples": 8},
        "searcher": SEARCHER,
    }
    throughput = throughput_of(config, folder, processes)
    return throughput["training_seconds"] * windows / throughput["training_windows"]


def throughput_of(
    config: dict[str, Any], folder: Path, processes: int, **env: str
) -> dict[str, Any]:
    """What a run of train.py says of its speed, each process on one core (or a GPU of its own)."""
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    launch = [sys.executable]
    if processes > 1:
        launch += ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
    run = folder / "run"
    done = subprocess.run(
        [*launch, str(ROOT / "train.py"), "--config", str(folder / "config.yaml"),
         "--output-dir", str(run), "--resume", "never"],
        env={**os.environ, "LOKY_MAX_CPU_COUNT": "1", **env},
        capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    if done.returncode:
        raise Different(f"train.py failed: {(done.stderr.splitlines() or ['?'])[-1]}")
    return json.loads((run / "metrics.json").read_text())["throughput"]

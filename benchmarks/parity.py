"""Whether the loss curves agree, and how long a validation's forward pass takes."""

import time
from typing import Any

import numpy as np
import torch

from benchmarks.measure import Different, Options, now, spread_of
from benchmarks.shapes import shape_of
from benchmarks.step import Padded, last_loss, train_step, trial_of
from detalbert.engine.rows import to_device


def parity(options: Options) -> dict[str, Any]:
    """Both paths from the same weights over the same batches in fp32, without dropout."""
    settings = {"global_batch_size": options.parity_windows, "precision": "fp32"}
    losses: dict[str, list[float]] = {"ours": [], "peer": []}
    spent = {"ours": 0.0, "peer": 0.0}
    with trial_of(options, base_batch_size=options.parity_windows, **settings) as trial:
        device, peer = trial.context.device, Padded(trial)
        loader = iter(trial.build_training_data_loader())
        for number in range(options.steps):
            batch = next(loader)
            padded = peer.batch(np.concatenate([row["windows"].numpy() for row in batch]))
            began = now(device)
            train_step(trial, batch, number)
            losses["ours"].append(last_loss(trial))
            middle = now(device)
            losses["peer"].append(float(peer.step(padded)))
            spent["ours"] += middle - began
            spent["peer"] += now(device) - middle
    windows = options.steps * options.parity_windows
    tail = {side: float(np.mean(values[-20:])) for side, values in losses.items()}
    difference = abs(tail["ours"] - tail["peer"]) / abs(tail["peer"])
    if not difference < 0.01:
        raise Different(f"parity: the last losses are {tail['ours']} and {tail['peer']}")
    return {
        "results": {
            side: {
                "last_20_loss": tail[side],
                "losses": losses[side],
                "windows_per_second": spread_of([windows / spent[side]]),
            }
            for side in losses
        },
        "ratio": {"windows_per_second": spent["peer"] / spent["ours"]},
        "relative_difference": difference,
        "settings": {
            "shape": shape_of(options),
            "steps": options.steps,
            "windows": options.parity_windows,
        },
    }


def validation_seconds(options: Options) -> float:
    """One forward pass over the whole dev file, in packed rows, no decoding."""
    with trial_of(options) as trial, torch.inference_mode():
        trial.model.eval()
        loader = list(trial.build_validation_data_loader())
        began = time.perf_counter()
        for rows in loader:
            for row in rows:
                trial.forward(to_device(row, trial.context.device))[0].cpu()
        return time.perf_counter() - began

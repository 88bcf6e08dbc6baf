"""How fast batches come with 0, 1, 2 ... workers: ours packed, the peer's collated and padded."""

import os
import time
from collections.abc import Iterable
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from torch.utils.data import DataLoader
from transformers import default_data_collator

from benchmarks import peer
from benchmarks.measure import Different, Options, rates, ratio_of
from benchmarks.text import LIMITS, examples_of, tokenizer_of
from detalbert.engine.loaders import train_loader
from detalbert.engine.order import TrainOrder
from detalbert.squad.windows import Windows, build_windows

MAX_TOKENS = 4096
COLUMNS = ("input_ids", "token_type_ids", "attention_mask", "start_positions", "end_positions")


def features_of(options: Options) -> list[dict[str, Any]]:
    """Every feature as a dict of lists, as the library's collate function takes them."""
    features: list[dict[str, Any]] = []
    for batch in peer.features(examples_of(options, "train"), tokenizer_of(options), LIMITS):
        columns = (batch[name] for name in COLUMNS)
        features += [dict(zip(COLUMNS, x, strict=True)) for x in zip(*columns, strict=True)]
    return features


def loader(options: Options) -> dict[str, Any]:
    """Windows a second of both loaders, by the number of workers."""
    windows = build_windows(examples_of(options, "train"), tokenizer_of(options))
    features = features_of(options)
    order = TrainOrder(windows.lengths, options.windows, 1, 42)
    check_batch(windows, features, order)
    steps = max(1, min(40, len(windows) // options.windows))
    sweep: dict[str, Any] = {}
    for workers in range(0, max(2, len(os.sched_getaffinity(0))) + 1):
        sides = {
            "ours": partial(train_loader, windows, order, 0, 0, MAX_TOKENS, workers, False),
            "peer": partial(_peer_loader, features, order, workers),
        }
        seconds: dict[str, list[float]] = {side: [] for side in sides}
        for _ in range(options.repeats):
            for side, make in sides.items():
                seconds[side].append(seconds_of(make(), steps))
        sweep[str(workers)] = rates(seconds, windows=steps * options.windows)
    best = {side: max((x[side] for x in sweep.values()), key=_rate) for side in ("ours", "peer")}
    return {
        "results": best,
        "ratio": {"windows_per_second": ratio_of(best, "windows_per_second")},
        "workers": sweep,
        "settings": {
            "windows": options.windows,
            "steps": steps,
            "saturates_at_workers": int(max(sweep, key=lambda n: _rate(sweep[n]["ours"]))),
        },
    }


def _rate(result: dict[str, Any]) -> float:
    return result["windows_per_second"]["median"]


def seconds_of(loader: Iterable[Any], steps: int, before: int = 1) -> float:
    """How long `steps` batches take after the first ones, which wait for the workers to start."""
    batches = iter(loader)
    for _ in range(before):
        next(batches)
    began = time.perf_counter()
    for _ in islice(batches, steps):
        pass
    return time.perf_counter() - began


def _peer_loader(features: list[dict[str, Any]], order: TrainOrder, workers: int) -> DataLoader:
    steps = len(features) // order.global_batch_size + 45
    return DataLoader(
        features,
        batch_sampler=[order.global_batch(step).tolist() for step in range(min(steps, 45))],
        collate_fn=default_data_collator,
        num_workers=workers,
    )


def check_batch(windows: Windows, features: list[dict[str, Any]], order: TrainOrder) -> None:
    """Raises Different unless both loaders' first batches hold the same windows."""
    rows = next(iter(train_loader(windows, order, 0, 0, MAX_TOKENS, 0, False)))
    padded = next(iter(_peer_loader(features, order, 0)))
    ours = {}
    for row in rows:
        ends = row["cu_seqlens"].tolist()
        for number, begin, end in zip(row["windows"].tolist(), ends, ends[1:], strict=False):
            ours[number] = row["input_ids"][begin:end].tolist()
    for i, number in enumerate(order.global_batch(0).tolist()):
        real = padded["attention_mask"][i].bool()
        if ours.get(number) != padded["input_ids"][i][real].tolist():
            raise Different(f"loader: window {number} differs from the peer's")
    if not np.array_equal(np.unique(order.global_batch(0)), sorted(ours)):
        raise Different("loader: the first batch holds other windows than the peer's")

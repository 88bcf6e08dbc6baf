"""Pretraining: optimizer steps with and without accumulation, loader workers, several processes.

A step is `PretrainTrial.train_batch`, its rows on the host beforehand. Accumulated, the same
windows run as several micro-batches before the one update, and must give the same gradients.
Scaling is whole runs of train.py with the same windows a forward: accumulation then exchanges
gradients half as often.
"""

import contextlib
import dataclasses
import tempfile
import warnings
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.loader import seconds_of
from benchmarks.measure import Different, Options, interleave, rates, spread_of
from benchmarks.scaling import throughput_of
from benchmarks.shapes import SHAPES, peak_flops, shape_of
from benchmarks.sharding import data_of, write_text
from benchmarks.step import context_of, train_step
from detalbert.corpus.writer import write_corpus
from detalbert.engine.flops import flops_of_row
from detalbert.engine.rows import Row
from detalbert.squad.tokenizer import named_tokenizer
from pretrain.data import PretrainText
from pretrain.examples import ExampleOrder, train_loader
from pretrain.hparams import parse_pretrain_hparams
from pretrain.trial import PretrainTrial

WORKERS = (0, 1, 2, 4, 8, 12, 16)
JOINED = 32  # documents of the text in one, so that most sequences are full
PARTS = 4  # micro-batches of an accumulated step
SCALED_PARTS = 2  # of a step of the scaling runs, as the published ones of the base model
LOADER_STEPS = 40
RUN_STEPS = 8
PROCESSES = torch.cuda.device_count() or 2  # beside one


def pretrain(options: Options) -> dict[str, Any]:
    """Sequences a second and MFU of a step, of the loader alone by workers, and over processes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shards = _write_shards(options, folder)
        steps, settings = _steps(options, folder, shards)
        return {
            "results": steps,
            "loader": _loader(options, folder, shards),
            "scaling": _scaling(options, folder, shards),
            "settings": settings,
        }


def _length(options: Options) -> int:
    """Tokens of a sequence: those of the published figures, but for models that a CPU takes."""
    return 128 if shape_of(options, "base") in ("tiny", "small") else 512


def _write_shards(options: Options, folder: Path) -> Path:
    """All the text as shards, and a little of it again, for a validation that is not read."""
    few = dataclasses.replace(options, examples=min(40, options.examples or 40))
    validation = str(write_text(few, folder / "few.txt"))
    text = write_text(options, folder / "text.txt")
    lines = text.read_text(encoding="utf-8").splitlines()
    articles = (" ".join(lines[i : i + JOINED]) for i in range(0, len(lines), JOINED))
    text.write_text("\n".join(articles), encoding="utf-8")
    data = dataclasses.replace(data_of(text, folder, options), validation=validation)
    tokenizer = named_tokenizer(options.tokenizer)
    return write_corpus(data, tokenizer, _length(options), folder / "shards")


def _config(options: Options, shards: Path, **hyperparameters: Any) -> dict[str, Any]:
    return {
        "name": "pretrain",
        "entrypoint": "python3 train.py",
        "hyperparameters": {
            "model_config": {**SHAPES[shape_of(options, "base")], "classifier_dropout_prob": 0.0},
            "global_batch_size": options.windows,
            "base_batch_size": options.windows,
            "max_seq_length": _length(options),
            "max_steps": RUN_STEPS,
            "seed": 42,
            "num_workers": 0,
            **hyperparameters,
        },
        "data": {
            "shards": str(shards),
            "tokenizer": options.tokenizer,
            "cache_dir": str(shards.parent),
            "max_validation_examples": 8,
        },
        "searcher": {"name": "single", "metric": "loss", "smaller_is_better": True},
    }


# ---- one step ------------------------------------------------------------------------------


@contextlib.contextmanager
def _trial(options: Options, folder: Path, shards: Path, parts: int) -> Iterator[PretrainTrial]:
    """A trial whose steps are cut into about `parts` micro-batches."""
    tokens = max(1, options.windows // parts) * _length(options)
    config = _config(options, shards, max_tokens_per_forward=tokens)
    with context_of(config, folder / f"run-{parts}") as context:
        trial = PretrainTrial(context)
        trial.meter.reset()
        trial.model.train()
        yield trial


class _Side:
    """Steps of one trial, one a call."""

    def __init__(self, trial: PretrainTrial, steps: int) -> None:
        self.trial, self.turn = trial, 0
        self.batches: list[list[Row]] = list(islice(trial.build_training_data_loader(), steps))

    def __call__(self) -> None:
        train_step(self.trial, self.batches[self.turn], self.turn)
        self.turn += 1

    def mfu(self, seconds: list[float], peak: float) -> dict[str, Any]:
        """The share of `peak` FLOP/s, over real tokens, in the steps after the first."""
        config = self.trial.model.config
        flops = [sum(flops_of_row(config, row) for row in rows) for rows in self.batches[1:]]
        return spread_of([f / s / peak for f, s in zip(flops, seconds, strict=True)])


def _steps(options: Options, folder: Path, shards: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    with (
        _trial(options, folder, shards, 1) as whole,
        _trial(options, folder, shards, PARTS) as parted,
    ):
        device = whole.context.device
        trials = {"one_forward": whole, "accumulated": parted}
        sides = {name: _Side(trial, options.repeats + 1) for name, trial in trials.items()}
        apart = _first_step(*sides.values())
        if apart > (1e-3 if whole.dtype is torch.float32 else 5e-2):
            raise Different(f"pretrain: accumulated gradients are {apart:.1%} from those of a row")
        calls: dict[str, Callable[[], None]] = dict(sides)
        seconds = interleave(calls, options.repeats, device, warm_up=0)
        results = rates(seconds, sequences=options.windows)
        peak, source = peak_flops(device)
        for name, side in sides.items():
            results[name]["mfu"] = side.mfu(seconds[name], peak)
            results[name]["forwards"] = float(np.mean([len(rows) for rows in side.batches]))
        lengths = whole.data.train.lengths
        settings = {
            "shape": shape_of(options, "base"),
            "windows": options.windows,
            "max_seq_length": _length(options),
            "tokens_per_window": float(lengths.mean()),
            "precision": str(whole.dtype),
            "peak_flops": {"value": peak, "from": source},
            "first_gradients_apart": apart,
        }
        return results, settings


def _first_step(one: _Side, other: _Side) -> float:
    """How far apart the first step's gradients are, of their length."""
    one()
    other()
    found, wanted = other.trial.gradients.flat, one.trial.gradients.flat
    return float((found - wanted).norm() / wanted.norm())


# ---- loader, processes ---------------------------------------------------------------------


def _loader(options: Options, folder: Path, shards: Path) -> dict[str, Any]:
    """Sequences a second of the loader alone: masked, packed, handed over; by its workers."""
    config = _config(options, shards)
    hparams = parse_pretrain_hparams(config["hyperparameters"])
    examples = PretrainText.load(config["data"], hparams).train
    order = ExampleOrder(examples, options.windows, 1, seed=0, group=8)
    steps = min(LOADER_STEPS, 10 * options.windows)
    seconds: dict[str, list[float]] = {str(workers): [] for workers in WORKERS}
    warnings.filterwarnings("ignore", message="This DataLoader will create")  # more than cores
    for _ in range(options.repeats):
        for workers in WORKERS:
            batches = train_loader(examples, order, 0, 0, 8192, workers, False)
            before = 5 + 4 * workers  # all workers run, what they fetched ahead is gone
            seconds[str(workers)].append(seconds_of(batches, steps, before))
    return rates(seconds, sequences=steps * options.windows)


def _scaling(options: Options, folder: Path, shards: Path) -> dict[str, Any]:
    """Sequences a second by processes, with the same windows a forward, accumulated and not; none
    on a machine of one GPU."""
    table: dict[str, Any] = {}
    if torch.cuda.device_count() == 1:
        return table
    for parts in (1, SCALED_PARTS):
        name = f"{parts} x accumulation" if parts > 1 else "no accumulation"
        for processes in sorted({1, PROCESSES}):
            windows = options.windows * parts * processes
            config = _config(
                options, shards, global_batch_size=windows, reporting_period=1,
                max_tokens_per_forward=options.windows * _length(options),
            )  # fmt: skip
            speeds = []
            for _ in range(max(1, options.repeats // 2)):
                found = throughput_of(config, folder, processes)
                speeds.append(found["training_windows"] / found["training_seconds"])
            table.setdefault(name, {})[str(processes)] = {"sequences_per_second": spread_of(speeds)}
    return table

"""A trial of this package's experiment, parsed once: what the checks and the planner work on.

Of a search, the trials at its corners stand for all: time and memory grow or fall with a range, so
the longest and the largest trial are at its ends. Data is read only if it is on this machine, and
no model is built: its sizes are counted from its config.
"""

import contextlib
import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from cluster.configs.expconf import RANGES
from cluster.configs.fleet import slots_of
from cluster.configs.masterconf import Pool
from cluster.configs.values import at, mapping
from cluster.facts.published import (
    KNOWN_WINDOWS,
    QUESTIONS,
    VALIDATION_QUESTIONS,
    VALIDATION_WINDOWS,
)
from data import open_split
from detalbert.settings.hparams import HParams, Length, StepHParams, parse_data_config
from detalbert.settings.values import Config
from detalbert.training.sizing import Model, find_model, squad_windows
from detalbert.training.workload import Workload
from workloads import choose

# Hyperparameters that change neither time nor memory: trials that differ in these alone are one.
NEUTRAL = frozenset(
    "base_learning_rate base_batch_size lr_scale optimizer beta2 weight_decay warmup_fraction "
    "schedule min_rate decay_fraction max_grad_norm seed threads early_stopping reporting_period "
    "profile_steps max_answer_length n_best_size null_score_diff_threshold max_ngram".split()
)


class DataSize(NamedTuple):
    """Windows of the data; None where it must be read to know."""

    training: int | None = None
    validation: int | None = None  # of the held-out text; a validation may use fewer


class Job(NamedTuple):
    """One trial, with what is known of where it runs."""

    config: Config
    workload: Workload
    hparams: StepHParams
    slots: int
    pool: Pool | None  # None: not known
    root: Path  # parent folder of relative model folders
    size: DataSize  # of the data, as far as it is known
    model: Model | None  # None: its sizes are not known without a download

    @property
    def length(self) -> Length | None:
        """Steps and periods of the run; None where the data must be read to know.

        If the size of an epoch alone is not known, a period that is not set is the whole run.
        """
        hparams = self.hparams
        if self.size.training is not None:
            return hparams.length(self.size.training)
        if hparams.max_steps is not None:
            # An epoch as long as the run.
            windows = hparams.max_steps * hparams.global_batch_size
            return hparams.length(windows)
        return None

    @property
    def steps(self) -> int | None:
        """Optimizer steps of the run; None where the data must be read to know."""
        return None if self.length is None else self.length.steps

    @property
    def validation_windows(self) -> int | None:
        """Windows of a validation; None where the data must be read to know."""
        limits = [
            self.size.validation,
            getattr(self.hparams, "max_validation_windows", None),  # a language model's
            getattr(self.data, "max_validation_windows", None),  # a pretraining's
        ]
        configured = [limit for limit in limits if limit is not None]
        return min(configured, default=None)

    @property
    def data(self) -> Any:
        """The parsed section `data:`."""
        return self.workload.parsers.data(self.config.get("data"))


def known_size(config: Config, hparams: StepHParams) -> DataSize:
    """Return the windows of a data set whose size is known before it is read."""
    windows = KNOWN_WINDOWS.get(str(at(config, "data.train")))
    if windows is None or not isinstance(hparams, HParams):
        return DataSize()
    # It is known of the usual length and stride.
    ratio, _ = squad_windows(hparams.max_seq_length, hparams.doc_stride)
    if not math.isfinite(ratio):
        return DataSize()
    training = at(config, "data.max_train_examples") or QUESTIONS
    validation = at(config, "data.max_validation_examples") or VALIDATION_QUESTIONS
    return DataSize(
        training=_share(windows * ratio, questions=training, all_questions=QUESTIONS),
        validation=_share(
            VALIDATION_WINDOWS * ratio, questions=validation, all_questions=VALIDATION_QUESTIONS
        ),
    )


def _share(windows: float, questions: object, all_questions: int) -> int:
    """Return how many of the windows so many of the questions have."""
    if not isinstance(questions, int):  # its type is reported elsewhere
        return math.ceil(windows)
    share = min(1, questions / all_questions)
    return math.ceil(windows * share)


def parse_jobs(
    config: Config, pool: Pool | None, root: Path, size: DataSize | None = None
) -> Iterator[Job]:
    """Yield the trials at a search's corners that differ in more than NEUTRAL.

    Args:
        pool: None if it is not known.
        root: parent folder of relative model folders.
        size: of the data; None: as far as it is known without reading it.

    Raises:
        UserError: if a section is invalid, or no model can be built of its keys.
    """
    workload = choose(config)
    workload.parsers.data(config.get("data"))
    seen = set()
    for values in samples(mapping(config.get("hyperparameters"))):
        hparams = workload.parsers.hyperparameters(values)
        # Trials that differ in a learning rate alone take the same time and memory. Values may be
        # mappings, which no set holds: their text stands for them.
        sized = {name: value for name, value in vars(hparams).items() if name not in NEUTRAL}
        text = repr(sized)
        if text in seen:
            continue
        seen.add(text)
        # What is known of this trial's windows counts before what was read for all.
        trial_size = known_size(config, hparams)
        if trial_size.training is None and size is not None:
            trial_size = size
        yield Job(
            config=config,
            workload=workload,
            hparams=hparams,
            slots=max(1, slots_of(config)),
            pool=pool,
            root=root,
            size=trial_size,
            model=find_model(workload.sizing, config, hparams, root),
        )


def read_size(job: Job) -> DataSize:
    """Return the windows of a job's data, read if it is on this machine.

    Raises UserError if it is invalid, and if its length is not known without a missing file.
    """
    data = mapping(job.config.get("data"))
    if job.size.training is not None:
        return job.size
    if data.get("shards"):
        shards = job.root / str(data["shards"])
        if not shards.is_dir():
            return job.size
        data = data | {"shards": str(shards)}
    elif "train" not in data or not (job.steps is None or _is_here(data)):
        return job.size
    else:
        open_split(parse_data_config(data), "train")  # first: a missing file is an error at once
    summary = job.workload.load(data, job.hparams).summary()
    return DataSize(training=summary.windows, validation=summary.validation_windows)


def _is_here(data: Config) -> bool:
    """Return whether training and validation questions are files of this machine."""
    names = [data["train"], data.get("validation") or data["train"]]
    return all(name == "generated" or Path(str(name)).exists() for name in names)


def samples(hyperparameters: Config) -> list[Config]:
    """Return the trials at a search's corners (at most 1024): all choices, both ends of ranges."""
    # The last key changes first: so those that decide over time and memory take all their values.
    names = sorted(hyperparameters, key=lambda name: name not in NEUTRAL)
    ends = [_ends(hyperparameters[name]) for name in names]
    corners = itertools.islice(itertools.product(*ends), 1024)
    return [dict(zip(names, corner, strict=True)) for corner in corners]


def _ends(value: object) -> list[Any]:
    """Return all choices of a hyperparameter or the ends of its range; [None] if it is wrong."""
    keys = mapping(value)
    kind = keys.get("type")
    if kind not in RANGES:
        return [value]
    if kind == "const":
        return [keys.get("val")]
    if kind == "categorical":
        choices = keys.get("vals")
        return choices if choices and isinstance(choices, list) else [None]
    ends: list[Any] = [keys.get("minval"), keys.get("maxval")]
    if kind == "log":
        # Wrong types and powers without an end are reported by the schema.
        with contextlib.suppress(KeyError, TypeError, ValueError, OverflowError):
            return [math.pow(keys["base"], power) for power in ends]
        return [None]
    return ends

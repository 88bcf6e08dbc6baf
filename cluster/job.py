"""A trial of an experiment as a plan needs it: its model, steps, windows and checkpoints.

The config's sections are read by the settings' own classes, so that a plan takes what a run takes.
Data is never read: the size of SQuAD is known, and another run says its steps.
"""

import math
from pathlib import Path
from typing import Any, NamedTuple

from cluster.experiment import choice_ends
from cluster.published import (
    QUESTIONS,
    SQUAD_WINDOW,
    VALIDATION_WINDOWS,
    WINDOWS,
)
from cluster.sizes import Sizes, find_sizes, flops_per_token, parameters_of
from detalbert.errors import UserError
from detalbert.settings.hparams import Length, StepHParams
from detalbert.settings.values import Config
from workloads import DOCUMENTS, EXAMPLES, find_row, parsers

TASKS = {DOCUMENTS: "language", EXAMPLES: "pretraining"}  # by kind of shards
SQUAD = ("rajpurkar/squad_v2", "squad_v2", "train-v2.0.json")
TEXT_BYTES = 4.5  # of a token of English


class Job(NamedTuple):
    """A trial of an experiment."""

    task: str  # fine-tuning, pretraining or language
    hparams: StepHParams
    sizes: Sizes
    parameters: float
    length: Length  # steps in all, and from one validation and checkpoint to the next
    window: float  # real tokens of a window
    flops: float  # per token, recomputation left out
    validations: int
    validation_windows: int  # of each validation; 0: not known
    text_bytes: float  # of text that becomes token shards at the start
    slots: int  # of the config
    trials: int
    image: str  # for GPUs; empty: the master's
    has_scratch: bool  # whether checkpoints go to a mounted folder first, taken for an NVMe drive

    @property
    def recomputed(self) -> float:
        """The share of the layers that run again in the backward pass."""
        return float(getattr(self.hparams, "recomputed", 0.0))

    @property
    def step_tokens(self) -> float:
        return self.hparams.global_batch_size * self.window

    @property
    def run_flops(self) -> float:
        """FLOPs of all steps, recomputation left out."""
        return self.length.steps * self.step_tokens * self.flops

    def count_shards(self, slots: int, width: int) -> int:
        """Return how many GPUs share the states of the model: 1 of one that every GPU holds.

        Args:
            slots: of the job.
            width: slots of a machine.
        """
        layout = getattr(self.hparams, "layout", {"shard": 1})
        numbers = {} if layout == "auto" else layout
        tensor = int(numbers.get("tensor", 1))
        if numbers.get("shard", "auto") == "auto":
            return max(min(slots, width), tensor)
        return int(numbers["shard"]) * tensor


def read_job(config: Config, root: Path) -> Job:
    """Return the trial of an experiment's config; of a search one with the largest values.

    Args:
        config: of an experiment.
        root: parent folder of relative model folders.

    Raises:
        UserError: if a section is wrong, or model or length are not known without a download.
    """
    task = TASKS.get(find_row(config).kind, "fine-tuning")
    sections = parsers(config)
    data = sections.data(config.get("data"))
    values = {key: _largest(value) for key, value in config["hyperparameters"].items()}
    hparams = sections.hyperparameters(values)
    sizes = find_sizes(hparams, root)

    # Windows of an epoch, real tokens of one, and windows of a validation.
    windows = None
    window = float(hparams.max_seq_length)
    limits = [getattr(part, "max_validation_windows", None) for part in (hparams, data)]
    validation_windows = max(limit or 0 for limit in limits)
    if getattr(data, "train", None) in SQUAD:
        # Of another length there are as many, within a tenth: most contexts fit one window.
        window = min(window, SQUAD_WINDOW)
        windows = WINDOWS * min(1.0, (data.max_train_examples or QUESTIONS) / QUESTIONS)
        validation_windows = VALIDATION_WINDOWS

    length = _length(hparams, windows)
    has_text = getattr(data, "documents", None) or getattr(data, "text", None)
    tokens = length.steps * hparams.global_batch_size * hparams.max_seq_length
    return Job(
        task=task,
        hparams=hparams,
        sizes=sizes,
        parameters=parameters_of(sizes),
        length=length,
        window=window,
        flops=flops_per_token(task, sizes, window),
        validations=length.validations + bool(config.get("perform_initial_validation")),
        validation_windows=validation_windows,
        text_bytes=TEXT_BYTES * tokens if has_text else 0.0,
        slots=_count_slots(config),
        trials=count_trials(config),
        image=_image(config),
        has_scratch=_has_scratch(config),
    )


def count_trials(config: Config) -> int:
    """Return the trials of a search; of an ASHA, which stops some early, at most."""
    searcher = config["searcher"]
    if searcher["name"] != "grid":
        return int(searcher.get("max_trials") or 1)
    trials = 1
    for value in config["hyperparameters"].values():
        if isinstance(value, dict) and "type" in value:
            trials *= value.get("count") or len(value.get("vals", [1]))
    return trials


def _largest(value: Any) -> Any:
    """Return the largest choice of a hyperparameter's range, or the first of texts."""
    choices = choice_ends(value)
    return choices[0] if isinstance(choices[0], str) else max(choices)


def _length(hparams: StepHParams, windows: float | None) -> Length:
    """Return the length of a run; `windows` are those of an epoch, None if they are not known."""
    if windows is not None:
        return hparams.length(math.ceil(windows))
    if hparams.max_steps is None:
        raise UserError(
            "not set, and the data is not read to count its windows",
            key="hyperparameters.max_steps",
            cure="--set hyperparameters.max_steps=N, which is windows x epochs / global_batch_size",
        )
    return hparams.length(hparams.max_steps * hparams.global_batch_size)


def _count_slots(config: Config) -> int:
    slots = (config.get("resources") or {}).get("slots_per_trial", 1)
    if slots < 1:
        raise UserError("trains on no GPU", key="resources.slots_per_trial", cure="use 1 or more")
    return int(slots)


def _image(config: Config) -> str:
    image = (config.get("environment") or {}).get("image") or ""
    return str(image.get("cuda") or "") if isinstance(image, dict) else image


def _has_scratch(config: Config) -> bool:
    """Return whether TMPDIR is set and folders are mounted: there checkpoints are written first."""
    variables = (config.get("environment") or {}).get("environment_variables")
    return "TMPDIR=/" in str(variables) and bool(config.get("bind_mounts"))

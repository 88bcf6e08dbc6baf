"""What train.py drives: a `Workload` for each kind of training."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from detalbert.engine.trial import StepTrial
from detalbert.settings.hparams import StepHParams


class DataSummary(NamedTuple):
    """What a run says of its data: a line for each part, and what a training epoch holds."""

    lines: dict[str, str]
    windows: int
    tokens: int


class Workload(NamedTuple):
    """A kind of training.

    `load` gives data with `fingerprints()`, what must not change over a restart, by config key, and
    `summary()`, a `DataSummary`. The trial takes (context, data) and has `predictions()`.
    """

    parse_data: Callable[[Any], Any]  # `data:`, checked
    parse: Callable[[Mapping[str, Any]], StepHParams]  # `hyperparameters:`, checked
    hparams: type  # what `parse` gives
    load: Callable[[dict[str, Any], Any], Any]  # (`data:`, hparams) -> data
    trial: Callable[[Any, Any], StepTrial]
    check: Callable[[Mapping[str, Any], Any, Sequence[str]], None]  # preflight.check, or its like
    metrics: tuple[str, ...]  # that a validation gives, beside `loss`
    metric: str  # the searcher's, where the config names none
    shown: tuple[str, ...]  # of the best validation, at the end
    leaves: str  # what is in the output directory

"""What train.py drives: a `Workload` for each kind of training."""

from typing import Any, Callable, Dict, Mapping, NamedTuple, Sequence, Tuple

from detalbert.engine.trial import StepTrial
from detalbert.settings.hparams import StepHParams


class DataSummary(NamedTuple):
    """What a run says of its data: a line for each part, and what a training epoch holds."""

    lines: Dict[str, str]
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
    load: Callable[[Dict[str, Any], Any], Any]  # (`data:`, hparams) -> data
    trial: Callable[[Any, Any], StepTrial]
    check: Callable[[Mapping[str, Any], Any, Sequence[str]], None]  # preflight.check, or its like
    metrics: Tuple[str, ...]  # that a validation gives, beside `loss`
    metric: str  # the searcher's, where the config names none
    shown: Tuple[str, ...]  # of the best validation, at the end
    leaves: str  # what is in the output directory

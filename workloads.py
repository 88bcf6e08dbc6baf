"""What train.py drives: one `Workload` for each kind of training, chosen by the config's `data:`.

A config whose data has `text` or `shards` pretrains; any other fine-tunes on SQuAD.
"""

from typing import Any, Callable, Dict, Mapping, NamedTuple, Sequence, Tuple

import preflight
from detalbert.engine.trial import StepTrial
from detalbert.settings.hparams import HParams, StepHParams, parse_data_config, parse_hparams
from detalbert.squad.metrics import METRICS
from model_def import SquadData, SquadTrial


class Workload(NamedTuple):
    """A kind of training.

    `load` gives data with `fingerprints()`, what must not change over a restart, by config key, and
    `summary()`, a `display.DataSummary`. The trial takes (context, data) and has `predictions()`.
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


FINE_TUNING = Workload(
    parse_data=parse_data_config,
    parse=parse_hparams,
    hparams=HParams,
    load=SquadData.load,
    trial=SquadTrial,
    check=preflight.check,
    metrics=tuple(METRICS),
    metric="f1",
    shown=("exact", "f1", "HasAns_exact", "HasAns_f1", "NoAns_exact", "best_exact", "best_f1"),
    leaves="predictions, metrics and checkpoints",
)


def choose(config: Mapping[str, Any]) -> Workload:
    """The workload that an experiment config means."""
    data = config.get("data")
    if isinstance(data, Mapping) and ("text" in data or "shards" in data):
        from pretrain.workload import PRETRAINING  # only here: fine-tuning does without

        return PRETRAINING
    return FINE_TUNING

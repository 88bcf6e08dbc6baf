"""A causal language model as a workload of train.py."""

from collections.abc import Mapping, Sequence
from typing import Any

from detalbert.training.workload import Workload
from lm.data import LmText
from lm.hparams import PARSERS, LmHParams
from lm.trial import METRICS, SHOWN, LmTrial


def check(config: Mapping[str, Any], hparams: LmHParams, gpu_uuids: Sequence[str]) -> None:
    pass


LANGUAGE_MODEL = Workload(
    parsers=PARSERS,
    load=LmText.load,
    trial=LmTrial,
    check=check,
    metrics=METRICS,
    metric="loss",
    shown=SHOWN,
    leaves="metrics and checkpoints",
    sharded=True,
)

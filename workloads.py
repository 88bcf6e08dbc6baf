"""Choice of a `Workload`, the interface of train.py, by the config's `data:`.

A config whose data has `documents`, or `shards` if the hyperparameters have `layout`, trains a
causal language model; one whose data has `text` or `shards` pretrains ALBERT; any other fine-tunes
on SQuAD. On a cluster startup-hook.sh runs this file first: an error in the config's own sections
ends the task there with one line. After train.py's error, torchrun prints thirty lines of its own.
"""

import json
import logging
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from detalbert.errors import UserError
from detalbert.log import start_logging
from detalbert.settings.sections import Parsers

if TYPE_CHECKING:
    from detalbert.training.workload import Workload

log = logging.getLogger("detalbert.workloads")


def choose(config: Mapping[str, Any]) -> "Workload":
    """Return the workload of an experiment config."""
    if _models_language(config):
        from lm.workload import LANGUAGE_MODEL

        return LANGUAGE_MODEL
    if _pretrains(config):
        from pretrain.workload import PRETRAINING  # only here: fine-tuning does without

        return PRETRAINING
    from model_def import FINE_TUNING

    return FINE_TUNING


def parsers(config: Mapping[str, Any]) -> Parsers:
    """Return the parsers of that config's workload. Imports no torch, so it is fast."""
    if _models_language(config):
        from lm.hparams import PARSERS as language_model

        return language_model
    if _pretrains(config):
        from pretrain.hparams import PARSERS as pretraining

        return pretraining
    from detalbert.settings.hparams import PARSERS as fine_tuning

    return fine_tuning


def _models_language(config: Mapping[str, Any]) -> bool:
    data, hparams = config.get("data"), config.get("hyperparameters")
    split = isinstance(hparams, Mapping) and "layout" in hparams
    return isinstance(data, Mapping) and ("documents" in data or ("shards" in data and split))


def _pretrains(config: Mapping[str, Any]) -> bool:
    data = config.get("data")
    return isinstance(data, Mapping) and ("text" in data or "shards" in data)


def main() -> int:
    """Check the config of this process's task; return the exit status, 0 or 2.

    Reads Determined's own environment (`DET_EXPERIMENT_CONFIG`, `DET_HPARAMS`), as does
    `TrialInfo._from_env` of 0.38.1; the files of `get_cluster_info` do not exist yet.
    """
    if "DET_EXPERIMENT_CONFIG" not in os.environ:  # a notebook, a shell
        return 0
    start_logging()
    config = json.loads(os.environ["DET_EXPERIMENT_CONFIG"])
    if "predict.py" in str(config.get("entrypoint")):  # its arguments are no sections
        return 0
    try:
        found = parsers(config)
        found.data(config.get("data"))
        found.hyperparameters(json.loads(os.environ["DET_HPARAMS"]))
    except UserError as error:
        log.error("train.py: %s: %s", error.kind, error)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Pretraining as a workload of train.py."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AlbertConfig, AlbertForPreTraining

from detalbert.settings.text import parse_text_config
from detalbert.training import preflight
from detalbert.training.workload import Workload
from pretrain.data import PretrainText
from pretrain.hparams import PARSERS, PretrainHParams
from pretrain.trial import METRICS, SHOWN, PretrainTrial


def check(config: Mapping[str, Any], hparams: PretrainHParams, gpu_uuids: Sequence[str]) -> None:
    """Whether this machine can run the experiment. Raises UserError for the first that cannot be.

    Text is not looked at: making shards of it reads it, and says what is wrong.
    """
    data = parse_text_config(config["data"])
    preflight.check_gpus(gpu_uuids)
    parameters = 0
    if hparams.model is None:
        with torch.device("meta"):
            model = AlbertForPreTraining(AlbertConfig(**hparams.model_keys()))
        parameters = sum(parameter.numel() for parameter in model.parameters())
    preflight.check_room(config, gpu_uuids, parameters, Path(data.cache_dir), preflight.GIB)


PRETRAINING = Workload(
    parsers=PARSERS,
    load=PretrainText.load,
    trial=PretrainTrial,
    check=check,
    metrics=METRICS,
    metric="loss",
    shown=SHOWN,
    leaves="metrics and checkpoints",
)

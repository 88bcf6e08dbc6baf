"""Pretraining as a workload of train.py."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import AlbertConfig, AlbertForPreTraining

from detalbert.engine.models import encoder_sizes
from detalbert.settings.text import parse_text_config
from detalbert.training import preflight
from detalbert.training.workload import Workload
from pretrain.data import PretrainText
from pretrain.hparams import PARSERS, PretrainHParams
from pretrain.trial import METRICS, SHOWN, PretrainTrial


def check(config: Mapping[str, Any], hparams: PretrainHParams, gpu_uuids: Sequence[str]) -> None:
    """Check that this machine can run the experiment. Raises UserError for the first fault. Text is
    not checked: writing its shards reads it, and reports faults.
    """
    data = parse_text_config(config["data"])
    preflight.check_gpus(gpu_uuids)
    sizes = None
    if hparams.model is None:
        sizes = encoder_sizes(AlbertConfig(**hparams.model_keys()), AlbertForPreTraining)
    room = Path(data.cache_dir), preflight.GIB
    preflight.check_room(config, hparams, sizes, gpu_uuids, *room, hparams.masked_fraction)


PRETRAINING = Workload(
    parsers=PARSERS,
    load=PretrainText.load,
    trial=PretrainTrial,
    check=check,
    metrics=METRICS,
    metric="loss",
    shown=SHOWN,
    leaves="metrics and checkpoints",
    use="python predict.py --model {} --export DIR (or go on with it: pretrain/README.md)",
    smaller_is_better=("loss", "mlm_loss", "sop_loss", "span_loss"),
)

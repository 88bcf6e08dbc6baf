"""What train.py drives: one `Workload` for each kind of training, chosen by the config's `data:`.

A config whose data has `text` or `shards` pretrains; any other fine-tunes on SQuAD.
"""

from collections.abc import Mapping
from typing import Any

from detalbert.training.workload import Workload
from model_def import FINE_TUNING


def choose(config: Mapping[str, Any]) -> Workload:
    """The workload that an experiment config means."""
    data = config.get("data")
    if isinstance(data, Mapping) and ("text" in data or "shards" in data):
        from pretrain.workload import PRETRAINING  # only here: fine-tuning does without

        return PRETRAINING
    return FINE_TUNING

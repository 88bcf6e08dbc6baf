"""A causal language model as a workload of train.py."""

from detalbert.training.workload import Workload
from lm.data import LmText
from lm.hparams import PARSERS
from lm.preflight import check
from lm.trial import METRICS, SHOWN, LmTrial

LANGUAGE_MODEL = Workload(
    parsers=PARSERS,
    load=LmText.load,
    trial=LmTrial,
    check=check,
    metrics=METRICS,
    metric="loss",
    shown=SHOWN,
    leaves="metrics and checkpoints",
    smaller_is_better=("loss", "perplexity", "bits_per_byte", "baseline_bits_per_byte"),
    sharded=True,
)

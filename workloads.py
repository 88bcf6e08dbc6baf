"""Choice of a `Workload`, the interface of train.py, by the keys of the config's `data:`.

On a cluster startup-hook.sh runs this file first: an error in the config's own sections ends the
task there with one line. After train.py's error, torchrun prints thirty lines of its own.
"""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, NamedTuple

from detalbert.errors import UserError
from detalbert.log import fail, start_logging
from detalbert.settings.sections import Parsers

if TYPE_CHECKING:
    from detalbert.training.workload import Workload


class WorkloadRow(NamedTuple):
    """A workload: the keys that select it, and where its parsers and its `Workload` are."""

    keys: str  # of `data:`, any one of which selects it
    parsers: str  # MODULE:NAME of its `Parsers`, in a module that imports no torch
    workload: str  # MODULE:NAME
    kind: str = ""  # of `data.shards` that select it, as their index says
    corpus: str = ""  # MODULE:NAME of what writes these, in a module that imports no torch


DOCUMENTS, EXAMPLES = "documents", "examples"  # kinds of shards
_LM = WorkloadRow("documents", "lm.hparams:PARSERS", "lm.trial:LANGUAGE_MODEL", DOCUMENTS)
_PRETRAINING = WorkloadRow("text", "pretrain.hparams:PARSERS", "pretrain.trial:PRETRAINING")
TABLE = (  # the first row that fits counts
    _LM._replace(corpus="lm.corpus:write_corpus"),
    _PRETRAINING._replace(kind=EXAMPLES, corpus="pretrain.corpus:write_corpus"),
    WorkloadRow("train validation", "detalbert.settings.hparams:PARSERS", "model_def:FINE_TUNING"),
)
DATA_KEYS = [word for row in TABLE for word in row.keys.split()] + ["shards"]


def choose(config: Mapping[str, Any], read: bool = False) -> "Workload":
    """Return the workload of an experiment config; `read`: see `find_row`. Raises UserError if no
    row of TABLE fits.
    """
    return resolve_name(find_row(config, read).workload)


def parsers(config: Mapping[str, Any]) -> Parsers:
    """Return the parsers of that config's workload. Imports no torch, so it is fast."""
    return resolve_name(find_row(config).parsers)


def find_row(config: Mapping[str, Any], read: bool = False) -> WorkloadRow:
    """Return the first row of TABLE that fits. Raises UserError, naming the keys, if none does.

    Shards say what they hold: if they are remote, `read` fetches their index; else the
    hyperparameters decide.
    """
    sections = (config.get(name) for name in ("data", "hyperparameters"))
    data, hparams = (each if isinstance(each, Mapping) else {} for each in sections)
    for row in TABLE:
        if not set(row.keys.split()).isdisjoint(data):
            return row
    if "shards" in data:
        kind = _kind_of(str(data["shards"]), hparams, read)
        return next(row for row in TABLE if row.kind == kind)
    raise UserError(f"data: selects no workload; give one of these keys: {', '.join(DATA_KEYS)}")


def _kind_of(address: str, hparams: Mapping[str, Any], read: bool) -> str:
    if read:
        return resolve_name("detalbert.corpus.index:read_index")(address).get("kind", EXAMPLES)
    try:
        return json.loads((Path(address) / "index.json").read_text()).get("kind", EXAMPLES)
    except (OSError, ValueError, AttributeError):
        model = hparams.get("model_config")
        other = isinstance(model, Mapping) and model.get("model_type", "albert") != "albert"
        own = {"layout", "across_documents", "max_validation_windows"} & set(hparams)
        return DOCUMENTS if own or other else EXAMPLES


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
        return fail("train.py", error)
    return 0


if __name__ == "__main__":
    sys.exit(main())

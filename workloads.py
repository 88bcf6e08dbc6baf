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
from detalbert.settings.text import parse_sources
from detalbert.sums import load_json

if TYPE_CHECKING:
    from detalbert.training.workload import Workload


class WorkloadRow(NamedTuple):
    """A workload: the key that selects it, and where its parsers and its `Workload` are.

    Places are MODULE:NAME, so that choosing a workload imports no other. The parsers and `corpus`
    are in modules that import no torch.
    """

    key: str  # of `data:`
    parsers: str  # its `Parsers`
    workload: str  # its `Workload`
    kind: str = ""  # of `data.shards` that select it, as their index says
    corpus: str = ""  # what writes these


# Kinds of shards, as their index says.
DOCUMENTS = "documents"
EXAMPLES = "examples"
# The order counts: of rows whose keys a config has, the first is taken.
TABLE = (
    WorkloadRow(
        key="documents",
        parsers="lm.hparams:PARSERS",
        workload="lm.trial:LANGUAGE_MODEL",
        kind=DOCUMENTS,
        corpus="lm.corpus:write_corpus",
    ),
    WorkloadRow(
        key="text",
        parsers="pretrain.hparams:PARSERS",
        workload="pretrain.trial:PRETRAINING",
        kind=EXAMPLES,
        corpus="pretrain.corpus:write_corpus",
    ),
    WorkloadRow(
        key="train",
        parsers="detalbert.settings.hparams:PARSERS",
        workload="model_def:FINE_TUNING",
    ),
)
DATA_KEYS = [*(row.key for row in TABLE), "shards"]
# Those of them, and others, that may name files.
SOURCE_KEYS = ("train", "validation", "text", "documents", "validation_documents", "shards")


def choose(config: Mapping[str, object], read: bool = False) -> "Workload":
    """Return the workload of an experiment config; `read`: see `find_row`. Raises UserError if no
    row of TABLE fits.
    """
    return resolve_name(find_row(config, read).workload)


def parsers(config: Mapping[str, object]) -> Parsers:
    """Return the parsers of that config's workload. Imports no torch, so it is fast."""
    return resolve_name(find_row(config).parsers)


def find_row(config: Mapping[str, object], read: bool = False) -> WorkloadRow:
    """Return the row of TABLE that a key of `data:` selects. Raises UserError, naming the keys, if
    none does.

    Shards say what they hold: if they are remote, `read` fetches their index; else the config's
    other keys decide.
    """
    data = _section(config, "data")
    for row in TABLE:
        if data.get(row.key) is not None:
            return row
    shards = data.get("shards")
    if shards is not None:
        kind = _kind_of_shards(str(shards), read) or _likely_kind(config)
        return next(row for row in TABLE if row.kind == kind)
    cure = f"give one of these keys: {', '.join(DATA_KEYS)}"
    raise UserError("selects no workload", key="data", cure=cure)


def check_sources(config: Mapping[str, object]) -> None:
    """Raise UserError for a path in `data:` at which nothing is, or a small file of questions with
    a fault. Imports no torch.
    """
    # These take a while, and need packages that a task's hook may have to install.
    from detalbert.addresses import check_there, ending_of
    from detalbert.reading.records import READERS
    from detalbert.squad.sources import OFFICIAL_SHA256
    from detalbert.training.questions import check_questions

    data = _section(config, "data")
    for key in SOURCE_KEYS:
        value: Any = data.get(key)
        for source in parse_sources(key, value):
            name = source.source
            # Shards are no data set of the hub, whatever their name.
            endings = [ending_of(name)] if key == "shards" else [*READERS, ".txt", ".md"]
            if name not in OFFICIAL_SHA256:
                check_there(name, f"data.{key}", endings)
    if "train" in data:
        check_questions(dict(data))


def _section(config: Mapping[str, object], name: str) -> Mapping[str, object]:
    section = config.get(name)
    return section if isinstance(section, Mapping) else {}


def _kind_of_shards(address: str, read: bool) -> str | None:
    """Return the kind that the shards' index says; None if it cannot be read here."""
    if read:
        return resolve_name("detalbert.corpus.index:read_index")(address).get("kind")
    try:
        return load_json(Path(address) / "index.json").get("kind")
    except (OSError, ValueError, AttributeError):
        return None  # elsewhere, or damaged, which is said later


def _likely_kind(config: Mapping[str, object]) -> str:
    """Return the kind of shards whose workload knows the most of a config's hyperparameters; if
    all know as many, a model of another family than ALBERT is a language model.
    """
    hparams = _section(config, "hyperparameters")
    model_type = _section(hparams, "model_config").get("model_type", "albert")
    likely = EXAMPLES if model_type == "albert" else DOCUMENTS

    def fit(row: WorkloadRow) -> tuple[int, bool]:
        keys = resolve_name(row.parsers).hyperparameters_class.__pydantic_fields__
        return len(keys.keys() & hparams.keys()), row.kind == likely

    return max((row for row in TABLE if row.kind), key=fit).kind


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
        parsers(config).both(config.get("data"), json.loads(os.environ["DET_HPARAMS"]))
    except UserError as error:
        return fail("train.py", error)
    return 0


if __name__ == "__main__":
    sys.exit(main())

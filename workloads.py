"""Choice of a `Workload`, the interface of train.py, by the keys of the config's `data:`.

On a cluster startup-hook.sh runs this file first: an error in the config's own sections ends the
task there with one line. After train.py's error, torchrun prints thirty lines of its own.
"""

import json
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, NamedTuple

from detalbert.errors import UnknownKey, UserError, nearest
from detalbert.log import fail, start_logging
from detalbert.settings.sections import Parsers
from detalbert.settings.sections import hint as synonym

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
TABLE = (  # of rows that fit equally well the first counts
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
    """Return the row of TABLE whose keys fit those of `data:` best, the first of equals. Raises
    UserError, naming the keys, if none fits or the key that would select one is misspelt.

    Shards say what they hold: if they are remote, `read` fetches their index; else the
    hyperparameters decide.
    """
    sections = (config.get(name) for name in ("data", "hyperparameters"))
    data, hparams = (each if isinstance(each, Mapping) else {} for each in sections)
    rows = [row for row in TABLE if not set(row.keys.split()).isdisjoint(data)]
    if rows:
        row = max(rows, key=lambda row: len(_fields(row) & set(data)))
        _check_spelling(row, data)
        return row
    if "shards" in data:
        kind = _kind_of(str(data["shards"]), hparams, read)
        return next(row for row in TABLE if row.kind == kind)
    hints = {key: _hint(key, DATA_KEYS) for key in data}
    near = "".join(f"{key!r}: {hint}; " for key, hint in hints.items() if hint)
    keys = ", ".join(DATA_KEYS)
    raise UserError(f"data: selects no workload; {near}give one of these keys: {keys}")


def _hint(key: Any, names: Iterable[str]) -> str:
    """Return "did you mean 'x'?" if a name is near, else an empty text."""
    hint = nearest(str(key), names)
    return hint if hint.startswith("did you mean") else ""


def _fields(row: WorkloadRow) -> set[str]:
    """Return the keys that the `data:` of a row's workload has."""
    parse = resolve_name(row.parsers).data
    section = getattr(parse, "args", [None])[0]  # of partial(parse_section, SECTION, "data")
    return {field.name for field in fields(section)} if section else set(row.keys.split())


def _check_spelling(chosen: WorkloadRow, data: Mapping[str, Any]) -> None:
    """Raise UserError for a key that is unknown to the chosen workload and nearest to one that
    selects another: the others' errors would lead astray.
    """
    own = _fields(chosen)
    selecting = {word for row in TABLE for word in row.keys.split()} - own - set(data)
    for key in map(str, data):
        hint = _hint(key, own | selecting)
        elsewhere = any(hint == f"did you mean {name!r}?" for name in selecting)
        if key not in own and elsewhere and synonym(key, own) is None:
            raise UnknownKey(key, "data", own, hint)


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
    try:
        config = _environment("DET_EXPERIMENT_CONFIG")
        if "predict.py" in str(config.get("entrypoint")):  # its arguments are no sections
            return 0
        sections = parsers(config)
        sections.data(config.get("data"))
        sections.hyperparameters(_environment("DET_HPARAMS"))
    except UserError as error:
        return fail("train.py", error)
    return 0


def _environment(name: str) -> dict[str, Any]:
    """Return the mapping that an environment variable of Determined holds as JSON. Raises UserError
    if it does not.
    """
    try:
        value = json.loads(os.environ.get(name, ""))
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        problem = "holds no JSON mapping" if name in os.environ else "missing"
        raise UserError(f"{name}: {problem}; Determined sets it for a trial, so start one")
    return value


if __name__ == "__main__":
    sys.exit(main())

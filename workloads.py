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
from typing import TYPE_CHECKING, NamedTuple

from detalbert.errors import UnknownKey, UserError, nearest
from detalbert.log import fail, start_logging
from detalbert.settings.sections import Parsers
from detalbert.settings.sections import hint as synonym
from detalbert.settings.values import Config

if TYPE_CHECKING:
    from detalbert.training.workload import Workload


class WorkloadRow(NamedTuple):
    """A workload: the keys that select it, and where its parsers and its `Workload` are.

    Places are MODULE:NAME, so that choosing a workload imports no other. The parsers and `corpus`
    are in modules that import no torch.
    """

    keys: tuple[str, ...]  # of `data:`, any one of which selects it
    parsers: str  # its `Parsers`
    workload: str  # its `Workload`
    kind: str = ""  # of `data.shards` that select it, as their index says
    corpus: str = ""  # what writes these
    # Hyperparameters that no other workload of shards has: they select it where the shards' index
    # cannot be read.
    own_keys: frozenset[str] = frozenset()


# Kinds of shards, as their index says.
DOCUMENTS = "documents"
EXAMPLES = "examples"
# The order counts: of rows whose keys fit a config equally well the first is taken.
TABLE = (
    WorkloadRow(
        keys=("documents",),
        parsers="lm.hparams:PARSERS",
        workload="lm.trial:LANGUAGE_MODEL",
        kind=DOCUMENTS,
        corpus="lm.corpus:write_corpus",
        own_keys=frozenset({"layout", "across_documents", "max_validation_windows"}),
    ),
    WorkloadRow(
        keys=("text",),
        parsers="pretrain.hparams:PARSERS",
        workload="pretrain.trial:PRETRAINING",
        kind=EXAMPLES,
        corpus="pretrain.corpus:write_corpus",
        own_keys=frozenset({"masked_fraction", "max_ngram", "sentence_order", "span_fraction"}),
    ),
    WorkloadRow(
        keys=("train", "validation"),
        parsers="detalbert.settings.hparams:PARSERS",
        workload="model_def:FINE_TUNING",
    ),
)


def selecting_keys() -> list[str]:
    """Return the keys of `data:` that select a workload, but `shards`."""
    keys: list[str] = []
    for row in TABLE:
        keys += row.keys
    return keys


DATA_KEYS = [*selecting_keys(), "shards"]


def choose(config: Mapping[str, object], read: bool = False) -> "Workload":
    """Return the workload of an experiment config; `read`: see `find_row`. Raises UserError if no
    row of TABLE fits.
    """
    return resolve_name(find_row(config, read).workload)


def parsers(config: Mapping[str, object]) -> Parsers:
    """Return the parsers of that config's workload. Imports no torch, so it is fast."""
    return resolve_name(find_row(config).parsers)


def find_row(config: Mapping[str, object], read: bool = False) -> WorkloadRow:
    """Return the row of TABLE whose keys fit those of `data:` best, the first of equals. Raises
    UserError, naming the keys, if none fits or the key that would select one is misspelt.

    Shards say what they hold: if they are remote, `read` fetches their index; else the
    hyperparameters decide.
    """
    data = _section(config, "data")

    # A key of a workload selects it; the others tell which, where several have that key.
    rows = [row for row in TABLE if not data.keys().isdisjoint(row.keys)]
    if rows:
        row = max(rows, key=lambda row: len(_fields(row) & data.keys()))
        _check_spelling(row, data)
        return row
    if "shards" in data:
        hparams = _section(config, "hyperparameters")
        kind = _kind_of_shards(str(data["shards"]), hparams=hparams, read=read)
        return next(row for row in TABLE if row.kind == kind)

    # Nothing does: perhaps a key is misspelt.
    cures = []
    for key in data:
        hint = _hint(key, DATA_KEYS)
        if hint:
            cures.append(f"{key!r}: {hint}")
    cures.append(f"give one of these keys: {', '.join(DATA_KEYS)}")
    raise UserError("selects no workload", key="data", cure="; ".join(cures))


def _section(config: Mapping[str, object], name: str) -> Mapping[str, object]:
    section = config.get(name)
    return section if isinstance(section, Mapping) else {}


def _hint(key: object, names: Iterable[str]) -> str:
    """Return "did you mean 'x'?" if a name is near, else an empty text."""
    hint = nearest(str(key), names)
    return hint if hint.startswith("did you mean") else ""


def _fields(row: WorkloadRow) -> set[str]:
    """Return the keys that the `data:` of a row's workload has."""
    # A parser is partial(parse_section, SECTION, "data"), or a function of its own.
    parse = resolve_name(row.parsers).data
    arguments = getattr(parse, "args", ())
    if not arguments:
        return set(row.keys)
    section, *_ = arguments
    return {field.name for field in fields(section)}


def _check_spelling(chosen: WorkloadRow, data: Mapping[str, object]) -> None:
    """Raise UserError for a key that is unknown to the chosen workload and nearest to one that
    selects another: the others' errors would lead astray.
    """
    own = _fields(chosen)
    elsewhere = set(selecting_keys()) - own - set(data)
    hints_elsewhere = {f"did you mean {name!r}?" for name in elsewhere}
    for key in map(str, data):
        if key in own:
            continue
        hint = _hint(key, names=own | elsewhere)
        # A word of another trainer has a hint of its own.
        if hint in hints_elsewhere and synonym(key, known=own) is None:
            raise UnknownKey(key, section="data", known=own, hint=hint)


def _kind_of_shards(address: str, hparams: Mapping[str, object], read: bool) -> str:
    """Return the kind that the shards' index says; where it cannot be read here, that of the
    workload whose hyperparameters these are.
    """
    if read:
        read_index = resolve_name("detalbert.corpus.index:read_index")
        return read_index(address).get("kind", EXAMPLES)
    try:
        index = json.loads((Path(address) / "index.json").read_text())
        return index.get("kind", EXAMPLES)
    except (OSError, ValueError, AttributeError):
        pass

    # Elsewhere, or damaged, which is said later.
    for row in TABLE:
        if row.own_keys & hparams.keys():
            return row.kind
    model = _section(hparams, "model_config")
    return EXAMPLES if model.get("model_type", "albert") == "albert" else DOCUMENTS


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


def _environment(name: str) -> Config:
    """Return the mapping that an environment variable of Determined holds as JSON. Raises UserError
    if it does not.
    """
    try:
        value = json.loads(os.environ.get(name, ""))
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise UserError(
            "holds no JSON mapping" if name in os.environ else "missing",
            key=name,
            cure="Determined sets it for a trial, so start one",
        )
    return value


if __name__ == "__main__":
    sys.exit(main())

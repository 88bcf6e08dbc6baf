"""Resolution of `--model`: every name ends as a folder on this machine.

A checkpoint of a Determined cluster is downloaded once, into a folder named by its UUID, with the
sums of its files. That takes disk which nothing frees, and buys a second start without the master,
which is asked again only for names that may change their meaning, such as a trial's best.
"""

import logging
import math
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from huggingface_hub import snapshot_download

import detalbert.engine.determined_internals  # noqa: F401
from detalbert import hub
from detalbert.errors import Unavailable, UserError, as_user_error, first_line
from detalbert.files import cached_folder, write_json
from detalbert.hub import STATE_DICT
from detalbert.redact import masked
from detalbert.sums import Json, find_change, load_json
from detalbert.training.folder import list_checkpoints, read_metrics
from detalbert.training.manifest import find_damage
from detalbert.training.workload import is_sharded

if TYPE_CHECKING:  # its import takes a second, and most names need no cluster
    from determined.experimental import client

PLACES = (
    "a checkpoint, a run's output directory, an exported folder, a hub name, a checkpoint's UUID, "
    "trial:ID, experiment:ID or model:NAME"
)
EXPERIMENT = "experiment.json"  # in a downloaded checkpoint: its training, as on the master
CACHE = Path(".cache") / "checkpoints"
log = logging.getLogger(__name__)
_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w.-]+(@[\w./-]+)?")
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_REFERENCE = re.compile(
    rf"(?P<uuid>{_UUID.pattern})|(?P<kind>trial|experiment):(?P<id>\d+)(:(?P<rank>best|latest))?"
    r"|model:(?P<model>[^:/]+)(:(?P<version>\d+))?"
)


def read_json(path: Path) -> Json:
    """Return the mapping in a JSON file; {} if there is no file.

    Raises:
        UserError: the file holds anything else.
    """
    if not path.is_file():
        return {}
    try:
        content = load_json(path)
    except (OSError, ValueError) as error:
        problem = f"cannot be read ({first_line(error)})"
        raise UserError(problem, key=str(path), cure="restore it") from None
    if not isinstance(content, dict):
        raise UserError("expected a mapping of keys", key=str(path), cure="restore it")
    return content


def find(name: str) -> Path:
    """Return the folder of a model, downloaded once if it is not on this machine.

    Args:
        name: a checkpoint, a run's output directory (its best checkpoint), any model folder of
            transformers, a checkpoint of a cluster or a model of the hub.

    Raises:
        UserError: there is no such model, or it cannot be read.
        Unavailable: the master, the hub or the network does not answer.
    """
    key = f"--model {name}"
    folder = Path(name)

    # A folder of this machine comes first, even if it is called trial:7.
    if not folder.exists() and _REFERENCE.fullmatch(name):
        return fetch(name)
    # A/B is of the hub, unless a folder A is here: then B is a mistake.
    if _HUB_NAME.fullmatch(name) and not Path(folder.parts[0]).exists():
        problem = "no such folder, and the hub does not give it"
        with hub.hub_errors(problem, key=key, cure=f"give {PLACES}"):
            return Path(hub.load_named(snapshot_download, name, allow_patterns=hub.MODEL_FILES))
    if not folder.is_dir():
        raise UserError("no such folder", key=key, cure=f"give {PLACES}")
    # Files of a checkpoint, of a sharded one, and of a model folder of transformers.
    is_model = any((folder / mark).is_file() for mark in (STATE_DICT, "config.json"))
    if is_model or is_sharded(folder):
        return folder
    if (folder / "checkpoints").is_dir():
        return _best_of_run(folder)
    raise UserError(
        f"neither a checkpoint ({STATE_DICT} or shard-*.safetensors) nor a run's output directory "
        "(checkpoints/) nor a model folder (config.json)",
        key=key,
    )


def _best_of_run(folder: Path) -> Path:
    """Return the checkpoint of a run's best validation; if that was not kept, or nothing says which
    it is, the newest complete one, with a warning.
    """
    checkpoints = dict(list_checkpoints(folder / "checkpoints"))
    best = ((read_metrics(folder) or {}).get("best") or {}).get("steps")
    if best in checkpoints:
        return checkpoints[best]
    # Validations may be more frequent than checkpoints.
    complete = [path for path in checkpoints.values() if find_damage(path) is None]
    if not complete:
        problem = f"no complete checkpoint in {folder / 'checkpoints'}"
        raise UserError(problem, key=f"--model {folder}", cure="train first")
    log.warning(
        "--model %s: its best validation (step %s) has no checkpoint; using %s, the newest",
        folder,
        best,
        complete[-1].name,
    )
    return complete[-1]


# Checkpoints of a cluster, by the names of `det`.


def fetch(name: str) -> Path:
    """Return the folder of a cluster's checkpoint, downloaded once.

    Raises:
        UserError: `find_remote` does, or the download fails.
        Unavailable: the master or the network does not answer.
    """
    # A UUID never changes its meaning: a complete download needs no master.
    if _UUID.fullmatch(name) and find_change(CACHE / name, key=name) is None:
        return CACHE / name
    key = f"--model {name}"
    with as_user_error(partial(_client_error, key)):
        return _download(find_remote(name, key))


def find_remote(name: str, key: str) -> "client.Checkpoint":
    """Return the client's checkpoint of a name. Raises whatever the client does.

    `trial:7` and `experiment:3` mean the best by the experiment's searcher metric (`trial:7:best`
    is the same), `trial:7:latest` the newest, `model:squad` the newest version in the registry,
    `model:squad:2` its second. Master and login are those of `det`: DET_MASTER, `det user login`.

    Args:
        name: of a cluster's checkpoint.
        key: of errors, as the user wrote it.

    Raises:
        UserError: `name` is no such name, or has no checkpoint.
    """
    from determined.experimental import client

    reference = _REFERENCE.fullmatch(name)
    assert reference is not None, name
    master = client.Determined()
    if reference["uuid"]:
        return master.get_checkpoint(reference["uuid"])
    # model:NAME is the newest version in the registry, -1 for the client, unless one is named.
    if reference["model"]:
        model = master.get_model(reference["model"])
        version = model.get_version(int(reference["version"] or -1))
        if version is None or version.checkpoint is None:
            raise UserError(
                "it has no version yet",
                key=key,
                cure="register one",
            )
        return version.checkpoint

    # A trial or an experiment has many, newest first: the best, unless the newest is wanted.
    get = master.get_trial if reference["kind"] == "trial" else master.get_experiment
    checkpoints = get(int(reference["id"])).list_checkpoints(
        sort_by=client.CheckpointSortBy.END_TIME, order_by=client.OrderBy.DESC
    )
    # A failed one is listed, too, and one that is being deleted.
    completed = client.CheckpointState.COMPLETED
    finished = [checkpoint for checkpoint in checkpoints if checkpoint.state is completed]
    if not finished:
        raise UserError(
            "it has no finished checkpoint", key=key, cure="wait for one, or give a UUID"
        )
    return finished[0] if reference["rank"] == "latest" else min(finished, key=_badness)


def _badness(checkpoint: "client.Checkpoint") -> float:
    """Return the searcher's metric after a checkpoint, negated if more is better; infinity if none.

    A 0.38.1 master sorts a trial's by the raw metric, the worst f1 and those not validated first.
    """
    training = checkpoint.training
    assert training is not None, checkpoint.uuid
    searcher = training.experiment_config.get("searcher") or {}
    scores = training.validation_metrics.get("avgMetrics") or {}
    value = scores.get(searcher.get("metric"))
    if not isinstance(value, (int, float)) or math.isnan(value):
        return math.inf
    return value if searcher.get("smaller_is_better", True) else -value


def _download(checkpoint: "client.Checkpoint") -> Path:
    if not _UUID.fullmatch(checkpoint.uuid):
        problem = f"{checkpoint.uuid!r} is no checkpoint's UUID"
        raise UserError(problem, key="the master", cure="give another")

    def build(folder: Path) -> None:
        log.info("fetching checkpoint %s", checkpoint.uuid)
        checkpoint.download(str(folder))
        # Only checkpoints that answer questions have their scores with them.
        training = checkpoint.training
        if training is not None:
            experiment = {
                "hyperparameters": training.hparams,
                "data": masked(training.experiment_config.get("data") or {}),
                "scores": training.validation_metrics.get("avgMetrics") or {},
            }
            write_json(folder / EXPERIMENT, experiment)

    target = CACHE / checkpoint.uuid
    return cached_folder(target, checkpoint.uuid, build, what="the checkpoint")


def _client_error(key: str, error: Exception) -> UserError:
    """Return the error of Determined's client or of the storage, which have no class in common, as
    one of `--model`: Unavailable if the master or the network does not answer.
    """
    from determined.common.api import errors

    if isinstance(error, errors.UnauthenticatedException):
        return UserError("not logged in to the master", key=key, cure="run `det user login`")
    problem = f"not fetched: {first_line(error)}"
    if isinstance(error, (errors.MasterNotFoundException, OSError)):
        return Unavailable(problem, key=key, cure="see that DET_MASTER is right, and try again")
    return UserError(problem, key=key)

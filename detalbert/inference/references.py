"""Checkpoints of a Determined cluster, by the names of `det`: a UUID, trial:ID, model:NAME, ...

A checkpoint is downloaded once, into a folder named by its UUID, with the sums of its files. That
takes disk which nothing frees, and buys a second start without the master, which is asked again
only for names that may change their meaning, such as a trial's best.
"""

import contextlib
import logging
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detalbert.determined_internals import download_checkpoint
from detalbert.errors import Unavailable, UserError, as_user_error, first_line
from detalbert.files import cached_folder, write_json
from detalbert.redact import masked
from detalbert.sums import find_change
from detalbert.training.model_kind import ENCODER, LANGUAGE, find_kind

if TYPE_CHECKING:  # its import takes a second, and most names need no cluster
    from determined.experimental import client

EXPERIMENT = "experiment.json"  # in a downloaded checkpoint: its training, as on the master
CACHE = Path(".cache") / "checkpoints"
JsonObject = dict[str, Any]  # a mapping of a JSON file
# A checkpoint's folder or UUID, and the scores of the validation after the same step.
ScoredCheckpoint = tuple[str, dict[str, float]]
log = logging.getLogger(__name__)
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_REFERENCE = re.compile(
    rf"(?P<uuid>{_UUID})|(?P<kind>trial|experiment):(?P<id>\d+)(?P<rank>.*)"
    r"|model:(?P<model>[^:/]+)(:(?P<version>\d+))?"
)


def is_reference(name: str) -> bool:
    """Return whether `name` is a UUID, {trial,experiment}:ID[:latest] or model:NAME[:VERSION]."""
    return _REFERENCE.fullmatch(name) is not None


def is_run_reference(name: str) -> bool:
    """Return whether `name` is experiment:ID or trial:ID, without `:best` or `:latest`."""
    if not is_reference(name):
        return False
    reference = _match(name)
    return bool(reference["kind"]) and not reference["rank"]


def fetch(name: str) -> Path:
    """Return a cluster checkpoint's folder, downloaded once.

    Raises:
        UserError: `find_remote` does, or the download fails.
        Unavailable: the master or the network does not answer.
    """
    # A UUID never changes its meaning: a complete download needs no master.
    if re.fullmatch(_UUID, name) and find_change(CACHE / name, key=name) is None:
        return CACHE / name
    key = f"--model {name}"
    with client_errors_as_user_errors(key):
        return _download(find_remote(name, key))


def find_remote(name: str, key: str) -> "client.Checkpoint":
    """Return the client's checkpoint of a reference; call in `client_errors_as_user_errors`.

    Errors name `key`, as the user wrote it.

    `trial:7` and `experiment:3` mean the best by the experiment's searcher metric (`trial:7:best`
    is the same), `trial:7:latest` the newest, `model:squad` the newest version in the registry,
    `model:squad:2` its second. Master and login are those of `det`: DET_MASTER, `det user login`.
    """
    from determined.experimental import client

    # A UUID is a checkpoint itself.
    reference = _match(name)
    if reference["uuid"]:
        return client.Determined().get_checkpoint(reference["uuid"])
    # model:NAME is the newest version in the registry, -1 for the client, unless one is named.
    if reference["model"]:
        model = client.Determined().get_model(reference["model"])
        version = model.get_version(int(reference["version"] or -1))
        if version is None or version.checkpoint is None:
            raise UserError("it has no version yet", key=key, cure="register one")
        return version.checkpoint
    # A trial or an experiment has many: the best, unless the newest is wanted.
    rank = reference["rank"] or ":best"
    if rank not in (":best", ":latest"):
        raise UserError(f"give {reference['kind']}:ID, :best or :latest after it", key=key)
    checkpoints = _list_finished(key, reference, newest_first=rank == ":latest")
    return checkpoints[0]


def _match(name: str) -> re.Match[str]:
    """Return the parts of a name that `is_reference` accepts."""
    reference = _REFERENCE.fullmatch(name)
    assert reference is not None, name
    return reference


def describe_reference(name: str, uuid: str) -> JsonObject:
    """Return checkpoint and version of the registry for a reference; {} for any other name.

    Args:
        uuid: the checkpoint that `fetch` found; of a model without a version, the newest one then.
    """
    if not is_reference(name) or Path(name).exists():
        return {}
    reference = _match(name)
    described: JsonObject = {"checkpoint": uuid}
    if reference["version"]:
        described["version"] = int(reference["version"])
    elif reference["model"]:
        from determined.experimental import client

        # The registry may have got a version since the download: look which one has the checkpoint.
        with contextlib.suppress(UserError), client_errors_as_user_errors(f"--model {name}"):
            for version in client.Determined().get_model(reference["model"]).list_versions():
                if version.checkpoint and version.checkpoint.uuid == uuid:
                    described["version"] = version.model_version
    return described


@contextlib.contextmanager
def client_errors_as_user_errors(key: str) -> Iterator[None]:
    """Convert errors of Determined's client and of the storage in the block.

    Args:
        key: what is wrong then: a flag, a reference.

    Raises:
        Unavailable: the master or the network does not answer.
        UserError: anything else fails.
    """
    from determined.common.api import errors

    def not_fetched(error: Exception) -> UserError:
        return UserError(f"not fetched: {first_line(error)}", key=key)

    # The client's errors have no class in common, and storages raise their own.
    with as_user_error(not_fetched):
        try:
            yield
        except errors.MasterNotFoundException as error:
            raise Unavailable(first_line(error), key=key, cure="set DET_MASTER") from None
        except errors.UnauthenticatedException:
            cure = "run `det user login`"
            raise UserError("not logged in to the master", key=key, cure=cure) from None
        except errors.NotFoundException:
            problem = "the master knows no such thing"
            raise UserError(problem, key=key, cure="give another") from None
        except OSError as error:  # the disk's and the network's
            problem = f"not fetched: {first_line(error)}"
            raise Unavailable(problem, key=key, cure="try again") from None


def _list_finished(
    key: str, reference: re.Match[str], newest_first: bool
) -> "list[client.Checkpoint]":
    """Return the finished checkpoints of a trial or an experiment; default: best first."""
    from determined.experimental import client

    master = client.Determined()
    get_owner = master.get_trial if reference["kind"] == "trial" else master.get_experiment
    owner = get_owner(int(reference["id"]))
    checkpoints = owner.list_checkpoints(
        sort_by=client.CheckpointSortBy.END_TIME, order_by=client.OrderBy.DESC
    )
    # A failed one is listed, too, and one that is being deleted.
    completed = client.CheckpointState.COMPLETED
    finished = [checkpoint for checkpoint in checkpoints if checkpoint.state is completed]
    if not finished:
        cure = "wait for one, or give a UUID"
        raise UserError("it has no finished checkpoint", key=key, cure=cure)
    return finished if newest_first else sorted(finished, key=_badness)


def _badness(checkpoint: "client.Checkpoint") -> float:
    """Return the searcher's metric after a checkpoint, negated if more is better; infinity if none.

    A 0.38.1 master sorts a trial's by the raw metric, the worst f1 and those not validated first.
    """
    training = _training(checkpoint)
    searcher = training.experiment_config.get("searcher") or {}
    value = _describe(training)["scores"].get(searcher.get("metric"))
    if not isinstance(value, (int, float)) or math.isnan(value):
        return math.inf
    return value if searcher.get("smaller_is_better", True) else -value


def _download(checkpoint: "client.Checkpoint") -> Path:
    if not re.fullmatch(_UUID, checkpoint.uuid):
        problem = f"{checkpoint.uuid!r} is no checkpoint's UUID"
        raise UserError(problem, key="the master", cure="give another")

    def build(folder: Path) -> None:
        log.info("fetching checkpoint %s", checkpoint.uuid)
        download_checkpoint(checkpoint, folder)
        # Checkpoints that answer questions have their scores with them; others get them.
        lacks_scores = find_kind(folder) in (LANGUAGE, ENCODER)
        if lacks_scores and checkpoint.training is not None:
            write_json(folder / EXPERIMENT, _describe(checkpoint.training))

    target = CACHE / checkpoint.uuid
    return cached_folder(target, checkpoint.uuid, build, what="the checkpoint")


def _training(checkpoint: "client.Checkpoint") -> Any:
    """Return what the master knows of a checkpoint that a trial wrote, of a private class."""
    assert checkpoint.training is not None, checkpoint.uuid
    return checkpoint.training


def _describe(training: Any) -> JsonObject:
    """Return `hyperparameters:` and `data:` of a checkpoint's trial, and its scores."""
    return {
        "hyperparameters": training.hparams,
        "data": masked(training.experiment_config.get("data") or {}),
        "scores": training.validation_metrics.get("avgMetrics") or {},
    }


def find_all_of_cluster(name: str) -> tuple[JsonObject, dict[int, ScoredCheckpoint]]:
    """Find the finished checkpoints of experiment:ID or trial:ID; returns as `find_all`.

    Raises:
        UserError: there is none, or several trials have some.
        Unavailable: the master or the network does not answer.
    """
    with client_errors_as_user_errors(name):
        checkpoints = _list_finished(name, _match(name), newest_first=True)
        trials = sorted({_training(checkpoint).trial_id for checkpoint in checkpoints})
        if len(trials) > 1:
            cure = f"give one, such as trial:{trials[0]}"
            raise UserError(f"{len(trials)} trials", key=name, cure=cure)

        # Settings by config key, as the manifest of a local checkpoint has them.
        newest = _describe(_training(checkpoints[0]))
        settings: JsonObject = {"trial": trials[0]}
        for section in ("hyperparameters", "data"):
            for key, value in newest[section].items():
                settings[f"{section}.{key}"] = value

        # Oldest first, so that of two after the same steps the newer one stays.
        by_step = {}
        for checkpoint in reversed(checkpoints):
            metadata = checkpoint.metadata or {}
            step = int(metadata["steps_completed"])
            by_step[step] = (checkpoint.uuid, _describe(_training(checkpoint))["scores"])
    return settings, by_step

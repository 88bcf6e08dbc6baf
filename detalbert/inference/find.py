"""Resolution of `--model`: a checkpoint, a run's best, an exported model, one of a cluster."""

import contextlib
import json
import logging
import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download

from detalbert import hub
from detalbert.atomic import alone, whole_folder, write_json
from detalbert.determined_internals import download_checkpoint
from detalbert.engine.ranking import best_first
from detalbert.errors import Unavailable, UserError, as_user_error, first_line
from detalbert.hub import STATE_DICT
from detalbert.integrity import SUMS, find_change, write_facts
from detalbert.redact import masked
from detalbert.settings.yaml_files import read_yaml
from detalbert.training.manifest import find_damage, find_fault, read_manifest
from detalbert.training.metrics_file import METRICS, read_metrics
from detalbert.training.model_kind import ENCODER, LANGUAGE, find_kind
from detalbert.training.table import TABLE
from detalbert.training.timeline import list_checkpoints
from detalbert.waiting import waiting

EXPERIMENT = "experiment.json"  # in a fetched one: what the master knows of its training
log = logging.getLogger(__name__)
CACHE = Path(".cache") / "checkpoints"
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_REFERENCE = re.compile(
    rf"(?P<uuid>{_UUID})|(?P<kind>trial|experiment):(?P<id>\d+)(?P<rank>.*)"
    r"|model:(?P<model>[^:/]+)(:(?P<version>\d+))?"
)
_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w.-]+(@[\w./-]+)?")
_PLACES = (
    "a checkpoint, a run's output directory, an exported folder, a hub name, a checkpoint's UUID, "
    "trial:ID, experiment:ID or model:NAME"
)


def is_reference(name: str) -> bool:
    """Return whether `name` is a UUID, {trial,experiment}:ID[:latest] or model:NAME[:VERSION]."""
    return _REFERENCE.fullmatch(name) is not None


def fetch(name: str) -> Path:
    """Return a cluster checkpoint's folder, downloaded once; raises as `find_remote`."""
    if re.fullmatch(_UUID, name) and _find_change(CACHE / name) is None:
        return CACHE / name
    with told(f"--model {name}"):
        return _download(find_remote(name))


def find_remote(name: str) -> Any:
    """Return the client's checkpoint of a reference; call within `told`.

    `trial:7` and `experiment:3` mean the best by the experiment's searcher metric (`trial:7:best`
    is the same), `trial:7:latest` the newest, `model:squad` the newest version in the registry,
    `model:squad:2` its second. Master and login are those of `det`: DET_MASTER, `det user login`.
    """
    from determined.experimental import client

    reference: Any = _REFERENCE.fullmatch(name)
    kind, rank = reference["kind"], reference["rank"] or ":best"
    if rank not in (":best", ":latest"):
        raise UserError(f"--model {name}: give {kind}:ID, :best or :latest after it")
    if reference["uuid"]:
        return client.Determined().get_checkpoint(reference["uuid"])
    if kind:
        return _list_finished(f"--model {name}", reference, rank == ":latest")[0]
    model = client.Determined().get_model(reference["model"])
    if (version := model.get_version(int(reference["version"] or -1))) is None:
        raise UserError(f"--model {name}: it has no version yet; register one")
    return version.checkpoint


def describe_reference(name: str, uuid: str) -> dict[str, Any]:
    """Return checkpoint and version of the registry for a reference; {} for any other name.

    Args:
        uuid: the checkpoint that `fetch` found; of a model without a version, the newest one then.
    """
    reference = _REFERENCE.fullmatch(name)
    if reference is None or Path(name).exists():
        return {}
    described: dict[str, Any] = {"checkpoint": uuid}
    if reference["version"]:
        described["version"] = int(reference["version"])
    elif reference["model"]:
        from determined.experimental import client

        with contextlib.suppress(UserError), told(f"--model {name}"):
            for version in client.Determined().get_model(reference["model"]).list_versions():
                if version.checkpoint and version.checkpoint.uuid == uuid:
                    described["version"] = version.model_version
    return described


@contextlib.contextmanager
def told(what: str) -> Iterator[None]:
    """Convert errors of client and storage in the block to one line about `what`. Unavailable if
    the master or the network does not answer, else UserError.
    """
    from determined.common.api import errors

    with as_user_error(lambda error: UserError(f"{what}: not fetched: {first_line(error)}")):
        try:
            yield
        except errors.MasterNotFoundException as error:
            raise Unavailable(f"{what}: {first_line(error)}; set DET_MASTER") from None
        except errors.UnauthenticatedException:
            raise UserError(f"{what}: the master wants a login; det user login") from None
        except errors.NotFoundException:
            raise UserError(f"{what}: the master knows no such thing; give another") from None
        except OSError as error:  # the disk's and the network's
            raise Unavailable(f"{what}: not fetched: {first_line(error)}; try again") from None


def _list_finished(name: str, reference: re.Match, newest_first: bool) -> list[Any]:
    """Return the finished checkpoints of a trial or an experiment; default: best first."""
    from determined.experimental import client

    owner = getattr(client.Determined(), f"get_{reference['kind']}")(int(reference["id"]))
    newest = client.CheckpointSortBy.END_TIME, client.OrderBy.DESC
    found = owner.list_checkpoints(*newest)
    finished = [each for each in found if each.state is client.CheckpointState.COMPLETED]
    if not finished:
        raise UserError(f"{name}: it has no finished checkpoint; wait for one, or give a UUID")
    return finished if newest_first else sorted(finished, key=_badness)


def _badness(checkpoint: Any) -> float:
    """Return the searcher's metric after a checkpoint, negated if more is better; infinity if none.

    A 0.38.1 master sorts a trial's by the raw metric, the worst f1 and those not validated first.
    """
    searcher = checkpoint.training.experiment_config.get("searcher") or {}
    value = _describe(checkpoint.training)["scores"].get(searcher.get("metric"))
    if not isinstance(value, (int, float)) or math.isnan(value):
        return math.inf
    return value if searcher.get("smaller_is_better", True) else -value


def _download(checkpoint: Any) -> Path:
    if not re.fullmatch(_UUID, checkpoint.uuid):
        raise UserError(f"the master: {checkpoint.uuid!r} is no checkpoint's UUID; give another")
    target = CACHE / checkpoint.uuid
    with alone(target):
        changed = _find_change(target)
        if changed is not None:
            if target.is_dir():
                said = "%s: %s is not as it was fetched; fetching it again"
                log.warning(said, target, changed)
            fetching = waiting(f"fetching checkpoint {checkpoint.uuid}")
            with fetching, whole_folder(target) as aside:
                download_checkpoint(checkpoint, aside)
                known = find_kind(aside) in (LANGUAGE, ENCODER)  # another has its scores with it
                if known and checkpoint.training is not None:
                    write_json(aside / EXPERIMENT, _describe(checkpoint.training))
                write_facts(aside / SUMS, {}, checkpoint.uuid)
    return target


def _find_change(fetched: Path) -> str | None:
    """Return what is missing or changed in a fetched checkpoint, named by its UUID; None if it is
    as it was fetched. Those of an older version have no sums.
    """
    if not fetched.is_dir():
        return fetched.name
    sums = fetched / SUMS
    return find_change(sums, key=fetched.name) if os.path.lexists(sums) else None


def _describe(training: Any) -> dict[str, Any]:
    """Return `hyperparameters:` and `data:` of a checkpoint's trial, and its scores."""
    return {
        "hyperparameters": training.hparams,
        "data": masked(training.experiment_config.get("data") or {}),
        "scores": training.validation_metrics.get("avgMetrics") or {},
    }


def read_json(path: Path) -> dict[str, Any]:
    """Return the mapping in a JSON file; {} if there is no file. Raises UserError, naming it, if it
    holds anything else.
    """
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read ({first_line(error)}); restore it") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected a mapping of keys; restore it")
    return content


def find(name: str) -> Path:
    """Return the folder of `name`: a checkpoint, a run's output directory (its best one), any
    model folder of transformers, a reference on a cluster (`find_remote`) or a model of the hub,
    downloaded once.
    """
    folder = Path(name)
    if not folder.exists() and is_reference(name):
        return fetch(name)
    if _HUB_NAME.fullmatch(name) and not Path(folder.parts[0]).exists():
        said = f"--model {name}: no such folder, and the hub does not give it"
        with hub.hub_errors(said, f"; give {_PLACES}"):
            return Path(hub.load_named(snapshot_download, name, allow_patterns=hub.MODEL_FILES))
    if not folder.is_dir():
        raise UserError(f"--model {name}: no such folder; give {_PLACES}")
    if any((folder / mark).is_file() for mark in (STATE_DICT, TABLE, "config.json")):
        return folder
    if (folder / "checkpoints").is_dir():
        return _best_of_run(folder)
    kinds = f"a checkpoint ({STATE_DICT} or {TABLE}) nor a run's output directory (checkpoints/)"
    raise UserError(f"--model {name}: neither {kinds} nor a model folder (config.json)")


def find_all(name: str) -> tuple[dict[str, Any], dict[int, tuple[str, dict[str, float]]]]:
    """Find the finished checkpoints of a run: of an output directory, experiment:ID or trial:ID.

    Returns the run's settings by config key; and by step a checkpoint's folder or UUID, with the
    scores of the validation after that step, {} without one. Raises UserError if there is no
    checkpoint, a damaged one, or several trials have some.
    """
    reference = _REFERENCE.fullmatch(name)
    if reference and reference["kind"] and not reference["rank"] and not Path(name).exists():
        with told(name):
            return _find_all_of_cluster(name, reference)
    found = list_checkpoints(Path(name) / "checkpoints")
    if not found:
        raise UserError(f"{name}: no checkpoint there; give an output directory or experiment:ID")
    for _, path in found:
        if fault := find_fault(path):
            raise UserError(f"{path}: damaged ({fault}); restore it or remove it")
    newest = read_manifest(found[-1][1])
    metrics = read_metrics(Path(name)) or {}
    last = metrics.get("last") or {}  # comes after the last checkpoint
    scores = {each.get("steps"): each for each in [*newest["validations"], last]}
    return newest["run"], {steps: (str(path), scores.get(steps, {})) for steps, path in found}


def _find_all_of_cluster(name: str, reference: re.Match) -> tuple[dict[str, Any], dict[int, Any]]:
    found = _list_finished(name, reference, newest_first=True)
    trials = sorted({each.training.trial_id for each in found})
    if len(trials) > 1:
        raise UserError(f"{name}: {len(trials)} trials; give one, such as trial:{trials[0]}")
    settings, newest = {"trial": trials[0]}, _describe(found[0].training)
    for section in ("hyperparameters", "data"):
        settings |= {f"{section}.{key}": value for key, value in newest[section].items()}
    return settings, {  # of two after the same steps, the newer one
        int(each.metadata["steps_completed"]): (each.uuid, _describe(each.training)["scores"])
        for each in reversed(found)
    }


def _best_of_run(folder: Path) -> Path:
    """Return the checkpoint of a run's best validation, or the best of those that are there."""
    checkpoints = dict(list_checkpoints(folder / "checkpoints"))
    names = ", ".join(path.name for path in checkpoints.values())
    others = f"; give one of {folder / 'checkpoints'}: {names or '(none yet)'}"
    metrics = read_metrics(folder)
    if metrics is None and (folder / METRICS).exists():
        raise UserError(f"{folder / METRICS}: cannot be read{others}")
    best = ((metrics or {}).get("best") or {}).get("steps")
    if best is None:
        raise UserError(f"--model {folder}: no validation yet, so no best{others}")
    if best in checkpoints:
        return checkpoints[best]
    saved = _best_saved(folder, checkpoints, (metrics or {}).get("last") or {})
    if saved is None:
        raise UserError(f"--model {folder}: its best, step {best}, is gone{others}")
    log.warning(
        "--model %s: its best validation, at step %s, has no checkpoint; using %s, the best saved",
        folder,
        best,
        saved.name,
    )
    return saved


def _best_saved(
    folder: Path, checkpoints: Mapping[int, Path], last: Mapping[str, Any]
) -> Path | None:
    """Return the checkpoint with the best validation of its own; None if there is none, or if the
    run's config does not say which is better. `last` is the run's last validation, which may come
    after the checkpoint of its step.
    """
    validations = []
    for step, path in checkpoints.items():
        if find_damage(path) is None:
            history = [*read_manifest(path)["validations"], last]
            validations += [each for each in history if each.get("steps") == step]
    try:
        best = best_first(validations, read_yaml(folder / "config.yaml")["searcher"])[:1]
    except (UserError, LookupError, TypeError):
        return None
    return checkpoints[int(best[0]["steps"])] if best else None

"""What `--model` names: a checkpoint, a run's best, an exported folder, or a cluster's checkpoint,
which is fetched once."""

import json
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from detalbert.errors import Unavailable, UserError
from detalbert.hub import STATE_DICT
from detalbert.training.checkpoints import list_checkpoints
from detalbert.training.folder import step_name

CACHE = Path(".cache") / "checkpoints"
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_REFERENCE = re.compile(rf"(?P<uuid>{_UUID})|(?P<kind>trial|experiment):(?P<id>\d+)(?P<which>.*)")


def is_reference(name: str) -> bool:
    """Whether `name` is of the form UUID, trial:ID[:latest] or experiment:ID[:latest]."""
    return _REFERENCE.fullmatch(name) is not None


def fetch(name: str, cache: Path = CACHE) -> Path:
    """The folder of a checkpoint, downloaded to `cache` unless it is there already.

    `trial:7` and `experiment:3` mean the best by the experiment's searcher metric (`trial:7:best`
    says so too), `trial:7:latest` the newest. Master and login are those of the `det` command:
    DET_MASTER, `det user login`.
    Raises UserError when there is none, Unavailable when the master does not answer.
    """
    found = _REFERENCE.fullmatch(name)
    which = found["which"] or ":best"
    if which not in (":best", ":latest"):
        raise UserError(f"--model {name}: give {found['kind']}:ID, :best or :latest after it")
    if found["uuid"] and (cache / found["uuid"]).is_dir():
        return cache / found["uuid"]
    from determined.common.api import errors
    from determined.experimental import client

    try:
        determined = client.Determined()
        if found["uuid"]:
            checkpoint = determined.get_checkpoint(found["uuid"])
        else:
            getter = getattr(determined, f"get_{found['kind']}")
            checkpoint = _choose(name, getter(int(found["id"])), which == ":latest")
        return _download(checkpoint, cache)
    except UserError:
        raise
    except errors.MasterNotFoundException as error:
        raise Unavailable(f"--model {name}: {_reason(error)}; set DET_MASTER") from None
    except errors.UnauthenticatedException:
        raise UserError(f"--model {name}: the master wants a login; det user login") from None
    except errors.NotFoundException:
        raise UserError(f"--model {name}: the master knows no such thing; give another") from None
    except OSError as error:  # the disk's and the network's
        raise Unavailable(f"--model {name}: not fetched: {_reason(error)}; try again") from None
    except Exception as error:  # whatever storage libraries and the client raise
        raise UserError(f"--model {name}: not fetched: {_reason(error)}") from None


def _choose(name: str, owner: Any, latest: bool) -> Any:
    from determined.experimental import client

    order = {}
    if latest:
        by_end = client.CheckpointSortBy.END_TIME
        order = {"sort_by": by_end, "order_by": client.OrderBy.DESC}
    for checkpoint in owner.list_checkpoints(**order):
        if checkpoint.state is client.CheckpointState.COMPLETED:
            return checkpoint
    raise UserError(f"--model {name}: it has no finished checkpoint; wait for one, or give a UUID")


def _download(checkpoint: Any, cache: Path) -> Path:
    target = cache / checkpoint.uuid
    if target.is_dir():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(dir=cache, prefix=f".{checkpoint.uuid}.fetching-"))
    try:
        checkpoint.download(str(aside / "checkpoint"))
        os.replace(aside / "checkpoint", target)
    except OSError:
        if not target.is_dir():  # another process was faster
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return target


def _reason(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def find(name: str) -> Path:
    """The folder that `name` means: a checkpoint or a library folder. Fetches what is remote."""
    folder = Path(name)
    if not folder.exists() and is_reference(name):
        return fetch(name)
    if not folder.is_dir():
        raise UserError(
            f"--model {name}: no such folder; give a checkpoint, a run's output directory, an "
            "exported folder, a checkpoint's UUID, trial:ID or experiment:ID"
        )
    if (folder / STATE_DICT).is_file() or (folder / "config.json").is_file():
        return folder
    if (folder / "checkpoints").is_dir():
        return _best_of_run(folder)
    raise UserError(
        f"--model {name}: neither a checkpoint ({STATE_DICT}) nor a run's output directory "
        "(checkpoints/) nor a model folder (config.json)"
    )


def _best_of_run(folder: Path) -> Path:
    there = [path.name for _, path in list_checkpoints(folder / "checkpoints")]
    if not there:
        raise UserError(f"--model {folder}: the run has no checkpoint yet; let it train on")
    others = f"give one of {folder / 'checkpoints'}: {', '.join(there)}"
    try:
        best = json.loads((folder / "metrics.json").read_text())["best"]["steps"]
    except FileNotFoundError:
        raise UserError(f"--model {folder}: no validation yet, so no best; {others}") from None
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{folder / 'metrics.json'}: cannot be read; {others}") from None
    if step_name(best) not in there:
        raise UserError(f"--model {folder}: its best, {step_name(best)}, is gone; {others}")
    return folder / "checkpoints" / step_name(best)

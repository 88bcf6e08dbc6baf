"""Files that a config names and a container will not have, because the upload lacks them.

A name such as `org/model` may be a folder here or a model of a hub: it counts as a folder if there
is one. Hubs and buckets are not asked, so a name that only looks like one of theirs passes.
"""

import glob
import os
import re
from collections.abc import Iterator
from pathlib import Path

from cluster.experiment import Experiment
from detalbert.addresses import ending_of, is_remote
from detalbert.errors import UserError
from detalbert.reading.records import READERS
from detalbert.squad.sources import OFFICIAL_SHA256
from workloads import DATA_KEYS

_SOURCES = (*DATA_KEYS, "validation", "validation_documents", "tokenizer")
_KEYS = ["hyperparameters.model", *[f"data.{key}" for key in _SOURCES]]
_FLAGS = re.compile(r"--(?:model|data)[ =]['\"]?([^\s'\"]+)")  # of predict.py


def not_uploaded(experiment: Experiment) -> Iterator[UserError]:
    """Yield a problem for each relative path of data, model or tokenizer that is neither uploaded
    nor below a bind mount.
    """
    folder = experiment.folder
    # A relative path of a mount is one in the working directory.
    mounted = tuple(str(row.get("container_path")) for row in experiment.rows("bind_mounts"))
    for key, address in _addresses(experiment):
        if not _is_path(address, folder) or address.removeprefix("./").startswith(mounted):
            continue
        files = glob.glob(os.path.join(folder, address))
        if not files:
            yield UserError(
                f"{address}: no such file in {folder}",
                key=key,
                cure="add it, or name an address (s3://...)",
            )
        elif all(_is_left_out(Path(file), folder) for file in files):
            yield UserError(
                f"{address} is not uploaded: .detignore leaves it out",
                key=key,
                cure="move it, to questions/ for example",
            )


def _addresses(experiment: Experiment) -> Iterator[tuple[str, str]]:
    """Yield the keys that may name a file or a folder, with their values."""
    if experiment.predicts:
        for address in _FLAGS.findall(experiment.command):
            yield "entrypoint", address
    if not experiment.trains:
        return
    for key in _KEYS:
        # One source, or a list; one of a mixture is a mapping with its weight.
        sources = experiment.at(key)
        for source in sources if isinstance(sources, list) else [sources]:
            address = source.get("source") if isinstance(source, dict) else source
            if isinstance(address, str) and address:
                yield key, address


def _is_path(address: str, folder: Path) -> bool:
    """Return whether an address is a path below the folder, and no name of a hub's."""
    if address in OFFICIAL_SHA256 or is_remote(address) or address.startswith("/"):
        return False
    return (
        address.startswith(".")
        or address.endswith("/")
        or ending_of(address) in READERS
        or os.path.exists(folder / address)
    )


def _is_left_out(path: Path, folder: Path) -> bool:
    """Return whether .detignore leaves out a path, or a folder that it is in."""
    from determined.common import detignore  # takes a second

    is_ignored = detignore.make_shutil_ignore(folder)
    path = Path(os.path.relpath(path, folder))
    parts = [path, *path.parents][:-1]
    return any(is_ignored(str(folder / part.parent), [part.name]) for part in parts)

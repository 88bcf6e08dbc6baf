"""The upload of `det experiment create`: its files, and whether what the config names is in it.

A name such as `org/model` may be a folder here or a model of a hub. It counts as a folder if there
is one; what no hub has, such as `./model` or `a/b/c`, always does.
"""

import contextlib
import io
import posixpath
import re
from collections.abc import Collection, Iterator
from pathlib import Path, PurePath
from typing import Any

from determined.common import constants, context

from cluster.configs.expconf import entrypoint_words, runs
from detalbert.reading.forms import ENDINGS, PACKED
from detalbert.reading.storage import is_remote
from detalbert.settings.rules import WORKDIR
from detalbert.settings.schema import Finding, at, mappings
from detalbert.squad.sources import OFFICIAL_SHA256
from workloads import DATA_KEYS

CONTEXT_LIMIT = constants.MAX_CONTEXT_SIZE  # 95 MiB
_SOURCES = [f"data.{key}" for key in [*DATA_KEYS, "validation_documents"]]
_FOLDERS = ("hyperparameters.model", "data.tokenizer")
_FLAGS = re.compile(r"--(?:model|data)[ =]['\"]?([^\s'\"]+)")  # of predict.py


def read_upload(folder: Path) -> tuple[set[str], Finding | None]:
    """Return the names of the files that are sent, relative to the folder; with a finding if they
    are larger than a master takes.
    """
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # it prints its progress
            files = context.read_v1_context(folder, limit=CONTEXT_LIMIT)
    except ValueError as error:
        return set(), Finding("context", " ".join(str(error).split()))
    return {PurePath(file.path).as_posix() for file in files}, None


def check_data(config: dict[str, Any], names: set[str], folder: Path) -> Iterator[Finding]:
    """Yield a finding for each relative path of data, model or tokenizer that a container will not
    have: it is neither sent nor below a bind mount.
    """
    for key in _SOURCES:
        value = at(config, key)
        for source in value if isinstance(value, list) else [value]:
            address = source.get("source") if isinstance(source, dict) else source
            yield from _check_address(key, address, config, names, folder)
    for key in _FOLDERS:
        yield from _check_address(key, at(config, key), config, names, folder)
    if runs(config, "predict.py"):
        for address in _FLAGS.findall(" ".join(entrypoint_words(config))):
            yield from _check_address("entrypoint", address, config, names, folder)


def _check_address(
    key: str, address: Any, config: dict[str, Any], names: set[str], folder: Path
) -> Iterator[Finding]:
    if not isinstance(address, str) or not _is_relative(address, folder, key in _FOLDERS):
        return
    path = posixpath.normpath(posixpath.join(WORKDIR, address))
    for mount in mappings(config.get("bind_mounts")):
        target = posixpath.join(WORKDIR, str(mount.get("container_path")))
        if f"{path}/".startswith(f"{posixpath.normpath(target)}/"):
            return
    if not _is_sent(address, names):
        yield Finding(key, _describe_missing(address, folder))


def _describe_missing(address: str, folder: Path) -> str:
    if (folder / address).exists():
        beside = f"questions/{PurePath(address).name}"
        problem = f"{address} is not uploaded: .detignore leaves it out"
        return f"{problem}; move it, to {beside} for example"
    return f"{address}: no such file in {folder}; add it, or name an address (s3://...)"


def _is_relative(address: str, folder: Path, of_model: bool) -> bool:
    """Return whether an address is a path below the folder, and no name of a hub's."""
    if address in OFFICIAL_SHA256 or is_remote(address) or posixpath.isabs(address):
        return False
    if (folder / address).exists() or address.startswith(".") or address.endswith("/"):
        return True
    if of_model:
        return address.partition("@")[0].count("/") > 1  # org/name@refs/pr/1 is a hub's
    return PurePath(address).suffix.lower() in (*ENDINGS, *PACKED)


def _is_sent(address: str, names: Collection[str]) -> bool:
    """Return whether a file, a folder or a pattern has files that are sent."""
    name = PurePath(address).as_posix()
    if name in names:
        return True
    return any(sent.startswith(f"{name}/") or PurePath(sent).match(name) for sent in names)

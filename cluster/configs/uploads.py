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

from cluster.configs.expconf import entrypoint_words, is_ours, runs
from cluster.configs.schema import Config, Findings
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


def check_data(config: Config, names: set[str], folder: Path) -> Findings:
    """Yield a finding for each relative path of data, model or tokenizer that a container will not
    have: it is neither sent nor below a bind mount.
    """
    mounts = mappings(config.get("bind_mounts"))
    targets = [_in_container(mount.get("container_path")) for mount in mounts]
    for key, address in _addresses(config):
        if not _is_relative(address, folder, of_model=key in _FOLDERS):
            continue
        if _is_sent(address, names):
            continue
        if _in_container(address).startswith(tuple(targets)):
            continue
        problem = f"{address}: no such file in {folder}; add it, or name an address (s3://...)"
        if (folder / address).exists():
            problem = (
                f"{address} is not uploaded: .detignore leaves it out; "
                f"move it, to questions/{PurePath(address).name} for example"
            )
        yield Finding(key, problem)


def _addresses(config: Config) -> Iterator[tuple[str, str]]:
    """Yield the keys that may name a file or a folder, with their values, "" for none."""
    if runs(config, "predict.py"):
        text = " ".join(entrypoint_words(config))
        for address in _FLAGS.findall(text):
            yield "entrypoint", address
    if not is_ours(config):
        return
    for key in _SOURCES:
        sources = at(config, key)
        if not isinstance(sources, list):
            sources = [sources]
        for source in sources:
            if isinstance(source, dict):
                source = source.get("source")
            yield key, str(source or "")
    for key in _FOLDERS:
        yield key, str(at(config, key) or "")


def _in_container(path: Any) -> str:
    return posixpath.normpath(posixpath.join(WORKDIR, str(path))) + "/"


def _is_relative(address: str, folder: Path, of_model: bool) -> bool:
    """Return whether an address is a path below the folder, and no name of a hub's."""
    if address in ("", *OFFICIAL_SHA256) or is_remote(address) or address.startswith("/"):
        return False
    if address.startswith(".") or address.endswith("/"):
        return True
    if (folder / address).exists():
        return True
    if of_model:
        return address.partition("@")[0].count("/") > 1  # org/name@refs/pr/1 is a hub's
    return PurePath(address).suffix.lower() in (*ENDINGS, *PACKED)


def _is_sent(address: str, names: Collection[str]) -> bool:
    """Return whether a file, a folder or a pattern has files that are sent."""
    name = PurePath(address).as_posix()
    for sent in names:
        if sent == name or sent.startswith(f"{name}/") or PurePath(sent).match(name):
            return True
    return False

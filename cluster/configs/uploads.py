"""The upload of `det experiment create`: its files, and whether what the config names is in it.

A name such as `org/model` may be a folder here or a model of a hub. It counts as a folder if there
is one; what no hub has, such as `./model` or `a/b/c`, always does. Hubs and buckets are not asked:
a name that only looks like one of theirs passes.
"""

import contextlib
import io
import posixpath
import re
from collections.abc import Collection, Iterator
from pathlib import Path, PurePath

from determined.common import constants, context

from cluster.configs.expconf import entrypoint_words, is_ours, runs
from cluster.configs.rules import WORKDIR
from cluster.configs.schema import Findings
from cluster.configs.values import Finding, at, mappings
from detalbert.records import READERS, UNPACK, is_remote
from detalbert.settings.values import Config
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
        reason = " ".join(str(error).split())
        return set(), Finding(key="context", problem=reason)
    names = {PurePath(file.path).as_posix() for file in files}
    return names, None


def check_data(config: Config, names: set[str], folder: Path) -> Findings:
    """Yield a finding for each relative path of data, model or tokenizer that a container will not
    have: it is neither sent nor below a bind mount.
    """
    # A bind mount brings files of the machine: what is below one needs no upload.
    mounts = mappings(config.get("bind_mounts"))
    targets = [_in_container(mount.get("container_path")) for mount in mounts]
    for key, address in _addresses(config):
        if not _is_relative(address, folder, of_model=key in _FOLDERS):
            continue
        if _is_sent(address, names):
            continue
        if _in_container(address).startswith(tuple(targets)):
            continue
        # A file that is here and not sent is kept back by .detignore.
        if (folder / address).exists():
            yield Finding(
                key,
                problem=f"{address} is not uploaded: .detignore leaves it out",
                cure=f"move it, to questions/{PurePath(address).name} for example",
            )
        else:
            yield Finding(
                key,
                problem=f"{address}: no such file in {folder}",
                cure="add it, or name an address (s3://...)",
            )


def _addresses(config: Config) -> Iterator[tuple[str, str]]:
    """Yield the keys that may name a file or a folder, with their values, "" for none."""
    if runs(config, "predict.py"):
        text = " ".join(entrypoint_words(config))
        for address in _FLAGS.findall(text):
            yield "entrypoint", address
    if not is_ours(config):
        return
    for key in _SOURCES:
        # One source, or a list; one of a mixture is a mapping with its weight.
        sources = at(config, key)
        if not isinstance(sources, list):
            sources = [sources]
        for source in sources:
            address = source.get("source") if isinstance(source, dict) else source
            yield key, str(address or "")
    for key in _FOLDERS:
        yield key, str(at(config, key) or "")


def _in_container(path: object) -> str:
    """Return the absolute path in a container of one relative to its working directory."""
    # With a slash at its end, so that a mount at /data does not seem to hold /database.
    absolute = posixpath.join(WORKDIR, str(path))
    return f"{posixpath.normpath(absolute)}/"


def _is_relative(address: str, folder: Path, of_model: bool) -> bool:
    """Return whether an address is a path below the folder, and no name of a hub's."""
    if address in ("", *OFFICIAL_SHA256) or is_remote(address) or address.startswith("/"):
        return False
    if address.startswith(".") or address.endswith("/"):
        return True
    if (folder / address).exists():
        return True
    if of_model:
        name, _, _ = address.partition("@")  # org/name@refs/pr/1 is a hub's
        return name.count("/") > 1
    return PurePath(address).suffix.lower() in (*READERS, *UNPACK)


def _is_sent(address: str, names: Collection[str]) -> bool:
    """Return whether a file, a folder or a pattern has files that are sent."""
    wanted = PurePath(address).as_posix()
    for name in names:
        if name == wanted or name.startswith(f"{wanted}/") or PurePath(name).match(wanted):
            return True
    return False

"""The upload of `det experiment create`: its files, and whether the config's data is in it."""

import contextlib
import io
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any

from determined.common import constants, context

from detalbert.hub import looks_like_path
from detalbert.reading.forms import ENDINGS, PACKED
from detalbert.reading.storage import is_remote
from detalbert.settings.schema import Finding
from detalbert.squad.sources import OFFICIAL_SHA256

CONTEXT_LIMIT = constants.MAX_CONTEXT_SIZE  # 95 MiB
_KEYS = ("train", "validation", "text", "documents", "validation_documents", "shards")


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


def check_data(config: Mapping[str, Any], names: set[str], folder: Path) -> Iterator[Finding]:
    """Yield a finding for each relative path in `data:` that a container will not have."""
    data = config.get("data")
    if not isinstance(data, dict):
        return
    for key in _KEYS:
        for source in _sources(data.get(key)):
            if not _is_sent(source, names):
                yield Finding(f"data.{key}", _describe_missing(source, folder))


def _describe_missing(source: str, folder: Path) -> str:
    if (folder / source).exists():
        beside = f"questions/{PurePath(source).name}"
        problem = f"{source} is not uploaded: .detignore leaves it out"
        return f"{problem}; move it, to {beside} for example"
    return f"{source}: no such file in {folder}; add it, or name an address (s3://...)"


def _sources(value: Any) -> Iterator[str]:
    """Yield the relative paths of a key's value: a text, a mapping with `source`, or a list."""
    sources = value if isinstance(value, list) else [value]
    for source in sources:
        address = source.get("source") if isinstance(source, dict) else source
        if not isinstance(address, str) or address in OFFICIAL_SHA256:
            continue
        if _is_relative(address):
            yield address


def _is_relative(address: str) -> bool:
    """Return whether an address is a path below the folder; a folder's name may be a hub's."""
    is_path = looks_like_path(address, (*ENDINGS, *PACKED)) or address.endswith("/")
    return is_path and not is_remote(address) and not PurePath(address).is_absolute()


def _is_sent(source: str, names: set[str]) -> bool:
    """Return whether a file, a folder or a pattern has files that are sent."""
    name = PurePath(source).as_posix()
    if name in names:
        return True
    return any(sent.startswith(f"{name}/") or PurePath(sent).match(name) for sent in names)

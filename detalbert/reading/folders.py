"""The files of an address that are data; what editors, archives and systems leave there is not.

A named file is taken as it is. In a folder a file counts by its ending; one without an ending
counts if it begins as rows do, such as wikiextractor's AA/wiki_00. Of a hub data set's folder the
files of one split count.
"""

import logging
import os
import re
from pathlib import PurePath

from detalbert.errors import UserError
from detalbert.reading.forms import ENDINGS, PACKED, ending_of, recognise
from detalbert.reading.snapshot import CARD, DESCRIPTIONS, has_splits, is_snapshot, split_names
from detalbert.reading.storage import File, list_files, prefix_of, read_all
from detalbert.settings.forms import TEXT

_PATTERN = re.compile(r"[^/]*[*?\[].*")
# Beside the data: locks of Excel; in folders of Dask, Spark and Delta; results that `datasets`
# keeps in a saved one.
_OTHERS = re.compile(
    r"__MACOSX|~\$.*|_metadata|_common_metadata|_delta_log|cache-[0-9a-f]{16}.*\.arrow"
)
log = logging.getLogger(__name__)


def find_files(address: str, key: str, split: str = "train") -> list[File]:
    """Return the files of data at an address, by name; a warning counts those that are passed over.

    Args:
        address: a file, a folder or a pattern, here or remote.
        key: the config key that names it, for messages.
        split: "train" or "validation", of a hub data set's folder.

    Raises:
        UserError: there is none.
        Unavailable: a server fails.
    """
    files = list_files(address, key)
    if len(files) == 1 and files[0].address == prefix_of(address):
        return files  # it names a file

    # Name the files relative to the folder, or to what stands before the pattern.
    folder = _PATTERN.sub("", address)
    root = prefix_of(folder)
    by_name = {}
    for file in files:
        name = file.address.removeprefix(root).lstrip("/")
        by_name[name] = file

    # A pattern says what is meant; in a folder, each file's ending or first bytes do.
    visible = {name: file for name, file in by_name.items() if not _is_hidden(name)}
    is_pattern = folder != address
    if is_pattern:
        with_ending = [name for name in visible if _has_data_ending(name)]
        chosen = with_ending or list(visible)
    else:
        chosen = _choose(visible, split=split, folder=address)
    of_other_splits = sorted(filter(_has_data_ending, visible.keys() - DESCRIPTIONS))
    if not chosen and of_other_splits:
        raise UserError(
            f"no file for {split} below {address} ({', '.join(of_other_splits):.100})",
            key=key,
            cure=f"name its file, such as {address.rstrip('/')}/{of_other_splits[0]}",
        )
    if not chosen:
        endings = ", ".join(ENDINGS)
        packed = ", ".join(PACKED)
        raise UserError(
            f"no file of data below {address} ({endings}, also with {packed})",
            key=key,
            cure=f"give another, or name its files: {address.rstrip('/')}/*",
        )
    others = sorted(by_name.keys() - chosen)
    warn_of_files(f"{key}: %s files are passed over: %s", others)
    return [by_name[name] for name in sorted(chosen)]


def _is_hidden(name: str) -> bool:
    """Return whether a file, or a folder that it is in, is no data by its name."""
    parts = PurePath(name).parts
    return any(part.startswith(".") or _OTHERS.fullmatch(part) for part in parts)


def _has_data_ending(name: str) -> bool:
    return ending_of(name) in ENDINGS


def _choose(files: dict[str, File], split: str, folder: str) -> list[str]:
    """Return the names of a folder's files that are data."""
    card = ""
    if CARD in files:
        card = read_all(files[CARD].address).decode(errors="replace")
    in_snapshot = is_snapshot(files, card=card)

    # Dataset.save_to_disk leaves a state.json beside its Arrow files.
    paths = [PurePath(name) for name in files]
    saved = {path.parent for path in paths if path.name == "state.json"}

    chosen = []
    for name, file in files.items():
        path = PurePath(name)
        if path.parent in saved:
            is_data = ending_of(name) == ".arrow"
        elif in_snapshot and path.name in DESCRIPTIONS:
            is_data = False
        elif ending_of(name):
            is_data = _has_data_ending(name)
        else:
            is_data = _begins_as_rows(file)
        if is_data:
            chosen.append(name)

    if in_snapshot or has_splits(chosen):
        return split_names(chosen, split=split, card=card, where=folder)
    return chosen


def _begins_as_rows(file: File) -> bool:
    """Return whether a file without an ending is a table of rows by its first bytes."""
    try:
        return file.size > 0 and recognise(file).form != TEXT
    except UserError:
        return False


def warn_of_files(message: str, names: list[str]) -> None:
    """Log a message with the number of some files and the names of the first, unless there are
    none; once for all ranks.
    """
    is_first_rank = os.environ.get("RANK", "0") == "0"
    if not names or not is_first_rank:
        return
    listed = ", ".join(names[:3])
    if len(names) > 3:
        listed += f" and {len(names) - 3:,} more"
    log.warning(message, f"{len(names):,}", listed)

"""The files of an address that are data; what editors, archives and systems leave there is not.

A named file is taken as it is. In a folder a file counts by its ending; one without an ending
counts if it begins as rows do, such as wikiextractor's AA/wiki_00. Files about the data, such as a
README, are none of it, nor is a list or a note among files of rows. Of a hub data set's folder the
files of one split count.
"""

import logging
import os
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path, PurePath

from detalbert.errors import UserError
from detalbert.reading.forms import ENDINGS, PACKED, ending_of, recognise
from detalbert.reading.snapshot import CARD, DESCRIPTIONS, has_splits, is_snapshot, split_names
from detalbert.reading.storage import BROKEN_LINK, File, list_files, prefix_of, read_all
from detalbert.settings.forms import TEXT

_PATTERN = re.compile(r"[^/]*[*?\[].*")
# Names of files and folders that are no data, wherever they are.
_HIDDEN = re.compile(
    r"""\..*
    | _[^=]*  # Hadoop, Spark and Delta write such names; a=b is a partition
    | .*\.metadata\.json  # of Iceberg
    | cache-[0-9a-f]{16}.*\.arrow  # results that `datasets` keeps in a saved folder
    | ~\$.* | .*~  # of Excel, and of editors
    | \$RECYCLE\.BIN | System\ Volume\ Information | desktop\.ini | Thumbs\.db
    | lost\+found | @eaDir | \#recycle
    """,
    flags=re.VERBOSE | re.IGNORECASE,
)
# Names of texts about the data beside them.
_ABOUT = re.compile(
    r"""readme([._-].*)?
    | licen[sc]es?([._-]\D.*)?
    | (copying|notice|citation|changelog|contributing|authors|vocab|merges)(\.\w+)?
    | (\w+[._-])?(check_?sums?|(md5|sha\d+)(sums?)?)(\.\w+)?
    """,
    flags=re.VERBOSE | re.IGNORECASE,
)
log = logging.getLogger(__name__)


def find_files(address: str, key: str, split: str = "train") -> list[File]:
    """Return the files of data at an address, by name; a warning counts those that are passed over.

    Args:
        address: a file, a folder or a pattern, here or remote.
        key: the config key that names it, for messages.
        split: "train" or "validation", of a hub data set's folder.

    Raises:
        UserError: there is none, or one is a link to nothing.
        Unavailable: a server fails.
    """
    files = list_files(address, key)
    if len(files) == 1 and files[0].address == prefix_of(address):
        return files  # it names a file

    # Name the files relative to the folder, or to what stands before the pattern.
    folder = address if Path(address).exists() else _PATTERN.sub("", address)
    root = prefix_of(folder)
    by_name = {}
    for file in files:
        name = file.address.removeprefix(root).lstrip("/")
        by_name[name] = file

    # A pattern says what is meant; in a folder, each file's ending or first bytes do.
    pattern = address[len(folder) :]
    if not pattern:
        _check_cache(by_name, folder)
    names_hidden = pattern.startswith((".", "_"))
    visible = {name: by_name[name] for name in by_name if names_hidden or not _is_hidden(name)}
    candidates = [name for name in visible if not _is_about(name)]
    if pattern:
        with_ending = [name for name in candidates if _has_data_ending(name)]
        chosen = _without_notes(with_ending) or candidates
    else:
        chosen = _choose(visible, candidates, split=split, folder=address)
    if not chosen:
        raise _no_data(address, key=key, split=split, others=candidates)
    _check_links(by_name[name] for name in chosen)
    others = sorted(by_name.keys() - chosen)
    warn_of_files(f"{key}: %s files are passed over: %s", others)
    texts = _texts_beside_rows(sorted(chosen))
    warn_of_files(f"{key}: %s files of plain text are read beside files of rows: %s", texts)
    return [by_name[name] for name in sorted(chosen)]


def _check_cache(names: Iterable[str], folder: str) -> None:
    """Raise UserError for a folder in which the hub's library keeps its downloads: each file is
    there once as a blob, and once more in each snapshot.
    """
    places = [PurePath(name).parts for name in names]
    snapshots = [parts[1] for parts in places if parts[0] == "snapshots" and len(parts) > 2]
    if snapshots and any(parts[0] == "blobs" for parts in places):
        snapshot = f"{folder.rstrip('/')}/snapshots/{snapshots[0]}"
        raise UserError(
            "downloads of the hub, each file twice", key=folder, cure=f"name {snapshot}"
        )


def _no_data(address: str, key: str, split: str, others: list[str]) -> UserError:
    """Return the error for an address of whose files, if there are any, none is chosen."""
    folder = address.rstrip("/")
    of_other_splits = sorted(filter(_has_data_ending, others))
    if of_other_splits:
        return UserError(
            f"no file for {split} below {address} ({', '.join(of_other_splits):.100})",
            key=key,
            cure=f"name its file, such as {folder}/{of_other_splits[0]}",
        )
    endings = ", ".join(ENDINGS)
    packed = ", ".join(PACKED)
    pattern = address if _PATTERN.search(address) else f"{folder}/*"
    names = f"its files: {pattern}" if others else "a file of it"
    return UserError(
        f"no file of data below {address} ({endings}, also with {packed})",
        key=key,
        cure=f"give another, or name {names}",
    )


def _check_links(files: Iterable[File]) -> None:
    """Raise UserError if a file is a link to nothing."""
    for file in files:
        if file.stamp == BROKEN_LINK:
            raise UserError(BROKEN_LINK, key=file.address, cure="correct or delete it")


def _is_hidden(name: str) -> bool:
    """Return whether a file, or a folder that it is in, is no data by its name."""
    return any(map(_HIDDEN.fullmatch, PurePath(name).parts))


def _is_about(name: str) -> bool:
    """Return whether a file is a text about the data beside it, or metadata."""
    base = PurePath(name).name
    may_be_text = ENDINGS.get(ending_of(name), TEXT) == TEXT
    is_text_about = may_be_text and _ABOUT.fullmatch(base) is not None
    return is_text_about or base in DESCRIPTIONS


def _has_data_ending(name: str) -> bool:
    return ending_of(name) in ENDINGS


def _choose(files: dict[str, File], candidates: list[str], split: str, folder: str) -> list[str]:
    """Return the names of a folder's files that are data.

    Args:
        files: those that are not hidden, by name.
        candidates: the names of those that are not about others.
        split: as for `find_files`.
        folder: for messages.
    """
    card = ""
    if CARD in files:
        card = read_all(files[CARD].address).decode(errors="replace")
    in_snapshot = is_snapshot(files, card=card)

    chosen = []
    for name in candidates:
        is_data = _has_data_ending(name) if ending_of(name) else _begins_as_rows(files[name])
        if is_data:
            chosen.append(name)

    # A note beside the files of splits has no split in its name.
    rows = _without_notes(chosen)
    for names in (chosen, rows):
        if in_snapshot or has_splits(names):
            return split_names(names, split=split, card=card, where=folder)
    return rows


def _without_notes(names: list[str]) -> list[str]:
    """Return the names of some files without texts that are among more files of rows in a folder:
    lists of addresses, notes. The price is that a corpus of both may need two sources.
    """
    counts = _count_forms(names)
    others = []
    for name in names:
        folder = PurePath(name).parent
        if not _is_text(name) or counts[folder, True] >= counts[folder, False]:
            others.append(name)
    return others


def _texts_beside_rows(names: list[str]) -> list[str]:
    counts = _count_forms(names)
    return [name for name in names if _is_text(name) and counts[PurePath(name).parent, False]]


def _count_forms(names: list[str]) -> Counter[tuple[PurePath, bool]]:
    """Return how many files are in each folder, those of plain text (True) and those of rows."""
    return Counter((PurePath(name).parent, _is_text(name)) for name in names)


def _is_text(name: str) -> bool:
    return ENDINGS.get(ending_of(name)) == TEXT


def _begins_as_rows(file: File) -> bool:
    """Return whether a file without an ending is a table of rows by its first bytes, or may be, as
    a link to nothing.
    """
    if file.stamp == BROKEN_LINK:
        return True
    try:
        return file.size > 0 and recognise(file).form != TEXT
    except UserError:
        return False


def repeated_files(files: Iterable[File]) -> list[str]:
    """Return the addresses of files that seem to hold what one before them does, with its address:
    the content is equal by its stamp, or a name differs in the ending of a compression only.
    """
    firsts: dict[object, str] = {}
    repeated = []
    for file in files:
        if not file.size:
            continue
        path = PurePath(file.address)
        unpacked = path.with_suffix("") if path.suffix.lower() in PACKED else path
        for mark in (unpacked, (file.size, file.stamp)):
            if mark in firsts:
                repeated.append(f"{file.address} (as {firsts[mark]})")
                break
            firsts[mark] = file.address
    return repeated


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

"""Files and folders that are whole or not there, and folders that are built once, under a lock.

What is written has a name with a mark until it is on the disk, and is renamed then: a kill or a
power cut at any moment leaves the old or the new, never half. A process holds a lock (flock) on
what it is writing, so that the next one knows the leftovers of a killed one, and removes them.
Nothing else is taken for a leftover.

What was traded: a write waits for the disk, a folder is on it twice while the new one replaces the
old, and where a file system has no locks, leftovers stay.
"""

import contextlib
import fcntl
import glob
import hashlib
import json
import logging
import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import filelock

from detalbert.errors import UserError, first_line
from detalbert.sums import checksum, find_change, write_sums

CACHE_CURE = "free space, or set data.cache_dir"
# Seconds without a lock before a line says so.
PATIENCE = 10.0
log = logging.getLogger(__name__)
_MARK = ".detalbert-tmp-"
OWN = ".written.json"  # sums of the files that `write_own` wrote in its folder
# What this process is writing.
_temporaries: set[Path] = set()


@contextlib.contextmanager
def whole_file(path: Path, binary: bool = False) -> Iterator[Any]:
    """Yield an open file (UTF-8 text unless `binary`) that is renamed to `path` on success. If the
    block raises, `path` is unchanged. Raises OSError if writing fails.
    """
    with _temporary(path) as temporary:
        with temporary.open("wb") if binary else temporary.open("w", encoding="utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        # Other users may read it, whatever this user's mask is.
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)


def write_own(folder: Path, texts: Mapping[str, str]) -> None:
    """Write files of `folder` by name, whole, and note them as ours. An error while they are
    written changes none. Raises OSError if writing fails.
    """
    own = _own_sums(folder)
    with contextlib.ExitStack() as stack:
        files = []
        for name, text in texts.items():
            file = stack.enter_context(whole_file(folder / name))
            file.write(text)
            files.append(file)

            # A kill leaves the old content or the new: both are ours.
            sums = {hashlib.sha256(text.encode()).hexdigest()}
            if (folder / name).exists():
                sums.add(checksum(folder / name))
            own[name] = sorted(sums)
        # What does not fit on the disk fails here, before the first is renamed.
        for file in files:
            file.flush()
            os.fsync(file.fileno())
        write_json(folder / OWN, own)


def check_own(folder: Path, names: Iterable[str], cure: str) -> None:
    """Raise UserError for the first of these files of `folder` that `write_own` did not write."""
    own = _own_sums(folder)
    for path in (folder / name for name in names):
        if os.path.lexists(path) and not (path.is_file() and checksum(path) in own[path.name]):
            problem = "it would be replaced, and this command did not write it as it is"
            raise UserError(problem, key=str(path), cure=cure)


def _own_sums(folder: Path) -> dict[str, list[str]]:
    """Return the SHA-256 sums that each of our files in `folder` may have, by its name."""
    own: dict[str, list[str]] = defaultdict(list)
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
        for name, sums in json.loads((folder / OWN).read_text()).items():
            own[name] = list(sums)
    return own


@contextlib.contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary folder, renamed to `target` on success; an older `target` is then removed.
    If the block raises, `target` is unchanged. Raises OSError if writing fails.
    """
    with _temporary(target, folder=True) as temporary:
        yield temporary

        # Content first, then the names: after a power cut no file of the folder is empty.
        for path in [*temporary.rglob("*"), temporary]:
            _flush(path)
        os.chmod(temporary, 0o755)
        old = _set_aside(target)  # a folder that is not empty cannot be replaced in one step
        os.replace(temporary, target)
        _flush(target.parent)
        _remove(old)


def remove_folder(path: Path) -> None:
    """Remove a folder, if that is possible. After a kill no part of it is left under its name."""
    _remove(_set_aside(path))


def write_json(path: Path, value: object) -> None:
    """Write `value` as JSON to `path` atomically. Raises OSError if writing fails."""
    with whole_file(path) as file:
        json.dump(value, file, indent=1, ensure_ascii=False)


@contextlib.contextmanager
def writing(path: Path | str, cure: str = CACHE_CURE, what: str = "there") -> Iterator[None]:
    """Convert an OSError in the block to a UserError: `PATH: cannot write WHAT (REASON); CURE`.
    Errors of a network, which are OSErrors too, stay.
    """
    try:
        yield
    except (ConnectionError, TimeoutError):
        raise
    except OSError as error:
        problem = f"cannot write {what} ({first_line(error)})"
        raise UserError(problem, key=str(path), cure=cure) from None


@contextlib.contextmanager
def _temporary(target: Path, folder: bool = False) -> Iterator[Path]:
    """Yield a new file or folder beside `target`, which nobody takes for a leftover.

    Raises OSError if `target` is a device, a pipe, or a folder in place of a file or the reverse.
    """
    can_replace = target.is_dir() if folder else target.is_file()
    if target.exists() and not can_replace:
        raise FileExistsError(f"it is there and is not a {'folder' if folder else 'regular file'}")
    sweep(target.parent, target=target.name)
    path = _new_name(target)
    _temporaries.add(path)
    try:
        if folder:
            path.mkdir()
        else:
            path.touch()
        with _opened(path) as handle:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(handle, fcntl.LOCK_SH)
            yield path
    finally:
        _remove(path)  # unless it has its own name by now
        _temporaries.discard(path)


def remove_temporaries() -> None:
    """Remove the temporary files of this process, which is about to exit."""
    for path in list(_temporaries):
        _remove(path)


def sweep(folder: Path, target: str | None = None) -> None:
    """Remove what killed processes were writing in `folder`, or removing.

    Args:
        folder: existing or not; what is below its folders stays.
        target: the name that it was to get; default: any.
    """
    name = "*" if target is None else glob.escape(target)
    for path in folder.glob(f"{_MARK}{'[0-9a-f]' * 16}-{name}"):
        # Nobody holds a lock on what no process is writing.
        with contextlib.suppress(OSError), _opened(path) as handle:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(path)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Yield the descriptor of a file or folder, which is closed after the block."""
    handle = os.open(path, os.O_RDONLY)
    try:
        yield handle
    finally:
        os.close(handle)


def _set_aside(path: Path) -> Path:
    """Give what is at `path`, if anything, the name of a leftover; return that."""
    old = _new_name(path)
    with contextlib.suppress(OSError):
        os.replace(path, old)
    return old


def _new_name(target: Path) -> Path:
    return target.with_name(f"{_MARK}{os.urandom(8).hex()}-{target.name}")


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(OSError):
        path.unlink()


def _flush(path: Path) -> None:
    with _opened(path) as handle:
        os.fsync(handle)


def cached_folder(folder: Path, key: str, build: Callable[[Path], None], what: str) -> Path:
    """Return `folder`, which one process builds, once, while others wait for it.

    If it is damaged, or was made for another key, a warning says so and it is built anew.

    Args:
        folder: in a folder for caches, which is created if it is missing.
        key: all that the content depends on, or a sum of it.
        build: fills a temporary folder, which gets the name and the sums of its files then.
        what: what is in it, for lines and errors, such as "the windows".

    Raises:
        UserError: the folder cannot be written.
        Exception: whatever `build` raises; nothing is left of its folder.
    """
    if find_change(folder, key=key) is None:
        return folder
    lock = folder.parent / f".{folder.name}.lock"
    with writing(folder, what=what), hold_lock(lock, purpose=f"writes {folder}"):
        # Another process may have built it, while this one waited for the lock.
        change = find_change(folder, key=key)
        if change is None:
            return folder
        if folder.exists():
            log.warning("%s: %s is not as it was written; making %s anew", folder, change, what)
            remove_folder(folder)
        with whole_folder(folder) as temporary:
            build(temporary)
            write_sums(temporary, key=key)
    return folder


@contextlib.contextmanager
def hold_lock(path: Path, purpose: str) -> Iterator[None]:
    """Hold the lock file `path` during the block; create its folder if missing.

    If another process holds it for long, a line says for which `purpose` ("writes the tokenizer").
    Raises OSError if the lock file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(path)
    try:
        lock.acquire(timeout=PATIENCE)
    except filelock.Timeout:
        log.info("waiting for another process, which %s (%s)", purpose, path)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()

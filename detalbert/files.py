"""Files and folders that are whole or not there, and folders that are built once, under a lock.

What is written is in a scratch folder beside its place until it is on the disk, and is moved then:
a kill or a power cut at any moment leaves the old or the new, never half. A process holds a lock
(flock) on its scratch folders, so that the next one that writes in the same folder, whatever the
name, knows those of a killed one, and removes them. Nothing else is taken for a leftover.

What was traded: a write waits for the disk, a folder is on it twice while the new one replaces the
old, and where a file system has no locks, leftovers stay.
"""

import contextlib
import fcntl
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import filelock
from pydantic import TypeAdapter

from detalbert.errors import UserError, first_line
from detalbert.sums import checksum, find_change, load_json, write_sums

CACHE_CURE = "free space, or set data.cache_dir"
log = logging.getLogger(__name__)
_MARK = ".detalbert-tmp-"
OWN = ".written.json"  # sums of the files that `write_own` wrote in its folder
# The scratch folders of this process.
_scratches: set[Path] = set()


@contextlib.contextmanager
def whole_file(target: Path) -> Iterator[Path]:
    """Yield the path of a temporary file, moved to `target` on success. If the block raises,
    `target` is unchanged. Raises OSError if writing fails.
    """
    with _scratch_folder(target) as scratch:
        temporary = scratch / target.name
        yield temporary
        _flush(temporary)
        # Other users may read it, whatever this user's mask is.
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)


def write_own(folder: Path, texts: Mapping[str, str]) -> None:
    """Write files of `folder` by name, whole, and note them as ours. An error while they are
    written changes none. Raises OSError if writing fails.
    """
    own = _own_sums(folder)
    with contextlib.ExitStack() as stack:
        # What does not fit on the disk fails here, before the first gets its name.
        for name, text in texts.items():
            temporary = stack.enter_context(whole_file(folder / name))
            temporary.write_text(text, encoding="utf-8")

            # A kill leaves the old content or the new: both are ours.
            states = [path for path in (temporary, folder / name) if path.exists()]
            own[name] = sorted({checksum(path) for path in states})
        write_json(folder / OWN, own)


def check_own(folder: Path, names: Iterable[str], cure: str) -> None:
    """Raise UserError for the first of these files of `folder` that `write_own` did not write."""
    own = _own_sums(folder)
    for path in (folder / name for name in names):
        is_own = path.is_file() and checksum(path) in own.get(path.name, ())
        if os.path.lexists(path) and not is_own:
            problem = "it would be replaced, and this command did not write it as it is"
            raise UserError(problem, key=str(path), cure=cure)


def _own_sums(folder: Path) -> dict[str, list[str]]:
    """Return the SHA-256 sums that each of our files in `folder` may have, by its name."""
    try:
        return TypeAdapter(dict[str, list[str]]).validate_python(load_json(folder / OWN))
    except (OSError, ValueError):
        return {}


@contextlib.contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary folder, moved to `target` on success; an older `target` is then removed.
    If the block raises, `target` is unchanged. Raises OSError if writing fails.
    """
    with _scratch_folder(target) as scratch:
        temporary = scratch / "new"
        temporary.mkdir()
        yield temporary

        # Content first, then the names: after a power cut no file of the folder is empty.
        for path in [*temporary.rglob("*"), temporary]:
            _flush(path)
        os.chmod(temporary, 0o755)
        if target.exists():  # a folder that is not empty cannot be replaced in one step
            os.replace(target, scratch / "old")
        os.replace(temporary, target)
        _flush(target.parent)


def remove_folder(path: Path) -> None:
    """Remove a folder, if that is possible. After a kill no part of it is left under its name."""
    with contextlib.suppress(OSError), _scratch_folder(path) as scratch:
        os.replace(path, scratch / path.name)


def write_json(path: Path, value: object) -> None:
    """Write `value` as JSON to `path` atomically. Raises OSError if writing fails."""
    text = json.dumps(value, indent=1, ensure_ascii=False)
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


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
def _scratch_folder(target: Path) -> Iterator[Path]:
    """Yield a new folder beside `target`, which is removed with all that is still in it."""
    sweep(target.parent)
    prefix = f"{_MARK}{target.name}-"
    is_own = False
    while not is_own:
        with (
            tempfile.TemporaryDirectory(
                prefix=prefix,
                dir=target.parent,
                ignore_cleanup_errors=True,
            ) as name,
            contextlib.ExitStack() as stack,
        ):
            path = Path(name)
            with contextlib.suppress(OSError):  # swept, or a file system without locks
                fcntl.flock(stack.enter_context(_opened(path)), fcntl.LOCK_SH)
            # Until it is locked, another process may sweep it away.
            is_own = path.exists()
            if is_own:
                _scratches.add(path)
                yield path


def remove_temporaries() -> None:
    """Remove the scratch folders of this process, which is about to exit."""
    for path in list(_scratches):
        shutil.rmtree(path, ignore_errors=True)


def sweep(folder: Path) -> None:
    """Remove the scratch folders of killed processes in `folder`, which may be missing. What is
    below its other folders stays.
    """
    for path in folder.glob(f"{_MARK}*-{'[a-z0-9_]' * 8}"):
        # Nobody holds a lock on what no process is writing.
        with contextlib.suppress(OSError), _opened(path) as handle:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Yield the descriptor of a file or folder, which is closed after the block."""
    handle = os.open(path, os.O_RDONLY)
    try:
        yield handle
    finally:
        os.close(handle)


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
    sweep(folder.parent)
    if find_change(folder, key=key) is None:
        return folder
    lock = folder.parent / f".{folder.name}.lock"
    with writing(folder, what=what), hold_lock(lock):
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


def hold_lock(path: Path) -> filelock.BaseFileLock:
    """Return the lock of the file `path`, to be held during a block; create its folder if missing.
    Raises OSError, as the block does at its begin, if the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    return filelock.FileLock(path)

"""Manifest of a checkpoint: what its files were when it was written, and of which run it is.

`manifest.json` lists size and SHA-256 of every file, the run's settings and its validations so far,
and has a sum of its own. It is written last, so a folder without one is not a checkpoint. Contents
are compared where a checkpoint is used; to count checkpoints, sizes must do, for one may have
gigabytes.
"""

import json
from collections.abc import Iterable
from pathlib import Path

from detalbert import __version__
from detalbert.errors import first_line
from detalbert.sums import Json, checksum, is_sealed, load_json, seal
from detalbert.training.folder import step_name

FORMAT = 3
MANIFEST = "manifest.json"


def find_damage(path: Path) -> str | None:
    """Return why a checkpoint is not complete, by its manifest and the sizes of its files; None if
    it is.
    """
    return find_fault(path, compare_sums=False)


def find_fault(
    path: Path, names: Iterable[str] | None = None, compare_sums: bool = True
) -> str | None:
    """Return why `path` is not a complete checkpoint, or None.

    Args:
        path: of the checkpoint.
        names: files to compare, besides the manifest; default: all that it lists.
        compare_sums: whether to read these files; else their sizes must do.
    """
    try:
        manifest = read_manifest(path)
        fault = _manifest_fault(path, manifest)
        if fault is not None:
            return fault
        files = manifest["files"]
        compared = files if names is None else sorted(names)
        for name in compared:
            if not _is_as_written(path, name, written=files[name], compare_sums=compare_sums):
                return f"{name} is not as it was written"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    # A damaged manifest may have any value of JSON in any place.
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
        return f"{MANIFEST} cannot be read: {first_line(error)}"
    return None


def _manifest_fault(path: Path, manifest: Json) -> str | None:
    """Return what is wrong with a manifest; raise if a value is missing or of another type."""
    if not is_sealed(manifest):
        return f"{MANIFEST} is not as it was written"
    is_local = path.name.startswith("step-")
    if is_local and path.name != step_name(manifest["steps"]):
        return f"{MANIFEST} is of step {manifest['steps']}"
    return None


def _is_as_written(checkpoint: Path, name: str, written: Json, compare_sums: bool) -> bool:
    """Return whether a file of a checkpoint is there, inside it, and has its size and sum."""
    file = checkpoint / name
    if file.stat().st_size != written["bytes"]:
        return False
    if not file.is_file():
        return False
    # A name in a manifest may be anything, and a link may lead anywhere.
    if not file.resolve().is_relative_to(checkpoint.resolve()):
        return False
    return not compare_sums or checksum(file) == written["sha256"]


def read_manifest(checkpoint: Path) -> Json:
    """Return the manifest of a checkpoint that `find_fault` accepts."""
    return load_json(checkpoint / MANIFEST)


def write_manifest(folder: Path, facts: Json, files: Json | None = None) -> None:
    """Write the manifest of a checkpoint, after all its other files.

    Args:
        folder: of the checkpoint.
        facts: whatever else is to be kept: steps, settings, validations.
        files: as `describe_files` returns them; default: those of `folder`.
    """
    manifest = {
        "format": FORMAT,
        "version": __version__,
        **facts,
        "files": files or describe_files(folder),
    }
    (folder / MANIFEST).write_text(json.dumps(seal(manifest), indent=1))


def describe_files(folder: Path) -> Json:
    """Return size in bytes and SHA-256 of every file in `folder`, by its path there."""
    described = {}
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            name = file.relative_to(folder).as_posix()
            described[name] = {
                "bytes": file.stat().st_size,
                "sha256": checksum(file),
            }
    return described

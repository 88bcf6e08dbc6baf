"""Names of files that come from elsewhere, held inside the folder to which they are joined.

A bucket, an archive, a manifest or a list of sums says how its files are called. Joined as it is, a
name with `..` writes or reads beside the folder. Everything that joins such a name asks here first.
What was traded: a name that this package would never write, such as one with a backslash, is
refused even where it would be harmless.
"""

import re
from pathlib import Path

from detalbert.errors import UserError, first_line

_ODD = re.compile(r"[\\\x00-\x1f\x7f]")  # a backslash, control characters


def is_inside(name: str) -> bool:
    """Return whether `name` is a relative path without `.`, `..` and empty parts."""
    for part in name.split("/"):
        if part in ("", ".", ".."):
            return False
    return _ODD.search(name) is None


def hold(folder: Path, name: str, source: str) -> Path:
    """Return the path of the file `name` in `folder`, where it may be written.

    Args:
        folder: the folder, existing or not, that the file must not leave.
        name: of the file, as a stranger gives it. One that ends in "/" is of a folder.
        source: where the name comes from, for the error.

    Raises:
        UserError: the name leaves the folder, also through a link in it, or a file would take the
            place of a folder or the reverse.
    """
    try:
        fault = _find_fault(folder, name)
    except (OSError, ValueError, RuntimeError) as error:  # too long, not encodable; a loop of links
        fault = f"cannot be used in {folder} ({first_line(error)})"
    if fault is not None:
        raise UserError(
            f"the name {name!r} {fault}; nothing of it is used", key=source, cure="remove it"
        )
    return folder / name


def _find_fault(folder: Path, name: str) -> str | None:
    """Return why `name` cannot be written in `folder`, or None."""
    plain = name.removesuffix("/")
    if not is_inside(plain):
        return f"does not stay inside {folder}"

    # The folders on the way down must be folders, and a file must not be one.
    path = folder
    for part in plain.split("/"):
        if path.exists() and not path.is_dir():
            return f"has a file of {folder} as its folder"
        path = path / part
    if name.endswith("/") and path.is_file():
        return f"is that of a file in {folder}"
    if not name.endswith("/") and path.is_dir():
        return f"is that of a folder in {folder}"

    # A link on the way may lead elsewhere.
    home = folder.resolve()
    if not path.resolve().is_relative_to(home):
        return f"leads out of {folder} through a link"
    return None

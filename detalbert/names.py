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
    path = folder / name
    fault = None
    try:
        # Inside, also of links, and below folders alone.
        is_held = is_inside(name.removesuffix("/"))
        is_held = is_held and path.resolve().is_relative_to(folder.resolve())
        if not is_held or any(parent.is_file() for parent in path.parents):
            fault = f"does not stay inside {folder}"
        elif path.is_file() if name.endswith("/") else path.is_dir():
            fault = f"is taken in {folder}"
    except (OSError, ValueError, RuntimeError) as error:  # too long, not encodable; a loop of links
        fault = f"cannot be used in {folder} ({first_line(error)})"
    if fault is not None:
        raise UserError(
            f"the name {name!r} {fault}; nothing of it is used", key=source, cure="remove it"
        )
    return path

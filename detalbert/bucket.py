"""Files of a local run in a bucket: s3://BUCKET/PATH, gs://BUCKET/PATH, az://CONTAINER/PATH.

By the storage managers of Determined, which read the credentials as their clients do: AWS's
environment and files, Google's application default, AZURE_STORAGE_CONNECTION_STRING.

These managers join the names of objects to a folder as they are, also where Determined itself uses
them: for a trial's restart, and its client's downloads. So they are changed here, once for all of
these ways, to refuse a name that leaves the folder.
"""

import contextlib
import errno
import functools
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from determined.common import storage
from determined.errors import CheckpointNotFound, NoDirectStorageAccess

from detalbert import names
from detalbert.errors import Unavailable, UserError, first_line

_ADDRESS = re.compile(r"(s3|gs|az)://([\w.-]+)/+(.+?)/*$")
# Errors of the disk beside the bucket.
_LOCAL = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS)
# HTTP statuses that a retry does not change: all but time-out and too many requests.
MISTAKES = {*range(400, 500)} - {408, 429}


def is_bucket(address: str) -> bool:
    """Return whether `address` is one of a bucket; UserError if it is of another protocol."""
    if ":/" not in address:
        return False
    if not _ADDRESS.match(address) or ".." in address.split("/"):
        raise UserError("give s3://BUCKET/PATH, gs://, az://, or a folder", key=address)
    return True


def download(address: str, folder: Path, wanted: Callable[[str], bool] = lambda name: True) -> None:
    """Download the files below an address, if there are any.

    Args:
        address: such as s3://BUCKET/PATH.
        folder: where they go, under their names below the address.
        wanted: returns whether to download a file, by that name; default: all.

    Raises:
        UserError: the bucket does not exist or refuses.
        Unavailable: the bucket does not answer.
    """
    with _opened(address) as (manager, path), contextlib.suppress(CheckpointNotFound):
        # With a slash: managers take names for prefixes, and runs/1 is a prefix of runs/12.
        manager.download(f"{path}/", folder, selector=wanted)


def put(folder: Path, address: str, files: Iterable[str]) -> None:
    """Upload these files of `folder`; each appears whole. Raises as `download`."""
    files = set(files)
    outside = sorted(file for file in files if not names.is_inside(file))
    if outside:
        raise UserError(
            f"its file {outside[0]!r} is not inside; nothing is uploaded", key=str(folder)
        )
    with _opened(address) as (manager, path):
        manager.upload(folder, path, files)


def remove(address: str) -> None:
    """Delete all files below `address`. Raises as `download`."""
    with _opened(address) as (manager, path):
        manager.delete(f"{path}/", ["**/*"])


@contextlib.contextmanager
def _opened(address: str) -> Iterator[tuple[storage.StorageManager, str]]:
    """Yield the manager of a bucket, and the path in it; convert the errors of its client."""
    ((protocol, bucket, path),) = _ADDRESS.findall(address)
    try:
        if protocol == "az":
            login = os.environ.get("AZURE_STORAGE_CONNECTION_STRING")
            yield storage.AzureStorageManager(bucket, connection_string=login), path
        else:
            yield storage.from_string(f"{protocol}://{bucket}"), path
    except (CheckpointNotFound, UserError):
        raise
    except Exception as error:  # of classes of each client's own
        raise _converted(error, address) from None


def _converted(error: Exception, address: str) -> UserError:
    """Return a client's error as UserError, or as Unavailable where a retry may help."""
    is_refused = isinstance(error, NoDirectStorageAccess)
    # Of a refused upload, and of no access, the error says less than that which it replaced.
    cause: BaseException = error
    replaced = error.__context__
    if replaced is not None and (is_refused or http_status(replaced)):
        cause = replaced
    is_mistake = (
        is_refused
        or isinstance(error, (ValueError, ImportError))
        or getattr(error, "errno", None) in _LOCAL
        or http_status(cause) in MISTAKES
    )
    kind = UserError if is_mistake else Unavailable
    return kind(first_line(cause), key=address)


def http_status(error: object) -> int | None:
    """Return the HTTP status in an error of boto3, Google's or Azure's client."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):  # boto3's
        return response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    code = getattr(error, "code", None)  # Google's
    return getattr(error, "status_code", code)


def _hold_names(manager: Any) -> None:
    """Have a class of storage managers write no object outside the folder of a download."""
    download = manager.download

    @functools.wraps(download)
    def download_inside(
        self: Any, src: str, dst: str | os.PathLike, selector: storage.Selector | None = None
    ) -> None:
        def is_held(name: str) -> bool:
            # The managers resolve ".." in keys, so that it is only left in front. A key that is the
            # downloaded folder itself arrives as "./".
            if name != "./":
                names.hold(Path(dst), name, source=f"checkpoint storage, below {src}")
            return True

        def is_wanted(name: str) -> bool:
            return is_held(name) and (selector is None or selector(name))

        # The first pass wants no file and only lists, so that beside a name that is refused nothing
        # is written.
        download(self, src, dst, selector=lambda name: not is_held(name))
        download(self, src, dst, selector=is_wanted)

    manager.download = download_inside


for _manager_class in (
    storage.S3StorageManager,
    storage.GCSStorageManager,
    storage.AzureStorageManager,
):
    _hold_names(_manager_class)

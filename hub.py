"""Names of models and data sets: a folder here, or something that a hub gives."""

from pathlib import Path
from typing import Type

from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled

from hparams import Unavailable, UserError


def find_local(name: str) -> str:
    """`name` as it is, or its place in this repository where only that exists."""
    shipped = Path(__file__).parent / name
    return str(shipped) if not Path(name).exists() and shipped.is_dir() else name


def hub_error(error: BaseException) -> Type[UserError]:
    """`Unavailable` where the network or the hub itself failed, `UserError` where it said no.

    Libraries wrap what HTTP raised, so its causes are looked at too. A time-out or a status of 500
    and more is worth another try; "no such repository" (404) and "log in first" (401) are not.
    """
    seen, cause = set(), error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        status = getattr(getattr(cause, "response", None), "status_code", None)
        if status is not None:
            return Unavailable if status == 429 or status >= 500 else UserError
        if isinstance(cause, OfflineModeIsEnabled):
            return UserError
        if isinstance(cause, (ConnectionError, TimeoutError, LocalEntryNotFoundError)):
            return Unavailable
        cause = cause.__cause__ or cause.__context__
    return UserError

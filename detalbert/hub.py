"""Names of models and data sets: a folder here, or something that a hub gives."""

from pathlib import Path

from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled

from detalbert.errors import Unavailable, UserError

# In a checkpoint, beside Determined's files:
PRETRAINED = "pretrained"  # the model's config and the tokenizer, in the library's own files
STATE_DICT = "state_dict.pth"


def find_local(name: str) -> str:
    """`name` as it is, or its place in this repository where only that exists; of a checkpoint of
    this package the library's files in it, without the weights."""
    shipped = Path(__file__).parents[1] / name
    found = str(shipped) if not Path(name).exists() and shipped.is_dir() else name
    return str(Path(found) / PRETRAINED) if is_checkpoint(name) else found


def looks_like_path(name: str, suffixes: tuple[str, ...]) -> bool:
    """Whether `name` means a file or a folder, there or not, and not a name of the hub.

    Args: suffixes: endings of the files that are read here, such as (".json",).
    """
    path, ending = Path(name), Path(name).suffix.lower()
    return path.exists() or path.is_absolute() or name.startswith(".") or ending in suffixes


def is_checkpoint(name: str) -> bool:
    """Whether `name` is the folder of a checkpoint that train.py wrote."""
    return (Path(name) / STATE_DICT).is_file() and (Path(name) / PRETRAINED).is_dir()


def hub_error(error: BaseException) -> type[UserError]:
    """`Unavailable` where the network or the hub itself failed, `UserError` where it said no.

    Libraries wrap what HTTP raised, so its causes are looked at too. A time-out or a status of 500
    and more is worth another try; "no such repository" (404) and "log in first" (401) are not.
    """
    seen: set[int] = set()
    cause: BaseException | None = error
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

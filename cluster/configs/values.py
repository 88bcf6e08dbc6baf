"""Findings on configs, and values of configs that nothing has checked."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from detalbert.settings.values import Config


class Finding(NamedTuple):
    """One thing to fix: where it is, what is wrong and what to do about it.

    A finding is rejected by the master or harms the run. A warning is accepted and harmless: an old
    key, a custom of this package, or a key that only the fork accepts.
    """

    key: str
    problem: str
    warning: bool = False
    file: str = ""  # where the key is, as soon as the checker is done with the file
    cure: str = ""  # what to do, unless the problem says it

    def __str__(self) -> str:
        return f"{self.file}: {self.key}: {'warning: ' * self.warning}{self.detail}"

    @property
    def detail(self) -> str:
        """The line without file and key, as that of a UserError."""
        return f"{self.problem}; {self.cure}" if self.cure else self.problem


def dotted(path: Iterable[str | int]) -> str:
    """Return a path of keys and numbers as `a.b[0].c`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}"
    return text.removeprefix(".")


def at(config: object, path: str) -> Any:
    """Return what a config has at `a.b.c`; None if it has nothing there. A value of a wrong type on
    the way is reported elsewhere.
    """
    value = config
    for key in path.split("."):
        value = mapping(value).get(key)
    return value


def mapping(value: object) -> Config:
    """Return `value` if it is a mapping, else an empty one: its type is reported elsewhere."""
    return value if isinstance(value, dict) else {}


def mappings(value: object) -> list[Config]:
    """Return the mappings in `value` if it is a list, else an empty list."""
    if not isinstance(value, list):
        return []
    return [item for item in value if isinstance(item, dict)]


def whole(value: object) -> int | None:
    """Return `value` if it is a whole number (8.0 too, as in the master), else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return int(value) if value == value // 1 else None

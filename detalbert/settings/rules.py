"""Rules that a JSON Schema cannot say; the schemas of configs name them by `x-rule`.

Each returns what is wrong with a value of the right type and what to do, or None.
"""

import posixpath
import re
from typing import Any

from detalbert.errors import nearest
from detalbert.settings.schema import mappings

WORKDIR = "/run/determined/workdir"  # of every trial, whatever task_container_defaults say


def inside_host(storage: dict[str, Any]) -> str | None:
    """Check that storage_path, absolute or relative to host_path, is inside it."""
    inner, outer = storage.get("storage_path"), storage.get("host_path")
    if not isinstance(inner, str) or not isinstance(outer, str):
        return None
    whole = posixpath.normpath(posixpath.join("/host", inner))
    outer = posixpath.normpath(outer) if inner.startswith("/") else "/host"
    if outer == "/" or f"{whole}/".startswith(f"{outer}/"):
        return None
    return f"storage_path {inner!r} is not inside host_path"


def unique(items: list[Any], name: str, said: str) -> str | None:
    """Check that no two mappings have one text at `name`; paths are compared as Docker does."""
    found = [item[name] for item in mappings(items) if isinstance(item.get(name), str)]
    found = [posixpath.normpath(each) if each.startswith("/") else each for each in found]
    twice = [each for each in found if found.count(each) > 1]
    return said.format(min(twice)) if twice else None


def beside_workdir(path: str) -> str | None:
    """Check that a mount in the container does not cover the working directory of a trial."""
    target = posixpath.normpath(posixpath.join(WORKDIR, path))
    if target != "/" and not f"{WORKDIR}/".startswith(f"{target}/"):
        return None
    return f"{path!r} covers {WORKDIR}, where the uploaded files are; mount it below or beside that"


def pattern(text: str) -> str | None:
    """Check that a log policy's pattern compiles in Go, whose syntax is RE2's, and is not idle."""
    try:
        import re2
    except ImportError:
        return None  # train.py does without: no local run has a policy; cluster.check asks for it
    silent = re2.Options()
    silent.log_errors = False  # on stderr
    try:
        compiled = re2.compile(text, silent)
    except re2.error as error:
        fault = error.args[0].decode(errors="replace")[:80]
        return (
            f"Go's regexp does not compile it, and the master then watches for none of the "
            f"policies after it: {fault}"
        )
    if all(compiled.search(line) for line in ("", "q", "a line 0.")):
        return "matches every line, the first one too; narrow it"
    return None


def program(words: list[Any]) -> str | None:
    """Check that the first word of an entrypoint names one program."""
    first = words[0] if words else ""
    if not isinstance(first, str) or not re.search(r"\s", first.strip()):
        return None
    return f"{first!r} is run as the name of one program; one word an item"


def ordered(
    value: dict[str, Any], low: str, high: str, said: str, equal: bool = True, *usual: int
) -> str | None:
    """Check that the number at `low` is less than that at `high`, or equal if `equal`; `usual` are
    their values where they are left out.
    """
    least, most = value.get(low, *usual[:1]), value.get(high, *usual[1:])
    if not isinstance(least, (int, float)) or not isinstance(most, (int, float)):
        return None
    return None if least < most or (equal and least == most) else said.format(least, most)


def network(name: str) -> str | None:
    """Check that a network mode is not misspelt: Docker takes any word as a network's name."""
    modes = ["bridge", "host", "none", "default"]
    hint = nearest(name, modes)
    if name and (name in modes or name.startswith("container:") or "did you" not in hint):
        return None
    return f"{name!r} is a Docker network that may not be there; {hint}"


_MONTHS, _DAYS = "jan feb mar apr may jun jul aug sep oct nov dec", "sun mon tue wed thu fri sat"
_FIELDS = [(0, 59, ""), (0, 23, ""), (1, 31, ""), (1, 12, _MONTHS), (0, 6, _DAYS)]


def cron(text: str) -> str | None:
    """Check that `text` is a cron expression of five fields.

    See https://pkg.go.dev/github.com/robfig/cron/v3, whose standard parser the master uses.
    """
    fields = re.sub(r"^(?:CRON_)?TZ=\S+ +", "", text).lower().split()
    good = len(fields) == 5 and all(
        _cron_part(part, *limits)
        for field, limits in zip(fields, _FIELDS, strict=True)
        for part in field.split(",")
    )
    return None if good else "no cron expression"


def _cron_part(text: str, low: int, high: int, words: str) -> bool:
    """Return whether a part is *, a value or a range within the limits, maybe with a step."""
    named = {word: low + number for number, word in enumerate(words.split())}
    span, slash, step = text.partition("/")
    ends = [int(end) if end.isdigit() else named.get(end, -1) for end in span.split("-")]
    inside = span in ("*", "?") or (len(ends) < 3 and low <= ends[0] <= ends[-1] <= high)
    return inside and (not slash or (step.isdigit() and int(step) > 0))

"""Rules that a JSON Schema cannot say; the schemas of configs name them by `x-rule`.

Each returns what is wrong with a value of the right type and what to do, or None. They say no to
what a master would refuse or misread, and leave alone what they cannot judge.
"""

import posixpath
import re

from detalbert.errors import nearest
from detalbert.settings.schema import mappings
from detalbert.settings.values import Config

# Of every trial, whatever task_container_defaults say.
WORKDIR = "/run/determined/workdir"


def inside_host(storage: Config) -> str | None:
    """Check that storage_path, absolute or relative to host_path, is inside it."""
    inner = storage.get("storage_path")
    outer = storage.get("host_path")
    if not isinstance(inner, str) or not isinstance(outer, str):
        return None
    # A relative one is below host_path, wherever that is: /host stands for it.
    path = posixpath.normpath(posixpath.join("/host", inner))
    folder = "/host"
    if inner.startswith("/"):
        folder = posixpath.normpath(outer)
    if folder == "/" or f"{path}/".startswith(f"{folder}/"):
        return None
    return f"storage_path {inner!r} is not inside host_path"


def unique(items: list[object], name: str, problem: str) -> str | None:
    """Check that no two mappings have one text at `name`; paths are compared as Docker does.

    Args:
        problem: to return, with {} for the text.
    """
    texts = []
    for item in mappings(items):
        text = item.get(name)
        if isinstance(text, str):
            texts.append(posixpath.normpath(text) if text.startswith("/") else text)
    repeated = [text for text in texts if texts.count(text) > 1]
    if not repeated:
        return None
    return problem.format(min(repeated))


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
    # Three lines that have nothing in common.
    if all(compiled.search(line) for line in ("", "q", "a line 0.")):
        return "matches every line, the first one too; narrow it"
    return None


def program(words: list[object]) -> str | None:
    """Check that the first word of an entrypoint names one program."""
    first = words[0] if words else ""
    if not isinstance(first, str) or not re.search(r"\s", first.strip()):
        return None
    return f"{first!r} is run as the name of one program; one word an item"


def ordered(
    value: Config, low: str, high: str, problem: str, equal: bool = True, *usual: int
) -> str | None:
    """Check that the number at one key is less than that at another.

    Args:
        low, high: the keys.
        problem: to return, with {} for each number.
        equal: whether they may be equal.
        usual: their values where they are left out.
    """
    lower = value.get(low, *usual[:1])
    upper = value.get(high, *usual[1:])
    if not isinstance(lower, (int, float)) or not isinstance(upper, (int, float)):
        return None
    if lower < upper or (equal and lower == upper):
        return None
    return problem.format(lower, upper)


def network(name: str) -> str | None:
    """Check that a network mode is not misspelt: Docker takes any word as a network's name."""
    modes = ["bridge", "host", "none", "default"]
    hint = nearest(name, modes)
    if name and (name in modes or name.startswith("container:") or "did you" not in hint):
        return None
    return f"{name!r} is a Docker network that may not be there; {hint}"


_MONTHS = "jan feb mar apr may jun jul aug sep oct nov dec"
_DAYS = "sun mon tue wed thu fri sat"
# The least and the most of each field, and its names for them.
_FIELDS = [
    (0, 59, ""),
    (0, 23, ""),
    (1, 31, ""),
    (1, 12, _MONTHS),
    (0, 6, _DAYS),
]


def cron(text: str) -> str | None:
    """Check that `text` is a cron expression of five fields.

    See https://pkg.go.dev/github.com/robfig/cron/v3, whose standard parser the master uses.
    """
    fields = re.sub(r"^(?:CRON_)?TZ=\S+ +", "", text).lower().split()
    if len(fields) != len(_FIELDS):
        return "no cron expression"
    for field, (low, high, names) in zip(fields, _FIELDS, strict=True):
        for part in field.split(","):
            if not _is_cron_part(part, low=low, high=high, names=names):
                return "no cron expression"
    return None


def _is_cron_part(part: str, low: int, high: int, names: str) -> bool:
    """Return whether a part is *, a value or a range within the limits, maybe with a step."""
    numbers = {name: low + number for number, name in enumerate(names.split())}
    span, slash, step = part.partition("/")
    is_step = step.isdigit() and int(step) > 0
    if slash and not is_step:
        return False
    if span in ("*", "?"):
        return True

    # A value is a range of itself; -1, of an unknown name, is below every limit.
    ends = []
    for end in span.split("-"):
        ends.append(int(end) if end.isdigit() else numbers.get(end, -1))
    return len(ends) < 3 and low <= ends[0] <= ends[-1] <= high

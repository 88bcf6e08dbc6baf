"""Texts as the master's Go libraries parse them: durations, patterns, schedules, URLs, paths."""

import posixpath
import re
import string
import urllib.parse
from decimal import Decimal

from detalbert.errors import UserError

# Nanoseconds, as https://pkg.go.dev/time#ParseDuration has them.
_UNITS = {"ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6, "s": 10**9}
_UNITS |= {"m": 60 * 10**9, "h": 3600 * 10**9}
_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)")
_LONGEST = 2**63 - 1


def duration(text: str) -> int | None:
    """Return the nanoseconds of "1h30m"; None if Go rejects it ("10", "1d", "20 minutes")."""
    sign = -1 if text.startswith("-") else 1
    rest = text[1:] if text[:1] in ("-", "+") else text
    if rest == "0":
        return 0
    total, at = Decimal(0), 0
    while at < len(rest):
        part = _PART.match(rest, at)
        if not part:
            return None
        total += Decimal(part[1]) * _UNITS[part[2]]
        at = part.end()
    return sign * int(total) if at and total <= _LONGEST else None


def duration_problem(text: str) -> str | None:
    """Say why the master rejects `text` as a duration; None if it is valid."""
    if duration(text) is None:
        return f'{text!r} is no duration; write it as "10m", "90s" or "1h30m"'
    return None


def period_problem(text: str) -> str | None:
    """Say why `text` is not a duration greater than zero; None if it is."""
    if (duration(text) or 1) < 1 or duration(text) == 0:
        return f"{text!r} is not more than 0; raise it"
    return duration_problem(text)


def regexp_problem(pattern: str) -> str | None:
    """Return why Go's regexp, whose syntax is RE2's, does not compile `pattern`, in RE2's words."""
    try:
        import re2
    except ImportError:
        raise UserError("google-re2 is missing: pip install -r cluster/requirements.txt") from None
    silent = re2.Options()
    silent.log_errors = False  # on stderr
    try:
        re2.compile(pattern, silent)
    except re2.error as error:
        return error.args[0].decode(errors="replace")[:80]
    return None


_MONTHS, _DAYS = "jan feb mar apr may jun jul aug sep oct nov dec", "sun mon tue wed thu fri sat"
_CRON_FIELDS = [(0, 59, ""), (0, 23, ""), (1, 31, ""), (1, 12, _MONTHS), (0, 6, _DAYS)]
_CRON_NAMES = ["yearly", "annually", "monthly", "weekly", "daily", "midnight", "hourly"]


def schedule_problem(text: str) -> str | None:
    """Say why `text` is neither a duration nor a cron expression of five fields; else None. See
    https://pkg.go.dev/github.com/robfig/cron/v3, whose standard parser the master uses.
    """
    if duration(text) is not None or text in [f"@{name}" for name in _CRON_NAMES]:
        return None
    if text.startswith("@every ") and duration(text[7:]) is not None:
        return None
    zone = re.match(r"(?:CRON_)?TZ=\S+ +", text)
    fields = text[zone.end() if zone else 0 :].split()
    if len(fields) == 5 and all(map(_cron_field, fields, _CRON_FIELDS)):
        return None
    return f'{text!r} is neither a duration ("24h") nor a cron expression ("0 5 * * *")'


def _cron_field(text: str, field: tuple[int, int, str]) -> bool:
    return all(_cron_range(part, *field) for part in text.split(","))


def _cron_range(text: str, low: int, high: int, names: str) -> bool:
    """Return whether `text` is *, a value or a range within the limits, optionally with a step."""
    words = names.split()
    span, slash, step = text.partition("/")
    if slash and not (step.isdigit() and int(step) > 0):
        return False
    if span in ("*", "?"):
        return True
    ends = []
    for end in span.split("-"):
        named = end.lower() in words
        ends.append(low + words.index(end.lower()) if named else int(end) if end.isdigit() else -1)
    return len(ends) < 3 and low <= ends[0] <= ends[-1] <= high


_USERINFO = string.ascii_letters + string.digits + "-._~!$&'()*+,;=:@"


def userinfo_problem(text: str) -> str | None:
    """Say why `text` is not valid, unescaped, as user or password in a URL; None if it is."""
    wrong = sorted({char for char in text if char not in _USERINFO})
    if wrong:
        return (
            f"the master writes it into a URL as it is, which {' '.join(wrong)!r} breaks; use "
            "letters, digits and -._~!$&'()*+,;=:@"
        )
    return None


def master_url_problem(text: str) -> str | None:
    """Say why `text` is not a `master_url`, scheme://host:port without a path; else None."""
    if not text:
        return None
    try:
        url = urllib.parse.urlsplit(text)
        url.port  # noqa: B018  it raises
    except ValueError:
        return f"{text!r} is no URL; write it as http://10.0.0.5:8080"
    if url.scheme not in ("http", "https") or url.path or not text.isprintable() or " " in text:
        return f"{text!r}: write it as http://HOST:PORT or https://HOST:PORT, nothing after it"
    return None


def absolute_problem(path: str) -> str | None:
    """Say why `path` is not an absolute path; None if it is."""
    return None if path.startswith("/") else f"{path!r} is not absolute; begin it with /"


def prefix_problem(path: str) -> str | None:
    """Say why the master rejects `path` as the prefix in a bucket; None if it accepts it."""
    return f"{path!r} has .. in it; leave that out" if ".." in path.split("/") else None


def outside(inner: str, outer: str) -> bool:
    """Return whether `inner`, absolute or relative to the folder `outer`, is outside `outer`."""
    if not inner.startswith("/"):
        return posixpath.normpath(inner).startswith("..")
    outer = posixpath.normpath(outer)
    return outer != "/" and f"{posixpath.normpath(inner)}/".find(f"{outer}/") != 0

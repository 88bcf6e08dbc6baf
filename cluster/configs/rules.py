"""Rules that a JSON Schema cannot say; the schemas of configs name them by `x-rule`.

Each returns what is wrong with a value of the right type and what to do, or None: what a master
accepts, and a trial then fails of.
"""

import re

# Of every trial, whatever task_container_defaults say.
WORKDIR = "/run/determined/workdir"


def pattern(text: str) -> str | None:
    """Check that a log policy's pattern compiles in Go, whose syntax is RE2's, and is not idle."""
    import re2  # in cluster/requirements.txt

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

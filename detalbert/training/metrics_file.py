"""The file `metrics.json` of a run, as starts, predict.py and scores of checkpoints read it.

It is not sealed, as users read and plot it, so it may be damaged or of another program. Whoever
reads it gets a mapping of the shape below or nothing; the checkpoints have the same validations.
"""

import json
from numbers import Real
from pathlib import Path

from detalbert.sums import Json

METRICS_FILE = "metrics.json"


def read_metrics(folder: Path) -> Json | None:
    """Return the `metrics.json` of an output directory; None if it is missing or not a run's.

    It has `throughput`, with its `starts` unless those of earlier ones are lost, and after a
    validation `best` and `last`, each with its `steps`.
    """
    try:
        content = json.loads((folder / METRICS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(content, dict):
        return None
    throughput = content.get("throughput")
    if not isinstance(throughput, dict):
        return None
    if not _are_starts(throughput.get("starts")):
        return None
    for key in ("best", "last"):
        if not _is_validation(content.get(key)):
            return None
    return content


def _are_starts(value: object) -> bool:
    """Return whether `value` lists begin and end of starts; None where earlier ones are lost."""
    if value is None:
        return True
    if not isinstance(value, list):
        return False
    for start in value:
        if not isinstance(start, dict):
            return False
        if not isinstance(start.get("start"), str) or not isinstance(start.get("end"), str):
            return False
    return True


def _is_validation(value: object) -> bool:
    """Return whether `value` is a validation, or what stands for none."""
    if not value:
        return value is None or value == {}
    return isinstance(value, dict) and isinstance(value.get("steps"), Real)

"""The shipped questions on a generated world of towns, ships and scholars (embedded/README.md).

A name belongs to one split only, so a model trained on "train" is tested on unseen names.
"""

import gzip
import json
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]
_FOLDER = _ROOT / "embedded"


def load_world(split: str) -> dict[str, Any]:
    """Return the questions of "train" or "validation" in the official SQuAD 2.0 JSON shape."""
    path = _FOLDER / f"world-{split}.json.gz"
    with gzip.open(path) as file:
        content = file.read()
    return json.loads(content)

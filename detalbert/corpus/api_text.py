"""English text available on every machine: AWS's API reference, a part of botocore.

Determined installs boto3 and so botocore (Apache-2.0). The newest description of each service holds
HTML fragments, some pages long: 17 MB of text in documents of 200 characters and more.
"""

import gzip
import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import botocore

_SHORTEST = 200  # characters: "The name of the bucket." teaches nothing
_ENDS_LINE = re.compile(r"</(?:p|li|h\d|dt|dd|note|pre)>|<br\s*/?>")
_TAG = re.compile(r"<[^>]*>")


def find_services() -> list[Path]:
    """Return the files of the newest description of each service, by the service's name."""
    root = Path(botocore.__file__).parent / "data"
    paths = sorted(root.glob("*/*/service-2.json.gz"))  # SERVICE/DATE/..., the latest last
    return list({path.parts[-3]: path for path in paths}.values())


def read_services() -> Iterator[str]:
    """Yield the texts of all services, the distinct ones of each in the order of its file, one
    paragraph per line.
    """
    for path in find_services():
        with gzip.open(path, "rt", encoding="utf-8") as file:
            descriptions = _descriptions(json.load(file))
            texts = dict.fromkeys(map(_plain, descriptions))
        yield from (text for text in texts if len(text) >= _SHORTEST)


def _descriptions(node: Any) -> Iterator[str]:
    if isinstance(node, list):
        node = dict(enumerate(node))
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "documentation" and isinstance(value, str):
                yield value
            else:
                yield from _descriptions(value)


def _plain(fragment: str) -> str:
    # Elements that end a paragraph end a line; other tags vanish.
    fragment = _ENDS_LINE.sub("\n", fragment)
    fragment = _TAG.sub("", fragment)
    text = html.unescape(fragment)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    return "\n".join(line for line in lines if line)

"""Bits that flip on a disk, and manifests of other content."""

import json
import os
import random
from pathlib import Path
from typing import Any

from detalbert.training.checkpoints import write_manifest


def flip(path: Path, dice: random.Random, bits: int = 1) -> None:
    """Flip bits of a file at random places, at another time than that of the last writing: the
    clocks of file systems are coarse."""
    content, written = bytearray(path.read_bytes()), path.stat().st_mtime_ns
    for _ in range(bits):
        content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
    path.write_bytes(content)
    os.utime(path, ns=(written + 1, written + 1))


def rewrite(path: Path, **changes: Any) -> None:
    """Change facts of a manifest, with the checksums of the files as they are now."""
    facts = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").unlink()
    facts.pop("files")
    version = changes.pop("format", facts.pop("format"))
    write_manifest(path, {**facts, **changes, "format": version})

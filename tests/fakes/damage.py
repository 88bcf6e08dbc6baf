"""Damages of files: bits that flip, files that are cut or swapped, manifests of other content."""

import json
import os

from detalbert.sums import seal
from detalbert.training.manifest import write_manifest


def flip(path, dice, bits=1):
    """Flip bits of a file at random places, at another time than that of the last writing: the
    clocks of file systems are coarse."""
    content = bytearray(path.read_bytes())
    written = path.stat().st_mtime_ns
    for _ in range(bits):
        content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
    path.write_bytes(content)
    os.utime(path, ns=(written + 1, written + 1))


OTHER_JSON = [
    "[]",
    "{}",
    "5",
    "null",
    '"text"',
    '{"files": 5}',
    '{"format": 2}',
    json.dumps(seal({})),
    json.dumps(seal({"files": {"../x": "0"}, "key": "0"})),
]


def spoil(path, other, dice):
    """Flip a bit of a file, cut it, swap it with another, delete it, append to it, or write other
    JSON over it; return what was done."""
    kind = dice.choice(["flip", "cut", "swap", "delete", "append", "other JSON"])
    content = path.read_bytes()
    if kind == "flip" and content:
        flip(path, dice)
    elif kind == "swap":
        path.write_bytes(other.read_bytes())
        other.write_bytes(content)
    elif kind == "delete":
        path.unlink()
    elif kind == "append":
        path.write_bytes(content + dice.choice([b" ", b"\n", b"\0", b"{}", content]))
    elif kind == "other JSON":
        path.write_text(dice.choice(OTHER_JSON))
    else:
        path.write_bytes(content[: dice.randrange(len(content) + 1)])
    return f"{kind}: {path.name}"


def rewrite(path, **changes):
    """Change values of a manifest, with the checksums of the files as they are now."""
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").unlink()
    del manifest["files"]
    write_manifest(path, {**manifest, **changes})

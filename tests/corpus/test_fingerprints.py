"""Fingerprints of a text, by which its shards are found again."""

import gzip
from pathlib import Path

from detalbert.corpus.sources import open_text
from detalbert.settings.text import SourceConfig

LINES = '{"text": "A ship."}\n{"text": "A port."}\n'


def fingerprint(path: Path, **options: str) -> str:
    text = open_text(SourceConfig(source=str(path)), key="data.text", split="train", **options)
    return text.fingerprint


def test_how_a_file_is_read_is_part_of_its_fingerprint(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text(LINES)
    # The same bytes, as rows and as lines of text.
    rows = fingerprint(path)
    assert rows != fingerprint(path, form="text") != fingerprint(path, form="text", article="file")
    assert rows == fingerprint(path, article="file")  # plain text alone has articles

    # Its place is not, its bytes are.
    elsewhere = tmp_path / "other" / "a.txt"
    elsewhere.parent.mkdir()
    elsewhere.write_text(LINES)
    assert fingerprint(elsewhere) == rows
    elsewhere.write_text(LINES.replace("port", "sail"))
    assert fingerprint(elsewhere) != rows


def test_a_text_in_utf_16_has_a_fingerprint_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("One.\nTwo.\n".encode("utf-16"))
    before = fingerprint(path)
    path.write_bytes(b"One.\nTwo.\n")
    assert fingerprint(path) != before
    packed = tmp_path / "a.txt.gz"
    packed.write_bytes(gzip.compress(path.read_bytes(), mtime=0))
    assert fingerprint(packed) != fingerprint(path)

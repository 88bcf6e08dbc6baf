"""Text on this machine, and S3 that fails on purpose."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from detalbert.reading import storage
from tests.fakes.s3 import bucket
from tests.fakes.text import contexts


@pytest.fixture(scope="session")
def corpus_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1,201 documents, one per line, and blank lines."""
    path = tmp_path_factory.mktemp("corpus") / "text.txt"
    path.write_text("\n".join([*contexts(1200), "", "  ", "One. Two."]))
    return path


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """(client, faults): moto behind a proxy that can spoil answers."""
    with bucket(monkeypatch) as served:
        storage._s3.cache_clear()
        yield served

"""AWS's API reference as text."""

import re
from pathlib import Path

import botocore

from detalbert.corpus import api_text
from detalbert.corpus.sources import open_text, read_documents

SERVICE = "sts"


def test_the_api_reference_is_prose_of_the_newest_versions() -> None:
    services = [path.parent.parent.name for path in api_text.find_services()]
    assert len(services) == len(set(services)) > 100 and services == sorted(services)
    path = next(path for path in api_text.find_services() if path.parent.parent.name == SERVICE)
    versions = sorted(folder.name for folder in path.parent.parent.iterdir() if folder.is_dir())
    assert path.parent.name == versions[-1]
    texts = api_text.read_service(path)
    assert len(texts) == len(set(texts)) > 20 and min(map(len, texts)) >= 200
    assert not any(re.search(r"</?\w+>|&\w+;|  |\n\n", text) for text in texts)
    assert any("temporary security credentials" in text for text in texts)


def test_the_api_reference_as_a_source() -> None:
    text = open_text("botocore", "data.text", 1 << 20, "train")
    assert text.fingerprint == f"botocore {botocore.__version__}"
    part = next(part for part in text.parts if f"/{SERVICE}/" in part.address)
    assert [document for document, _ in read_documents(part)] == api_text.read_service(
        Path(part.address.removeprefix("botocore:"))
    )

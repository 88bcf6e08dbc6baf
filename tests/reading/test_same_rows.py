"""The same rows give the same questions and the same shard bytes, whatever their form."""

import json
from pathlib import Path

import pytest

from detalbert.squad import world
from tests.corpus import documents
from tests.fakes.questions import as_rows
from tests.fakes.text import contexts
from tests.reading.files import read_questions
from tests.reading.shapes import VARIANTS, Shape, content_of, write

SHAPES: list[Shape] = []
for form in sorted(VARIANTS):
    SHAPES += [Shape(form, variant) for variant in VARIANTS[form]]
SHAPES += [
    Shape("json_lines", "\n", encoding="utf-16-le"),
    Shape("json", "articles", encoding="utf-16-be", compression="zstd", cuts=(0.3, 0.6)),
    Shape("table", ";", encoding="utf-8-sig", compression="gzip", cuts=(0.5,)),
    Shape("json_lines", "\n", compression="long"),
    Shape("parquet", "", compression="xz"),
]
NAMES = [ascii(shape[:4]) for shape in SHAPES]

TEXTS = [*contexts(30), 'A "quoted" word, a comma; é, 東京.', "one\u2028line", "of\ntwo lines"]


@pytest.fixture(scope="module")
def shards_of_lines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Write the shards of TEXTS as JSON lines."""
    folder = tmp_path_factory.mktemp("lines")
    return shard_bytes(documents.write_lines(folder / "a.jsonl", TEXTS), folder)


def shard_bytes(address: Path, folder: Path) -> dict[str, bytes]:
    """Write shards; return every file of them but the index, which names the text."""
    shards = documents.write(address, folder, form=None, validation_fraction=0.3)
    paths = [*shards.glob("*.bin"), *shards.glob("*.npy")]
    assert paths
    return {path.name: path.read_bytes() for path in paths}


@pytest.mark.parametrize("shape", SHAPES, ids=NAMES)
def test_the_same_shards(shape: Shape, tmp_path: Path, shards_of_lines: dict[str, bytes]) -> None:
    rows = [{"id": number, "text": text} for number, text in enumerate(TEXTS)]
    articles = [{"title": "", "paragraphs": [{"context": text, "qas": []}]} for text in TEXTS]
    if shape.form == "table":
        shape = shape._replace(name=".csv")

    path = write(tmp_path, shape, content_of(shape, rows, articles))

    assert shard_bytes(path, tmp_path) == shards_of_lines


@pytest.mark.parametrize("shape", SHAPES, ids=NAMES)
def test_the_same_questions(shape: Shape, tmp_path: Path) -> None:
    articles = world.generate("validation", paragraphs=10)["data"]
    squad = tmp_path / "squad.json"
    squad.write_text(json.dumps({"data": articles}))
    expected = read_questions(squad)
    assert len(expected) > 20

    path = write(tmp_path, shape, content_of(shape, as_rows(expected), articles))

    assert read_questions(path) == expected

"""Text of every kind gives the same documents, however it is cut; where it is cut."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import botocore
import datasets
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detalbert import hub
from detalbert.corpus import api_text, sources
from detalbert.corpus.read_text import TextReader
from detalbert.corpus.sentences import _ABBREVIATION, split_sentences
from detalbert.corpus.sources import Part, cut_parts, group, open_text
from detalbert.errors import UserError
from detalbert.settings.text import SourceConfig
from tests.conftest import max_examples
from tests.corpus.documents import CODE, join, read, write_lines, write_sources
from tests.fakes.s3 import Faults
from tests.fakes.text import contexts


@pytest.mark.parametrize("exact", [False, True])
def test_every_source_gives_the_same_documents(exact: bool, tmp_path: Path) -> None:
    texts = [*contexts(40), 'A "quoted" word, a comma; é.']
    if exact:
        texts += [CODE, " \n", "\ttab", "😀"]
    places: dict[Any, dict[str, str]] = {**write_sources(tmp_path, texts)}
    places |= {f"file://{place}": options for place, options in places.items()}

    for place, options in places.items():
        for part_bytes in (300, 1 << 20):
            assert read(place, part_bytes, exact, **options) == texts, place


def test_text_is_read_through_faults(s3: tuple[Any, Faults], tmp_path: Path) -> None:
    client, faults = s3
    texts = contexts(60)
    objects = {
        "text/1.txt": "\n".join(texts[:30]).encode(),
        "text/2.txt": "\n".join(texts[30:]).encode(),
        "textbook.txt": b"Not below text/.",
        "documents/a.jsonl.zst": write_lines(tmp_path / "a.jsonl.zst", texts).read_bytes(),
        "documents/a.txt": CODE.encode(),
    }
    for key, body in objects.items():
        client.put_object(Bucket="bucket", Key=key, Body=body)
    faults.kinds = ["fine", "500", "truncated"]

    assert read("s3://bucket/text", part_bytes=1500, exact=False) == texts
    assert read("s3://bucket/documents", part_bytes=1500) == [*texts, CODE]

    assert faults.done["truncated"]
    assert faults.done["500"]


SERVICE = "sts"


def test_the_api_reference_is_prose_of_the_newest_versions() -> None:
    paths = {path.parent.parent.name: path for path in api_text.find_services()}
    assert len(paths) == len(api_text.find_services()) > 100
    path = paths[SERVICE]
    versions = [folder.name for folder in path.parent.parent.iterdir() if folder.is_dir()]
    assert path.parent.name == max(versions)

    texts = api_text.read_service(path)

    assert len(texts) == len(set(texts)) > 20
    markup = re.compile(r"</?\w+>|&\w+;|  |\n\n")
    assert all(len(text) >= 200 and not markup.search(text) for text in texts)
    source = open_text(SourceConfig("botocore"), "data.text", "train")
    assert source.fingerprint == f"botocore {botocore.__version__}"
    (part,) = [part for part in source.parts if part.address == str(path)]
    assert join(TextReader().read(part)) == texts


_LETTERS = st.sampled_from([*"aB1.!? \n'\"”)([“À", ". ", ".\n", "Dr. ", "e.g. "])


@given(st.lists(_LETTERS, max_size=40).map("".join))
@max_examples(500)
def test_sentences_end_where_the_rule_says(text: str) -> None:
    """The rule as it would be written if speed did not matter."""
    end = re.compile(r"""(?<=[.!?])(["'”’“)\]]*)\s+(?=["'“‘(\[]?[A-Z0-9À-Þ])|\n+""")
    sentences = []
    begin = 0
    for match in end.finditer(text):
        # After closing marks, or before line ends.
        stop = match.start() if match.group(1) is None else match.end(1)
        if not _ABBREVIATION.search(text, max(0, begin - 1, stop - 12), stop):
            sentences.append(text[begin:stop].strip())
            begin = match.end()
    sentences.append(text[begin:].strip())

    assert split_sentences(text) == [sentence for sentence in sentences if sentence]


def test_a_hub_data_set_has_a_column_of_text(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = SimpleNamespace(column_names=["text"])
    monkeypatch.setattr(hub, "load_named", lambda *_, **__: rows)
    assert sources.hub_rows("x", "data.text") is rows
    rows.column_names = ["id", "body"]
    with pytest.raises(UserError, match="data.text: 'x' has no column 'text', but id, body"):
        sources.hub_rows("x", "data.text")


def test_a_part_of_a_hub_data_set_is_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [{"text": text} for text in ("One.", "Two.", "", "Three.", "Four.")]
    rows = datasets.Dataset.from_list(texts)
    monkeypatch.setattr(hub, "load_named", lambda *_, **__: rows)
    part = Part("hub", "x", 4, 5, begin=1)
    assert [block.text for block in TextReader().read(part)] == ["Two.", "Three."]


def shard_sizes(parts: list[Part], least: int) -> list[list[int]]:
    """Return the bytes of the parts of each shard."""
    groups = group(cut_parts(parts, least), lambda part: part.text_bytes, least)
    return [[part.text_bytes for part in parts] for parts in groups]


def test_a_long_text_is_cut_and_short_ones_share_a_shard() -> None:
    long = Part("line", "a", 900, 900)
    short = Part("json_lines", "b", 90, 90)
    assert shard_sizes([long], 400) == [[400], [400], [100]]
    assert shard_sizes([short] * 7, 400) == [[90] * 5, [90] * 2]

    in_one = long._replace(form="json")  # it cannot be cut
    assert shard_sizes([in_one, short, long], 400) == [[900], [90, 400], [400], [100]]

    rows = Part("hub", "x", 6_000_000, 6_000_000, unit=4_000)  # rows are not bytes
    assert shard_sizes([rows], 500_000 * 4_000) == [[2_000_000_000]] * 12


@pytest.mark.parametrize("name", [".txt", ".jsonl", ".parquet", ".csv"])
def test_a_file_that_is_gone_when_it_is_read_is_one_line(name: str, tmp_path: Path) -> None:
    write_sources(tmp_path, contexts(40))
    path = next(path for path in tmp_path.rglob("*") if path.name.endswith(name))
    key = "body" if name in (".parquet", ".csv") else "text"
    text = open_text(SourceConfig(str(path), text_key=key), "data.text", "train")

    path.unlink()

    with pytest.raises(UserError, match=f"^{re.escape(str(path))}: cannot read it: ") as error:
        list(TextReader().read(text.parts[0]))
    assert "\n" not in str(error.value)

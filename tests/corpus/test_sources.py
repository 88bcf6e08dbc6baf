"""Text of every kind gives the same documents, however it is cut; where it is cut."""

import gzip
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import botocore
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detalbert import hub
from detalbert.corpus import api_text, sources
from detalbert.corpus.examples import cut_examples
from detalbert.corpus.read_text import TextReader
from detalbert.corpus.sentences import _ABBREVIATION, split_sentences
from detalbert.corpus.sources import Part, cut_parts, group, open_text
from detalbert.errors import UserError
from detalbert.settings.text import SourceConfig
from tests.conftest import max_examples
from tests.corpus.documents import CODE, join, read, write_lines, write_sources
from tests.fakes.text import contexts

NO_LINE_END = st.characters(
    codec="utf-8", exclude_characters="\n\r\x85\u2028\u2029\x0b\x0c\x1c\x1d\x1e"
)


@pytest.mark.parametrize("exact", [False, True])
def test_every_source_gives_the_same_documents(exact: bool, tmp_path: Path) -> None:
    texts = [*contexts(40), 'A "quoted" word, a comma; é.']
    texts += [CODE, " \n", "\ttab", "😀"] if exact else []
    places: dict[Any, dict[str, str]] = {**write_sources(tmp_path, texts)}
    places |= {f"file://{place}": how for place, how in places.items()}
    if not exact:
        for name, between in (("a.txt", "\n"), ("a.md", "\n\n \n")):
            (tmp_path / name).write_text(between.join(texts))
            (tmp_path / f"{name}.gz").write_bytes(gzip.compress(between.join(texts).encode()))
            how = {"article": "line" if name == "a.txt" else "blank_line"}
            places |= dict.fromkeys((tmp_path / name, tmp_path / f"{name}.gz"), how)
    for place, how in places.items():
        for part_bytes in (300, 1 << 20):
            assert read(place, part_bytes, exact, **how) == texts, place


@given(st.lists(st.text(NO_LINE_END, max_size=30), max_size=12), st.integers(1, 40), st.booleans())
@max_examples(150)
def test_parts_share_out_every_line_once(
    tmp_path_factory: Any, lines: list[str], part_bytes: int, ends: bool
) -> None:
    path = tmp_path_factory.mktemp("lines") / "a.txt"
    path.write_bytes(("\n".join(lines) + "\n" * ends).encode())
    if path.stat().st_size:
        assert read(path, part_bytes, exact=False) == [
            line.strip() for line in lines if line.strip()
        ]


def test_text_is_read_through_faults(s3: Any, tmp_path: Path) -> None:
    client, faults = s3
    texts = contexts(60)
    client.put_object(Bucket="bucket", Key="text/1.txt", Body="\n".join(texts[:30]).encode())
    client.put_object(Bucket="bucket", Key="text/2.txt", Body="\n".join(texts[30:]).encode())
    client.put_object(Bucket="bucket", Key="textbook.txt", Body=b"Not below text/.")
    packed = write_lines(tmp_path / "a.jsonl.zst", texts).read_bytes()
    for name, body in (("a.jsonl.zst", packed), ("a.txt", CODE.encode())):
        client.put_object(Bucket="bucket", Key=f"documents/{name}", Body=body)
    faults.kinds = ["fine", "500", "truncated"]
    assert read("s3://bucket/text", 1500, exact=False) == texts
    assert read("s3://bucket/documents", 1500) == [*texts, CODE]
    assert faults.done["truncated"] and faults.done["500"]


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
    source = open_text(SourceConfig("botocore"), "data.text", "train")
    assert source.fingerprint == f"botocore {botocore.__version__}"
    part = next(part for part in source.parts if part.address == str(path))
    assert join(TextReader().read(part)) == texts


def test_sentences() -> None:
    said = split_sentences('Dr. Who came. "Who?" He left.')
    assert said == ["Dr. Who came.", '"Who?"', "He left."]
    said = split_sentences("In the U.S. Army of 1.5 men.\nNew line")
    assert said == ["In the U.S. Army of 1.5 men.", "New line"]
    assert split_sentences(" \n ") == []


_LETTERS = st.sampled_from([*"aB1.!? \n'\"”)([“À", ". ", ".\n", "Dr. ", "e.g. "])


@given(st.lists(_LETTERS, max_size=40).map("".join))
@max_examples(500)
def test_sentences_end_where_the_rule_says(text: str) -> None:
    """The rule as it would be written if speed did not matter."""
    end = re.compile(r"""(?<=[.!?])(["'”’“)\]]*)\s+(?=["'“‘(\[]?[A-Z0-9À-Þ])|\n+""")
    sentences, begin = [], 0
    for found in end.finditer(text):
        stop = found.end(1) if found.group(1) is not None else found.start()
        if not _ABBREVIATION.search(text, max(0, begin - 1, stop - 12), stop):
            sentences.append(text[begin:stop].strip())
            begin = found.end()
    sentences.append(text[begin:].strip())
    assert split_sentences(text) == [sentence for sentence in sentences if sentence]


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), max_size=60), st.integers(5, 30))
def test_examples_hold_what_fits_of_one_document(sentences: Any, capacity: int) -> None:
    if sentences:
        sentences[-1] = (sentences[-1][0], True)
    tokens = np.array([n for n, _ in sentences], np.int64)
    last = np.array([e for _, e in sentences], bool)
    lengths, counts = cut_examples(tokens, last, capacity)
    assert lengths.sum() == sum(n for n, _ in sentences) and counts.sum() == len(lengths)
    sizes = [e.sum() for e in np.split(lengths, np.cumsum(counts)[:-1])] if len(counts) else []
    assert all(0 < size <= capacity for size in sizes)
    ends = np.cumsum([n for n, _ in sentences])[[e for _, e in sentences]] if sentences else []
    assert set(ends) <= {0, *np.cumsum(sizes)}  # no example goes past the end of a document


def test_a_hub_data_set_has_a_column_of_text(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = SimpleNamespace(column_names=["text"])
    monkeypatch.setattr(hub, "load_named", lambda *_, **__: rows)
    assert sources.hub_rows("x", "data.text") is rows
    rows.column_names = ["id", "body"]
    with pytest.raises(UserError, match="data.text: 'x' has no column 'text', but id, body"):
        sources.hub_rows("x", "data.text")


def test_a_long_text_is_cut_and_short_ones_share_a_shard() -> None:
    def sizes(parts: list[Part], least: int) -> list[list[int]]:
        groups = group(cut_parts(parts, least), lambda part: part.text_bytes, least)
        return [[part.text_bytes for part in some] for some in groups]

    long, short, whole = Part("line", "a", 900, 900), Part("json_lines", "b", 90, 90), "json"
    assert sizes([long], 400) == [[400], [400], [100]]
    assert sizes([short] * 7, 400) == [[90] * 5, [90] * 2]
    assert sizes([long._replace(form=whole), short, long], 400) == [[900], [90, 400], [400], [100]]
    rows = Part("hub", "x", 6_000_000, 6_000_000, unit=4_000)
    assert sizes([rows], 500_000 * 4_000) == [[2_000_000_000]] * 12  # rows are not bytes


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

"""What people have as text: its documents, or one line that names the file and what to do."""

import gzip
import json
import logging
from collections import Counter
from io import BytesIO

import pandas
import pytest
from datasets import Dataset

from detalbert.addresses import zstd
from detalbert.corpus.text import open_texts, read_documents
from detalbert.errors import UserError
from tests.corpus.documents import documents_config

TEXTS = ["Un café.", "Two. Three\u2028four.", "Five."]
ROWS = [{"id": number, "text": text} for number, text in enumerate(TEXTS)]


def read(folder, text, **data):
    """Return the documents of a source in a folder."""
    source = text if isinstance(text, dict) else {"source": text}
    source = {**source, "source": str(folder / source["source"])}
    config = documents_config([source], folder, **data)
    documents = []
    for unit in open_texts(config)[0]:
        documents += read_documents(unit, Counter())
    return documents


def lines(rows=ROWS, encoding="utf-8"):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode(encoding)


def named(key):
    return [{key: text} for text in TEXTS]


def parquet(rows=ROWS):
    file = BytesIO()
    pandas.DataFrame(list(rows)).to_parquet(file)
    return file.getvalue()


PLAIN = "\n".join(TEXTS)
CARD = b"---\nlicense: mit\n---\n"
Files = dict[str, bytes]
# What is there, the source, keys of data.
READ = {
    "t05 schemas": ({"a.jsonl": lines(ROWS[:1]), "b.jsonl": lines(named("text")[1:])}, "", {}),
    "t09 json.gz": ({"a.json.gz": gzip.compress(lines())}, "", {}),
    "t09b a list": ({"a.json": json.dumps(ROWS).encode()}, "a.json", {}),
    "t14 key": ({"a.jsonl": lines(named("content"))}, {"source": "", "text_key": "content"}, {}),
    "t18 blank": ({"a.jsonl": lines([{"text": " \n"}, {"text": None}, *ROWS])}, "", {}),
    "t20 CRLF": ({"a.txt": PLAIN.replace("\n", "\r\n").encode()}, "", {"article": "line"}),
    "t21 Parquet": ({"a.parquet": parquet()}, "", {}),
    "t22 ndjson.zst": ({"x/a.ndjson.zst": zstd.compress(lines())}, "", {}),
    "t26 pattern": ({"a.parquet": parquet(), "a.csv": b"x"}, "*.parquet", {}),
    "t31 mark": ({"a.txt": PLAIN.encode("utf-8-sig"), "a.html": b"x"}, "", {"article": "line"}),
    "UTF-16": ({"a.jsonl": lines(encoding="utf-16")}, "", {}),
    "hidden": (
        {"a.jsonl": lines(), ".ipynb_checkpoints/a.jsonl": lines(), "._a.jsonl": b"x"},
        "",
        {},
    ),
    "hub": (
        {"README.md": CARD, "data/train-0.parquet": parquet(), "data/test-0.parquet": parquet()},
        "",
        {},
    ),
    "blank lines": ({"a.txt": "\n\n\n".join(TEXTS).encode()}, "", {"article": "blank_line"}),
    "members": (
        {"a.txt.gz": b"".join(gzip.compress(f"{t}\n".encode()) for t in TEXTS)},
        "",
        {"article": "line"},
    ),
}


def write_files(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


@pytest.mark.parametrize("have", READ)
def test_it_is_read(have, tmp_path):
    files, source, data = READ[have]
    write_files(tmp_path, files)
    assert read(tmp_path, source, **data) == TEXTS


def test_a_name_of_the_hub_is_a_data_set(tmp_path, monkeypatch):
    rows = Dataset.from_list(ROWS)
    monkeypatch.setattr("detalbert.hub.load_rows", lambda name, **keys: rows)
    ((unit,),) = open_texts(documents_config([{"source": "org/text"}], tmp_path))
    assert list(read_documents(unit, Counter())) == TEXTS


# What is there, the source, and what the line names.
REFUSED = {
    "wikiextractor": ({"AA/wiki_00": lines()}, "", "no file of .txt"),
    "t06 mds": (
        {"index.json": b'{"shards": []}'},
        "index.json",
        "no 'text' .there: shards.*text_key",
    ),
    "t10 wikitext": (
        {"wiki.train.tokens": b"x"},
        "wiki.train.tokens",
        "tokens: not a file of text",
    ),
    "t12 messages": (
        {"a.jsonl": lines([{"messages": []}])},
        "",
        "a.jsonl: line 1: no 'text'.*text_key",
    ),
    "t16 lfs": ({"a.jsonl.zst": b"version https://git-lfs\n"}, "", "a.jsonl.zst"),
    "t23 cut": ({"a.jsonl": lines()[:-9]}, "", "a.jsonl: line 3 is not JSON"),
    "t24 bad byte": (
        {"a.jsonl": lines(ROWS[:1], encoding="latin-1")},
        "",
        "a.jsonl: .*codec can't decode .*save it as",
    ),
    "t28 keys": (
        {"a.jsonl": lines(), "b.jsonl": lines(named("content"))},
        "",
        "b.jsonl: line 1: no 't",
    ),
    "t30 no header": ({"a.tsv": b"1\tOne.\n"}, "a.tsv", "a.tsv: not a file of text.*save it"),
    "binary": ({"a.parquet": parquet([{"text": b"x"}])}, "", "a.parquet: row 1: .*bytes.*convert"),
    "cut gz": ({"a.txt.gz": gzip.compress(b"x" * 99)[:-9]}, "", "a.txt.gz"),
    "no Parquet": ({"a.parquet": b"PAR1"}, "", "a.parquet"),
    "both": ({"a.txt": b"x", "b.jsonl": lines()}, "", "rows and of plain text.*pattern"),
    "twice": ({"a.txt": b"x", "a.txt.gz": gzip.compress(b"x")}, "", "a.txt.gz.*delete one"),
    "nothing": ({}, "none.txt", "none.txt: no such file or folder"),
}


@pytest.mark.parametrize("have", REFUSED)
def test_it_is_one_line(have, tmp_path):
    files, source, line = REFUSED[have]
    write_files(tmp_path, files)
    with pytest.raises(UserError, match=line) as error:
        read(tmp_path, source)
    assert "\n" not in str(error.value)


def test_held_out_files_and_rows_without_text_are_said(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    folder = tmp_path / "in"  # pytest's own folder has "test" in its name
    write_files(folder, {"train.jsonl": lines([{"text": None}]), "test.jsonl": lines()})
    (units,) = open_texts(documents_config(folder, tmp_path))
    skipped = Counter()
    for unit in units:
        list(read_documents(unit, skipped))
    assert "maybe held-out data, and read" in caplog.text
    assert "test.jsonl" in caplog.text
    assert skipped.total() == 1

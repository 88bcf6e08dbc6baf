"""Rows of files: every form read back as it was written, every pollution told, one line a fault."""

import bz2
import csv
import gzip
import io
import json
import lzma
import os
import random
from pathlib import Path

import openpyxl
import pandas
import pyarrow as pa
import pyarrow.fs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from detalbert.addresses import find_files, open_text, zstd
from detalbert.command import existing_file
from detalbert.errors import Unavailable, UserError
from detalbert.reading.records import READERS, read_rows
from tests.conftest import max_examples
from tests.fakes import s3

NAMES = ["id", "question", "context", "answer"]
ROWS = [
    {"id": "1", "question": "Who?", "context": 'Ada met Bo, who said:\n"No".', "answer": "Ada"},
    {"id": "2", "question": "Wer, où?", "context": "京都 ist 古い\u2028; a|b\tc", "answer": ""},
]


def read(path, **options):
    return [row for _, row in read_rows(str(path), **options)]


def to_csv(rows, separator=",", **options):
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, list(next(iter(rows))), delimiter=separator, **options)
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def to_lines(rows):
    return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)


TEXTS = {
    "list": (".json", json.dumps),
    "data": (".json", lambda rows: json.dumps({"version": 1, "data": rows}, indent=1)),
    "lines named json": (".json", to_lines),
    "lines": (".jsonl", to_lines),
    "ndjson": (".ndjson", lambda rows: to_lines(rows).replace("\n", "\r\n\n")),
    "comma": (".csv", to_csv),
    "semicolon": (".csv", lambda rows: to_csv(rows, ";", lineterminator="\n")),
    "bar": (".csv", lambda rows: to_csv(rows, "|", quoting=csv.QUOTE_ALL, lineterminator="\r")),
    "tab": (".tsv", lambda rows: "\n" + to_csv(rows, "\t").rstrip("\r\n")),
}
PACKERS = {
    "": bytes,
    ".gz": lambda data: gzip.compress(data[:9]) + gzip.compress(data[9:]),  # two members
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda data: zstd.compress(data, options={zstd.CompressionParameter.window_log: 28}),
}


@pytest.mark.parametrize("form", TEXTS)
@pytest.mark.parametrize("packed", PACKERS)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_every_form_is_read_as_it_was_written(form, packed, encoding, tmp_path):
    ending, write = TEXTS[form]
    path = tmp_path / f"rows{ending}{packed}"
    path.write_bytes(PACKERS[packed](write(ROWS).encode(encoding)))
    assert read(path) == ROWS
    with open_text(str(path)) as file:
        assert file.read() == write(ROWS)


characters = st.sampled_from("ab Zé京\U0001f600,;|\t\"'\\\n\r=-0")
cells = st.text(characters, max_size=12)


def write_book(path, rows):
    book = openpyxl.Workbook()
    book.active.title = "Questions"
    book.active.append(list(rows[0]))
    for row in rows:
        book.active.append(list(row.values()))
    book.save(path)


@max_examples(100)
@given(
    rows=st.lists(st.lists(cells, min_size=4, max_size=4), min_size=1, max_size=5),
    names=st.permutations(NAMES),
    separator=st.sampled_from(",;|\t"),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
    line_end=st.sampled_from(["\n", "\r\n"]),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
)
def test_drawn_rows_of_each_writer_are_read_back(
    rows, names, separator, encoding, line_end, quoting, tmp_path_factory
):
    # A row of empty cells is none. Python's writer quotes \r only if it ends lines with it.
    drawn = [dict(zip(names, [f"x{row[0]}", *row[1:]], strict=True)) for row in rows]
    without_cr = [{name: cell.replace("\r", "") for name, cell in row.items()} for row in drawn]
    folder = tmp_path_factory.getbasetemp()
    options = {"lineterminator": line_end, "quoting": quoting}
    written = drawn if line_end == "\r\n" else without_cr
    text = to_csv(written, separator, **options)
    (folder / "c.csv").write_text(text, encoding=encoding, newline="")
    assert read(folder / "c.csv") == written

    frame = pandas.DataFrame(without_cr)
    frame.to_csv(folder / "p.csv", sep=separator, encoding=encoding, index=False, **options)
    assert read(folder / "p.csv") == without_cr
    frame.to_json(folder / "p.jsonl", orient="records", lines=True)
    assert read(folder / "p.jsonl") == without_cr
    frame.to_parquet(folder / "p.parquet")
    assert read(folder / "p.parquet") == without_cr
    safe = [{name: cell.replace("=", "e") for name, cell in row.items()} for row in without_cr]
    write_book(folder / "o.xlsx", safe)
    assert read(folder / "o.xlsx") == safe


def pollute(kind, dice, lines):
    """Return lines of CSV, a header first, with a pollution of one kind."""
    at = dice.randrange(1, len(lines))
    cells = lines[at].split(",")
    cell = dice.randrange(len(cells) - 1)
    changed = {
        "a separator more": [*cells[:cell], "", *cells[cell:]],
        "a separator less": [*cells[:cell], "".join(cells[cell : cell + 2]), *cells[cell + 2 :]],
        "a quote more": [*cells[:cell], f'"{cells[cell]}', *cells[cell + 1 :]],
        "a quote inside": [*cells[:cell], f'5"{cells[cell]}', *cells[cell + 1 :]],
        "no separator before a quote": [*cells[:-2], f'{cells[-2]}"a, b"'],
        "another separator": [";".join(cells)],
        "a NUL": [f"{cells[0]}\0", *cells[1:]],
    }
    others = {
        "a quote that swallows rows": [lines[0], '"' + lines[1], *lines[2:-1], lines[-1] + '"'],
        "a title above": ["Questions of May", *lines],
        "a wide title above": ["Questions,,,", *lines],
        "a header twice": [lines[0], *lines],
        "a header between": [*lines[:at], lines[0], *lines[at:]],
        "two names equal": [lines[0].replace("question", "context"), *lines[1:]],
        "another table": [*lines, "a,b", "1,2"],
        "another quote": [*lines, "9,'q, 9',c9,a9"],
        "a quote after a backslash": [*lines, '9,"q \\"9\\", 9",c9,a9'],
        "a space before a quote": [*lines, '9, "q, 9",c9,a9'],
    }
    if kind in others:
        return others[kind]
    return [*lines[:at], ",".join(changed[kind]), *lines[at + 1 :]]


KINDS = (
    "a separator more",
    "a separator less",
    "a quote more",
    "a quote inside",
    "no separator before a quote",
    "another separator",
    "a NUL",
    "a quote that swallows rows",
    "a title above",
    "a wide title above",
    "a header twice",
    "a header between",
    "two names equal",
    "another table",
    "another quote",
    "a quote after a backslash",
    "a space before a quote",
)


@pytest.mark.parametrize("kind", KINDS)
def test_a_polluted_table_is_refused_with_its_line(kind, tmp_path):
    """The kinds of Pollock's 2,290 public tables, and those of people."""
    path = tmp_path / "t.csv"
    clean = [",".join(NAMES), *(f"{row},q{row},c{row},a{row}" for row in range(1, 9))]
    path.write_text("\n".join(clean))
    assert len(read(path)) == 8
    for seed in range(20):
        dice = random.Random(seed)
        path.write_text("\n".join(pollute(kind, dice, clean)))
        with pytest.raises(UserError, match=rf"^{path}: line \d+: "):
            read(path)


def test_a_header_of_two_lines_and_a_row_of_blanks(tmp_path):
    (tmp_path / "t.csv").write_text('"a\n(b)";c\n" "; \n"1,5";"2,5"\n')
    rows = [(" ", " "), ("1,5", "2,5")]
    assert read(tmp_path / "t.csv") == [{"a\n(b)": first, "c": second} for first, second in rows]


def test_one_row_of_two_is_told(tmp_path, caplog):
    (tmp_path / "t.csv").write_text('id,a,b\n1,"x,y\n2,z",w\n3,"x, y\nand z",w\n')
    assert [row["id"] for row in read(tmp_path / "t.csv")] == ["1", "3"]
    (line,) = caplog.messages
    assert line.endswith("t.csv: line 2: a quote may have made one row of two")


def book(*cells, sheets=("S",)):
    workbook = openpyxl.Workbook()
    workbook.active.title = sheets[0]
    for name in sheets[1:]:
        workbook.create_sheet(name).append(["a"])
    workbook.active.append(["a", "b"])
    workbook.active.append(list(cells))
    file = io.BytesIO()
    workbook.save(file)
    return file.getvalue()


def swelling(pack):
    """A small file of 40 MB."""
    return pack(b'{"question": "' + bytes(40_000_000))


def one_text(text):
    """A Parquet file that has a text, once, and ten rows with it."""
    numbers = pa.array([0] * 10, pa.int32())
    column = pa.DictionaryArray.from_arrays(numbers, pa.array([text.decode()]))
    file = io.BytesIO()
    parquet.write_table(pa.table({"a": column}), file, compression="zstd")
    return file.getvalue()


REFUSED = {
    "t.docx": (b"PK", "does not end in .json, .jsonl"),
    "t.ods": (b"PK", "does not end in"),
    "t.gz": (b"", "does not end in"),
    "latin.csv": ("a,b\nCafé,x".encode("latin-1"), "'utf-8' codec can't decode byte 0xe9"),
    "sjis.jsonl": ('{"a": "日本"}'.encode("shift_jis"), "save it as UTF-8"),
    "half.csv": ("a,b\n1,2".encode("utf-16-le"), "NUL"),
    "open.csv": (b'a,b\n1,"2\n3,4', "line 2: unexpected end of data"),
    "odd.jsonl": (b'{"a": 1}\n\n{"a": \n', "line 3 is not JSON"),
    "deep.jsonl": (b"[" * 100_000, "line 1 is not JSON"),
    "swells.jsonl.zst": (swelling(zstd.compress), "unpacks to more than 1,000 times"),
    "swells.json.xz": (swelling(lzma.compress), "unpacks to more than 1,000 times"),
    "swells.parquet": (swelling(one_text), "unpacks to more than 1,000 times"),
    "row.jsonl": (b'{"a": 1}\n[1]\n', "line 2 is list, not a mapping"),
    "odd.json": (b'{"data": [{"a": 1},]}', "line 1 column "),
    "text.json": (b'{"data": [1, 2]}', "row 1 is int"),
    "number.json": (b"12", "not iterable"),
    "cut.csv.gz": (gzip.compress(b"a,b\n")[:-9], "end-of-stream"),
    "odd.csv.zst": (b"a,b\n", ".zst: "),
    "odd.parquet": (b"PAR1", ".parquet: "),
    "odd.xlsx": (b"PK", "not a zip file"),
    "formula.xlsx": (book("x", "=1+1"), "sheet 'S', row 2: a formula"),
    "wide.xlsx": (book("x", "y", "z"), "sheet 'S', row 2: 3 cells under 2 names"),
    "twice.xlsx": (
        book("a", "b", sheets=("S", "T")),
        "'S' of S, T (data.sheet), row 2: the header",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_as_its_ending_says_is_one_line(name, tmp_path):
    content, problem = REFUSED[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError) as error:
        read(tmp_path / name)
    assert str(error.value).startswith(str(tmp_path / name))
    assert problem in str(error.value)


def test_all_files_of_another_encoding_are_named_at_once(tmp_path):
    (tmp_path / "utf8.csv.xz").write_bytes(lzma.compress("a\né\n".encode()))
    (tmp_path / "cut.csv.xz").write_bytes(b"a")
    os.mkfifo(tmp_path / "pipe.csv.xz")
    for number in range(58):
        (tmp_path / f"{number}.csv.xz").write_bytes(lzma.compress(b"a\n\xe9\n"))
    with pytest.raises(UserError, match=r"so it is with 58 files there: 0\.csv\.xz, 1\.csv"):
        read(tmp_path / "7.csv.xz")


def test_cells_of_a_sheet_are_as_python_prints_them(tmp_path):
    path = tmp_path / "b.xlsx"
    date = pandas.Timestamp("2024-03-09").to_pydatetime()
    for cell, text in [
        (1500, "1500"),
        (2.5, "2.5"),
        (True, "True"),
        (date, "2024-03-09 00:00:00"),
    ]:
        path.write_bytes(book("x", cell, sheets=("Notes", "Data")))
        assert read(path) == [{"a": "x", "b": text}]
    assert read(path, sheet="Data") == []
    with pytest.raises(UserError, match=r"no sheet 'X' of Notes, Data \(data.sheet\)"):
        read(path, sheet="X")
    (tmp_path / "t.csv").write_text("a\n1\n")
    with pytest.raises(UserError, match=r"^data.sheet: .*t.csv is no workbook"):
        read(tmp_path / "t.csv", sheet="Data")


def test_numbers_of_rows_and_empty_columns_are_no_cells(tmp_path):
    (tmp_path / "t.csv").write_text(",question,,\n0,Who?,,\n,,,\n1,Why?,,\n")
    assert [row["question"] for row in read(tmp_path / "t.csv")] == ["Who?", "Why?"]


def find(address, endings=READERS):
    return find_files(address, key="k", endings=endings)


def make(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("a\n1\n")


def test_files_of_a_folder_or_pattern(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make(
        Path("d"),
        "b.csv",
        "a.csv.gz",
        "sub/c.jsonl",
        "README.md",
        ".x.csv",
        "_tmp/y.csv",
        "~$b.xlsx",
    )
    make(Path("other"), "e.csv")
    Path("d/link").symlink_to("../other")
    files = ["d/a.csv.gz", "d/b.csv", "d/link/e.csv", "d/sub/c.jsonl"]
    assert find("d") == find("./d/") == files
    assert find("d/*.csv*") == files[:2]
    assert find("[d]/*", endings=[".md"]) == ["d/README.md"]
    assert find("d/README.md") == ["d/README.md"]  # as it is named
    monkeypatch.chdir("d")
    assert find("*.csv") == find("./*.csv") == ["b.csv"]
    assert find(".") == find("./") == [file.removeprefix("d/") for file in files]
    monkeypatch.chdir(tmp_path)
    for address in ("", "no", "no/*.csv", "d/*.txt"):
        with pytest.raises(UserError, match="^k: "):
            find(address)
    make(Path("d"), "a.csv")
    with pytest.raises(UserError, match=r"^d/a.csv.gz: there is d/a.csv, too"):
        find("d")
    Path("d/sub/circle").symlink_to("../../d")
    with pytest.raises(UserError, match=r"^d: links to folders in it lead in a circle"):
        find("d")


def test_a_bucket_is_read_as_a_folder(tmp_path, monkeypatch):
    with s3.bucket(monkeypatch) as (client, faults):
        faults.spoiled = (".csv",)
        for name in ("q/a.csv", "q/sub/b, ü.csv", "q/_x.csv", "q/c.txt"):
            client.put_object(Bucket="bucket", Key=name, Body=b"a,b\n1,2\n")
        files = ["s3://bucket/q/a.csv", "s3://bucket/q/sub/b, ü.csv"]
        assert find("s3://bucket/q") == find("s3://bucket/q/") == files
        assert find("s3://bucket/q/*.csv") == files[:1]
        assert find(files[0]) == files[:1]
        assert read(files[1]) == [{"a": "1", "b": "2"}]
        for address in ("s3://bucket/none.csv", "s3://nobody/none.csv", "ftp://bucket/a.csv"):
            with pytest.raises(UserError) as error:
                read(address)
            assert type(error.value) is UserError
            assert str(error.value).startswith(address)
        with pytest.raises(UserError, match="s3://nobody/q"):
            find("s3://nobody/q")
        faults.kinds = ["500"]
        with pytest.raises(Unavailable):
            read(files[0])
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(Unavailable, match="^s3://bucket/q: "):
        find("s3://bucket/q")


def test_a_pipe_is_read_once():
    reading_end, writing_end = os.pipe()
    with open(writing_end, "wb") as file:
        file.write(to_csv(ROWS).encode())
    with open_text(str(existing_file(f"/dev/fd/{reading_end}"))) as text:
        assert text.read() == to_csv(ROWS)

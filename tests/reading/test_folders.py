"""Folders as people, tools and file servers leave them: what is data in them, and what is not."""

import gzip
from pathlib import Path
from typing import Any

import pytest

from detalbert.errors import UserError
from tests.reading.files import read_documents, read_questions
from tests.reading.test_text_files import LINES, PLAIN, TEXTS, write

ROW = '{"text": "no data"}\n'

# Files of a folder, the address in it, and the lines that are logged.
PASSED_OVER: dict[str, tuple[dict[str, str | bytes], str, list[str]]] = {
    "a card without metadata": (
        {"a.jsonl": LINES, "README.md": "# A card"},
        "",
        ["1 files are passed over: README.md"],
    ),
    "texts about packed rows": (
        {
            "a.jsonl.gz": gzip.compress(LINES.encode()),
            "README_de.txt": "Eine Seite",
            "LICENSE-MIT.txt": "words of law",
            "checksums.txt": "0a a.jsonl.gz",
            "en_sha256.txt": "0a a.jsonl.gz",
            "vocab.txt": "the",
        },
        "",
        ["5 files are passed over: LICENSE-MIT.txt, README_de.txt, checksums.txt and 2 more"],
    ),
    "a page beside text": (
        {"a.txt": PLAIN, "README.md": "# A page", "License": "law"},
        "",
        ["2 files are passed over: License, README.md"],
    ),
    "a list of addresses among rows": (
        {"1.jsonl": LINES, "2.jsonl": "", "urls.txt": "https://a"},
        "",
        ["1 files are passed over: urls.txt"],
    ),
    "a note beside splits": (
        {"train.jsonl": LINES, "test.jsonl": ROW, "notes.txt": "a note"},
        "",
        ["2 files are passed over: notes.txt, test.jsonl"],
    ),
    "Spark and Databricks": (
        {
            "part-0.json": LINES,
            "_temporary/0/task_1/part-00001.json": ROW,
            "_change_data/cdc.json": ROW,
            "_committed_123": ROW,
            "_started_123": ROW,
        },
        "",
        ["4 files are passed over: _change_data/cdc.json, _committed_123, _started_123 and 1 more"],
    ),
    "a partition of Spark": ({"_lang=en/part-0.json": LINES}, "", []),
    "Iceberg": (
        {"data/a.jsonl": LINES, "metadata/v1.metadata.json": ROW},
        "",
        ["1 files are passed over: metadata/v1.metadata.json"],
    ),
    "the state of a crawl": (
        {"a.jsonl": LINES, "state.json": ROW},
        "",
        ["1 files are passed over: state.json"],
    ),
    "file servers": (
        {"a.jsonl": LINES, "$RECYCLE.BIN/b.jsonl": ROW, "@eaDir/c.jsonl": ROW},
        "",
        ["2 files are passed over: $RECYCLE.BIN/b.jsonl, @eaDir/c.jsonl"],
    ),
    "a pattern": (
        {"europarl.de": PLAIN, "desktop.ini": "[a]", "SHA256SUMS": "0a europarl.de"},
        "*",
        ["2 files are passed over: SHA256SUMS, desktop.ini"],
    ),
    "a pattern of hidden files": ({"_a.jsonl": LINES, "b.jsonl": ROW}, "_*", []),
    "a file by its name": ({"README.md": PLAIN, "b.jsonl": ROW}, "README.md", []),
    "brackets in a name": ({"wiki[2024]/a.txt": PLAIN}, "wiki[2024]", []),
}


def fill(folder: Path, contents: dict[str, Any]) -> Path:
    for name, content in contents.items():
        write(folder / name, content)
    return folder


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings; whether progress is logged, too, depends on the tests before."""
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.parametrize("name", PASSED_OVER)
def test_what_is_no_data_is_passed_over_and_told(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    contents, address, warnings = PASSED_OVER[name]
    folder = fill(tmp_path / "folder", contents)
    assert read_documents(folder / address) == TEXTS
    assert warnings_in(caplog) == [f"data.text: {warning}" for warning in warnings]


def test_text_beside_as_many_rows_is_read_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = fill(tmp_path / "folder", {"a.jsonl": LINES, "b.txt": "A book."})
    assert read_documents(folder) == [*TEXTS, "A book."]
    warning = "1 files of plain text are read beside files of rows: b.txt"
    assert warnings_in(caplog) == [f"data.text: {warning}"]


@pytest.mark.parametrize("address", ["", "*"])
def test_a_folder_without_data_says_what_to_name(address: str, tmp_path: Path) -> None:
    folder = fill(tmp_path / "folder", {"README.md": "# A card"})
    with pytest.raises(UserError, match="no file of data below .* or name a file of it$"):
        read_documents(folder / address)
    assert read_documents(folder / "README.md") == ["# A card"]


def test_a_page_beside_a_file_of_questions_is_none(tmp_path: Path) -> None:
    table = "question,context,answer\nWho?,Ada left.,Ada\n"
    folder = fill(tmp_path / "folder", {"questions.csv": table, "README.md": "# Questions"})
    assert [example.question for example in read_questions(folder)] == ["Who?"]


def test_links_to_folders_are_followed_once(tmp_path: Path) -> None:
    fill(tmp_path / "scratch", {"b/c.jsonl": LINES})
    folder = fill(tmp_path / "folder", {"a.jsonl": ROW})
    (folder / "wiki").symlink_to(tmp_path / "scratch")
    (folder / ".again").symlink_to(folder / "wiki")
    (tmp_path / "scratch" / "circle").symlink_to(tmp_path / "scratch")
    assert read_documents(folder) == ["no data", *TEXTS]
    assert read_documents(folder / "*") == ["no data", *TEXTS]
    (tmp_path / "scratch" / "circle").unlink()
    (tmp_path / "scratch" / "circle").symlink_to(folder)
    assert read_documents(folder) == ["no data", *TEXTS]


def test_downloads_of_the_hub_are_read_by_their_snapshot(tmp_path: Path) -> None:
    folder = fill(tmp_path / "datasets--wiki", {"blobs/3f2a": LINES, "refs/main": "9c1e"})
    link = folder / "snapshots" / "9c1e" / "data" / "train-00000-of-00001.jsonl"
    link.parent.mkdir(parents=True)
    link.symlink_to(folder / "blobs" / "3f2a")
    with pytest.raises(UserError, match="downloads of the hub, each file twice; name ") as error:
        read_documents(folder)
    snapshot = str(error.value).rpartition("; name ")[2]
    assert read_documents(snapshot) == TEXTS


@pytest.mark.parametrize("name", ["b.jsonl", "wiki"])
def test_a_link_to_nothing_is_named(name: str, tmp_path: Path) -> None:
    folder = fill(tmp_path / "folder", {"a.jsonl": LINES})
    (folder / name).symlink_to(tmp_path / "gone")
    with pytest.raises(UserError, match=f"{name}: a link to what is not there; correct or delete"):
        read_documents(folder)
    (folder / name).rename(folder / ".#lock")  # as Emacs makes them
    assert read_documents(folder) == TEXTS


def test_marks_between_documents_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As TinyStories has them: a tokenizer may read them as letters."""
    path = write(tmp_path / "a.txt", f"{TEXTS[0]}\n<|endoftext|>\n{TEXTS[1]}\n")
    read_documents(path)
    (warning,) = warnings_in(caplog)
    assert warning.startswith("data.text: 1 files have <|endoftext|>, which is trained as text")


def test_a_folder_of_held_out_files_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """But not if the word is in the name of the folder that all are in."""
    folder = fill(tmp_path / "test", {"00.jsonl": LINES, "val/00.jsonl": ROW, "eval.jsonl": ROW})
    assert len(read_documents(folder)) == len(TEXTS) + 2
    told = "2 files are trained on that may be held-out data: eval.jsonl, val/00.jsonl"
    assert f"data.text: {told}" in caplog.messages


REPEATED = {
    "gunzip -k": {"a.jsonl.gz": gzip.compress(LINES.encode()), "a.jsonl": LINES},
    "a second download": {"a (1).jsonl": LINES, "a.jsonl": LINES},
    "a copy in another folder": {"a.jsonl": LINES, "old/b.jsonl": LINES},
}


@pytest.mark.parametrize("name", REPEATED)
def test_the_same_text_twice_is_told(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = fill(tmp_path / "folder", REPEATED[name])
    assert read_documents(folder) == TEXTS * 2
    first, second = sorted(folder / file for file in REPEATED[name])
    told = f"1 files seem to hold what others hold: {second} (as {first})"
    assert warnings_in(caplog) == [f"data.text: {told}"]

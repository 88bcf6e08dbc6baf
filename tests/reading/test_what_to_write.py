"""Each row of the pages' tables "what you have, what to write": made here, and read."""

import csv
import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import openpyxl
import pandas
import pyarrow
import pyarrow.parquet
import pytest
import yaml

from data import open_split
from detalbert.corpus.blocks import Block
from detalbert.corpus.read_text import TextReader
from detalbert.corpus.sources import cut_parts, open_text, unpack_sizes
from detalbert.settings.experiment import apply_overrides
from detalbert.settings.hparams import parse_data_config
from detalbert.settings.text import parse_text_config
from detalbert.squad.sources import read_examples
from tests.conftest import ROOT
from tests.corpus.documents import join

CONTEXT = "Ada met Bo in the old town."
ROWS = [
    {"question": "Who met Bo?", "context": CONTEXT, "answer": "Ada"},
    {"question": "Who met Cy?", "context": CONTEXT, "answer": ""},
]
ANSWERS = [(("Ada", 0),), ()]
SQUAD_QAS = [
    {"id": "a", "question": "Who?", "answers": [{"text": "Ada", "answer_start": 0}]},
    {"id": "b", "question": "Why?", "answers": [], "is_impossible": True},
]
SQUAD = {"data": [{"title": "T", "paragraphs": [{"context": CONTEXT, "qas": SQUAD_QAS}]}]}


def table(page: str) -> dict[str, str]:
    """Return the rows of a page's table, without its head and the line below that."""
    lines = (ROOT / page).read_text().partition("| what you have |")[2].splitlines()
    rows = {}
    for line in lines[2:]:
        if not line.startswith("|"):
            break
        have, write = line.strip("|").split(" | ")
        rows[have.strip()] = write.strip()
    return rows


QUESTIONS = table("docs/your-questions.md")
TEXTS = table("pretrain/README.md")


def write_csv(path: Path, rows: list[dict[str, Any]], encoding: str, delimiter: str = ",") -> None:
    with path.open("w", newline="", encoding=encoding) as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)


def write_flat(folder: Path) -> None:
    labels = [{"answer_text": "Ada", "answer_start": "0"}, {"answer_text": "", "answer_start": ""}]
    rows = [
        {"question": row["question"], "context": CONTEXT, **label}
        for row, label in zip(ROWS, labels, strict=True)
    ]
    write_csv(folder / "flat.csv", rows, encoding="utf-8")


def write_label_studio(folder: Path) -> None:
    region = {"start": 0, "end": 3, "text": "Ada", "labels": ["answer"]}
    tasks = [
        {"id": 1, "text": CONTEXT, "question": "Who?", "answer": [region], "annotator": 1},
        {"id": 2, "text": CONTEXT, "question": "Why?", "answer": [], "annotator": 1},
    ]
    (folder / "label_studio.json").write_text(json.dumps(tasks))


def write_prodigy(folder: Path) -> None:
    task = {"text": CONTEXT, "question": "Who?", "_task_hash": 1, "answer": "accept"}
    spans = [{"start": 0, "end": 3, "label": "ANSWER"}]
    tasks = [
        {**task, "spans": spans},
        {**task, "spans": spans, "answer": "reject"},
        {**task, "spans": []},
    ]
    (folder / "prodigy.jsonl").write_text("\n".join(map(json.dumps, tasks)))


def write_hub_folder(folder: Path) -> None:
    inside = folder / "hub_folder" / "data"
    inside.mkdir(parents=True)
    (inside.parent / "README.md").write_text("---\nlicense: mit\n---\n# A data set\n")
    for split in ("train", "validation", "test"):
        rows = pyarrow.Table.from_pylist([*ROWS, *ROWS] if split == "test" else ROWS)
        pyarrow.parquet.write_table(rows, inside / f"{split}-00000-of-00001.parquet")


def write_sheets(folder: Path) -> None:
    write_csv(folder / "sheet.csv", ROWS, encoding="utf-8-sig", delimiter=";")


def write_book(folder: Path) -> None:
    book = openpyxl.Workbook()
    sheet = book.create_sheet("Questions")
    for row in (list(ROWS[0]), *(list(row.values()) for row in ROWS)):
        sheet.append(row)
    book.save(folder / "book.xlsx")


def write_rows(folder: Path) -> None:
    (folder / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in ROWS))


def write_frame(folder: Path) -> None:
    pandas.DataFrame(ROWS).to_json(folder / "frame.json")


def write_marked(folder: Path) -> None:
    answered, unanswered = ROWS
    rows = [answered, {**unanswered, "answer": "n/a"}]
    write_csv(folder / "marked.csv", rows, encoding="utf-8")


def write_haystack(folder: Path) -> None:
    (folder / "haystack.json").write_text(json.dumps(SQUAD))


def write_parquet(folder: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), folder / "rows.parquet")


def save_to_disk(folder: Path) -> None:
    datasets.Dataset.from_list(ROWS).save_to_disk(folder / "saved")


def write_squad(folder: Path) -> None:
    content = json.dumps(SQUAD).encode()
    (folder / "squad.json").write_bytes(content)
    (folder / "squad.json.gz").write_bytes(gzip.compress(content))


# By how the name of the file begins.
MAKERS: dict[str, Callable[[Path], None]] = {
    "book": write_book,
    "sheet": write_sheets,
    "squad": write_squad,
    "rows.jsonl": write_rows,
    "frame": write_frame,
    "flat": write_flat,
    "marked": write_marked,
    "label_studio": write_label_studio,
    "prodigy": write_prodigy,
    "haystack": write_haystack,
    "hub_folder": write_hub_folder,
    "rows.parquet": write_parquet,
    "saved": save_to_disk,
}


def maker_of(name: str, makers: dict[str, Callable[[Path], None]]) -> Callable[[Path], None]:
    """Return what makes a file or folder of a page."""
    return next(make for prefix, make in makers.items() if name.startswith(prefix))


@pytest.mark.parametrize("have", QUESTIONS)
def test_questions(have: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = QUESTIONS[have]
    name = re.search(r"data\.train=([\w.]+)", page)[1]
    maker_of(name, MAKERS)(tmp_path)

    # What the page says to write, as --set takes it.
    values = re.search(r"`(data\.train=.*?)`(?!\w)", page)[1]
    assignments = []
    for key, value in re.findall(r"(data\.\w+)=('[^']*'|\S+)", values):
        unquoted = value.strip("'")
        assignments.append(f"{key}={unquoted}")
    config: dict[str, Any] = {"data": {"cache_dir": str(tmp_path / "cache")}}
    apply_overrides(config, assignments)
    config["data"].setdefault("validation", config["data"]["train"])

    data = parse_data_config(config["data"])
    for split in ("train", "validation"):
        examples = read_examples(open_split(data, split))
        assert [example.answers for example in examples] == ANSWERS


DOCUMENTS = ["One is here. It is short.", "Two is here.", "Three is here.", "Four."]
TEXT_ROWS = [{"id": number, "text": text} for number, text in enumerate(DOCUMENTS)]


def write_lines(path: Path, rows: list[Any], opened: Any = open) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with opened(path, "wt") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))


def renamed(key: str) -> list[dict[str, Any]]:
    """The rows with their text under another name."""
    return [{"id": row["id"], key: row["text"]} for row in TEXT_ROWS]


def write_text_hub_folder(folder: Path) -> None:
    inside = folder / "hub_folder" / "data"
    inside.mkdir(parents=True)
    (inside.parent / "README.md").write_text("---\nlicense: mit\n---\n# A data set\n")
    for split in ("train", "test"):
        rows = TEXT_ROWS if split == "train" else [{"id": 9, "text": "Held out."}]
        table_ = pyarrow.Table.from_pylist(rows)
        pyarrow.parquet.write_table(table_, inside / f"{split}-00000-of-00001.parquet")


def write_wiki(folder: Path) -> None:
    write_lines(folder / "wiki" / "AA" / "wiki_00", TEXT_ROWS)


def write_c4(folder: Path) -> None:
    write_lines(folder / "c4" / "a.json.gz", TEXT_ROWS, opened=gzip.open)


def write_books(folder: Path) -> None:
    (folder / "books.txt").write_text("One is here.\nIt is short.\n" * 100)


def save_text_to_disk(folder: Path) -> None:
    datasets.Dataset.from_list(TEXT_ROWS).save_to_disk(folder / "saved")


def write_table(folder: Path) -> None:
    write_csv(folder / "rows.csv", renamed("body"), encoding="utf-8")


def write_notes(folder: Path) -> None:
    (folder / "notes.txt").write_text("\n\n".join(DOCUMENTS) + "\n")


def write_stack(folder: Path) -> None:
    (folder / "stack").mkdir()
    rows = pyarrow.Table.from_pylist(renamed("content"))
    pyarrow.parquet.write_table(rows, folder / "stack" / "a.parquet")


TEXT_MAKERS: dict[str, Callable[[Path], None]] = {
    "wiki": write_wiki,
    "c4": write_c4,
    "books": write_books,
    "stack": write_stack,
    "hub_folder": write_text_hub_folder,
    "saved": save_text_to_disk,
    "rows.csv": write_table,
    "notes": write_notes,
}
# Of 100 lines each.
BOOKS = ["One is here.\nIt is short.\n" * 49 + "One is here.\nIt is short."] * 2


@pytest.mark.parametrize("have", TEXTS)
def test_texts(have: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    values: dict[str, Any] = {"vocab_size": 300, "cache_dir": str(tmp_path / "cache")}
    for span in re.findall(r"`((?:text|article): [^`]*)`", TEXTS[have]):
        values |= yaml.safe_load(span)
    config = parse_text_config(values)
    (source,) = config.training
    maker_of(source.source, TEXT_MAKERS)(tmp_path)

    text = open_text(source, "data.text", "train", article=config.article)
    reader = TextReader()
    blocks: list[Block] = []
    for part in cut_parts(unpack_sizes(text, tmp_path), part_bytes=1 << 20):
        blocks += reader.read(part)

    assert join(blocks) == (BOOKS if config.article == "100 lines" else DOCUMENTS)

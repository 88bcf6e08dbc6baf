"""Each row of the pages' tables "what you have, what to write": made here, and read."""

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import openpyxl
import pandas
import pytest
import yaml

from data import open_split
from detalbert.settings.experiment import apply_overrides
from detalbert.settings.hparams import parse_data_config
from detalbert.settings.text import parse_text_config
from detalbert.squad.sources import read_examples
from tests.conftest import ROOT
from tests.reading.files import Row, json_lines, parquet, read_documents, table

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
SQUAD = json.dumps(
    {"data": [{"title": "T", "paragraphs": [{"context": CONTEXT, "qas": SQUAD_QAS}]}]}
)
FLAT = [
    {"question": "Who?", "context": CONTEXT, "answer_text": "Ada", "answer_start": "0"},
    {"question": "Why?", "context": CONTEXT, "answer_text": "", "answer_start": ""},
]
REGION = {"start": 0, "end": 3, "text": "Ada", "labels": ["answer"]}
STUDIO = [
    {"id": 1, "text": CONTEXT, "question": "Who?", "answer": [REGION], "annotator": 1},
    {"id": 2, "text": CONTEXT, "question": "Why?", "answer": [], "annotator": 1},
]
TASK = {"text": CONTEXT, "question": "Who?", "_task_hash": 1, "answer": "accept"}
SPANS = [{"start": 0, "end": 3, "label": "ANSWER"}]
PRODIGY = [
    {**TASK, "spans": SPANS},
    {**TASK, "spans": SPANS, "answer": "reject"},
    {**TASK, "spans": []},
]


def page_table(page: str) -> dict[str, str]:
    """Return the rows of a page's table, without its head and the line below that."""
    lines = (ROOT / page).read_text().partition("| what you have |")[2].splitlines()
    rows = {}
    for line in lines[2:]:
        if not line.startswith("|"):
            break
        have, write = line.strip("|").split(" | ")
        rows[have.strip()] = write.strip()
    return rows


QUESTIONS = page_table("docs/your-questions.md")
TEXTS = page_table("pretrain/README.md")


def write_book(path: Path) -> None:
    book = openpyxl.Workbook()
    sheet = book.create_sheet("Questions")
    for row in (list(ROWS[0]), *(list(row.values()) for row in ROWS)):
        sheet.append(row)
    book.save(path)


def write_hub_folder(folder: Path, train: list[Row], test: list[Row]) -> None:
    (folder / "data").mkdir(parents=True)
    (folder / "README.md").write_text("---\nlicense: mit\n---\n# A data set\n")
    for split, rows in {"train": train, "validation": train, "test": test}.items():
        (folder / "data" / f"{split}-00000-of-00001.parquet").write_bytes(parquet(rows))


def write_parts(folder: Path, name: str) -> None:
    folder.mkdir(exist_ok=True)
    for number, row in enumerate(ROWS):
        (folder / name.format(number)).write_text(json_lines([row]))


# By the names of the pages: the content of a file, or what makes a file or folder.
Makers = dict[str, str | bytes | Callable[[Path], Any]]
FILES: Makers = {
    "book.xlsx": write_book,
    "sheet.csv": table(ROWS, separator=";").encode("utf-8-sig"),
    "squad.json": SQUAD,
    "rows.jsonl": json_lines(ROWS),
    "frame.json": pandas.DataFrame(ROWS).to_json(),
    "flat.csv": table(FLAT),
    "normal.csv": pandas.json_normalize(
        [
            {**FLAT[0], "answers": {"text": ["Ada"], "answer_start": [0]}},
            {**FLAT[1], "answers": {"text": [], "answer_start": []}},
        ]
    )
    .drop(columns=["answer_text", "answer_start"])
    .to_csv(index=False),
    "parts": lambda path: write_parts(path, "part-0000{}.json"),
    "xquad.": lambda path: write_parts(path.parent, "xquad.{}.json"),
    "marked.csv": table([ROWS[0], {**ROWS[1], "answer": "n/a"}]),
    "label_studio.json": json.dumps(STUDIO),
    "prodigy.jsonl": json_lines(PRODIGY),
    "haystack.json": SQUAD,
    "hub_folder": lambda path: write_hub_folder(path, ROWS, test=[*ROWS, *ROWS]),
    "rows.parquet": parquet(ROWS),
    "saved": lambda path: datasets.Dataset.from_list(ROWS).save_to_disk(path),
}


def make(name: str, files: Makers) -> None:
    """Make a file or folder of a page in the working folder."""
    content = files[name]
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    if callable(content):
        content(path)
    else:
        path.write_bytes(content.encode() if isinstance(content, str) else content)


@pytest.mark.parametrize("have", QUESTIONS)
def test_questions(have: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = QUESTIONS[have]
    make(re.search(r"data\.train=([\w.]+)", page)[1], FILES)

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
HELD_OUT = [{"id": 9, "text": "Held out."}]
# Of 100 lines each.
BOOKS = ["One is here.\nIt is short.\n" * 49 + "One is here.\nIt is short."] * 2


def renamed(key: str) -> list[Row]:
    """The rows with their text under another name."""
    return [{"id": row["id"], key: row["text"]} for row in TEXT_ROWS]


TEXT_FILES: Makers = {
    "wiki/AA/wiki_00": json_lines(TEXT_ROWS),
    "c4/a.json.gz": gzip.compress(json_lines(TEXT_ROWS).encode()),
    "books.txt": "\n".join(BOOKS) + "\n",
    "stack/a.parquet": parquet(renamed("content")),
    "hub_folder": lambda path: write_hub_folder(path, TEXT_ROWS, test=HELD_OUT),
    "saved": lambda path: datasets.Dataset.from_list(TEXT_ROWS).save_to_disk(path),
    "rows.csv": table(renamed("body")),
    "notes.txt": "\n\n".join(DOCUMENTS) + "\n",
}


@pytest.mark.parametrize("have", TEXTS)
def test_texts(have: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    values: dict[str, Any] = {"vocab_size": 300}
    for span in re.findall(r"`((?:text|article): [^`]*)`", TEXTS[have]):
        values |= yaml.safe_load(span)
    config = parse_text_config(values)
    (source,) = config.training
    make(next(name for name in TEXT_FILES if name.startswith(source.source)), TEXT_FILES)

    documents = read_documents(source.source, article=config.article, text_key=source.text_key)

    assert documents == (BOOKS if config.article == "100 lines" else DOCUMENTS)

"""Questions of one's own: tables, answers without positions, validation sets cut from a file."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data import SquadData
from detalbert.errors import UserError
from detalbert.reading.notes import Notes
from detalbert.settings.hparams import HParams, parse_data_config
from detalbert.squad.places import Place, find_answer
from detalbert.squad.question_stream import REPEATED
from detalbert.squad.sources import Reading, open_source, read_examples, read_questions
from detalbert.squad.windows import Example, build_windows
from tests.fakes.questions import read_squad

ROWS = [
    {"question": "Who, then?", "context": 'Ada, "the first",\nwrote it.', "answer": "Ada"},
    {"question": "¿Qué?", "context": "Ça va, 東京.", "answer": ""},
    {"question": "Where?", "context": "In the  Old town.", "answer": "the old"},
]
EXAMPLES = [
    Example("1", "", ROWS[0]["context"], "Who, then?", (("Ada", 0),)),
    Example("2", "", "Ça va, 東京.", "¿Qué?", ()),
    Example("3", "", "In the  Old town.", "Where?", (("the  Old", 3),)),
]


def write(path: Path, rows: list[dict[str, Any]], **how: Any) -> Path:
    """A table of rows, in the format of the path's ending."""
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("\n".join(map(json.dumps, rows)), encoding=how.get("encoding"))
    else:
        with path.open("w", newline="", encoding=how.pop("encoding", "utf-8")) as file:
            writer = csv.DictWriter(file, [*rows[0]], **how)
            writer.writeheader()
            writer.writerows(rows)
    return path


def read(name: Any, split: str = "train", notes: Any = None, **keys: Any) -> list[Example]:
    return read_examples(open_source(str(name), split, Path(), Reading(**keys)), notes=notes)


FORMATS: dict[str, dict[str, Any]] = {
    "commas.csv": {"lineterminator": "\r\n"},
    "semicolons.csv": {"delimiter": ";", "encoding": "utf-8-sig"},
    "tabs.tsv": {"delimiter": "\t", "encoding": "utf-16"},
    "lines.jsonl": {"encoding": "utf-16"},
    "marked.jsonl": {"encoding": "utf-8-sig"},
    "columns.parquet": {},
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_questions(name, tmp_path):
    path = write(tmp_path / name, ROWS, **FORMATS[name])
    assert read(path) == EXAMPLES == list(read_questions(path))
    theirs = {"question": "Frage", "context": "Text", "answer": "Antwort"}
    renamed = [{theirs[name]: value for name, value in row.items()} for row in ROWS]
    other = write(tmp_path / f"other{path.suffix}", renamed)
    assert read(other, columns=theirs) == EXAMPLES
    assert read(path, columns=theirs) == EXAMPLES  # one file of a run may have the usual names
    folder = tmp_path / "folder"
    folder.mkdir()
    for stem, split in (("train", "train"), ("dev", "validation")):
        (folder / f"{stem}{path.suffix}").write_bytes(path.read_bytes())
        assert read(folder, split) == EXAMPLES


def test_what_a_row_may_say(tmp_path):
    text = "Ada met Bo."
    more = [
        {"id": 7, "title": "T", "answer": ["Ada", "Bo"]},
        {"answer": None},
        {"answers": {"text": ["Bo"], "answer_start": [8]}},
        {"answers": [{"text": "Bo"}], "answer": "Ada"},
        {"answers": [], "is_impossible": True},
    ]
    rows = [{"question": "Who?", "context": text, **row} for row in more]
    found = read(write(tmp_path / "a.jsonl", rows))
    known = [(("Ada", 0), ("Bo", 8)), (), (("Bo", 8),), (("Bo", 8),), ()]
    assert [example.answers for example in found] == known
    assert [(e.id, e.title) for e in found[:2]] == [("7", "T"), ("2", "")]
    cells = [{"question": "Who?", "context": text, "answer": json.dumps(["Bo", "Ada"])}]
    assert read(write(tmp_path / "a.csv", cells))[0].answers == (("Bo", 8), ("Ada", 0))
    sheet = f"question,context,answer\n,,\nWho?,{text}, \nHow?,{text},\n,,\n"  # of a spreadsheet
    (tmp_path / "b.csv").write_text(sheet)
    assert [(e.id, e.answers) for e in read(tmp_path / "b.csv")] == [("1", ()), ("2", ())]


PLACES = {
    ("A party for art", "art"): Place(12, 15, 1, is_word=True, is_folded=False),
    ("A party", "art"): Place(3, 6, 1, is_word=False, is_folded=False),
    ("Art and art, ART", "art"): Place(8, 11, 1, is_word=True, is_folded=False),
    ("one two one", " one "): Place(0, 3, 2, is_word=True, is_folded=False),
    ("The  Old\ntown", "the old town"): Place(0, 13, 1, is_word=True, is_folded=False),
    ("costs $5 (five)", "$5 (five)"): Place(6, 15, 1, is_word=True, is_folded=False),
    ("東京は東京", "東京"): Place(0, 2, 2, is_word=True, is_folded=False),
    ("東京都の京都", "京都"): Place(4, 6, 1, is_word=True, is_folded=False),
    ("東京都", "京都"): Place(1, 3, 1, is_word=False, is_folded=False),
    ("the “first”, then", '"first"'): Place(4, 11, 1, is_word=True, is_folded=True),
    ("1914–1918", "1914-1918"): Place(0, 9, 1, is_word=True, is_folded=True),
    ("Cafe\u0301 de Flore", "Café"): Place(0, 5, 1, is_word=True, is_folded=True),
    ("an o\ufb03ce", "office"): Place(3, 7, 1, is_word=True, is_folded=True),
    ("the \ufb01nal", "inal"): None,  # a part of a ligature is no place
    ("co\u00adop\u200beration", "cooperation"): Place(0, 13, 1, is_word=True, is_folded=True),
    ("by Bo", "Bo."): Place(3, 5, 1, is_word=True, is_folded=True),
    ("none", "more"): None,
}


@pytest.mark.parametrize(("context", "answer"), PLACES)
def test_where_an_answer_stands(context, answer):
    assert find_answer(context, answer) == PLACES[context, answer]


@given(st.text("ab .", min_size=1, max_size=30), st.data())
def test_whatever_is_there_is_found(context, data):
    start = data.draw(st.integers(0, len(context) - 1))
    end = data.draw(st.integers(start + 1, len(context)))
    if answer := context[start:end].strip():
        found = find_answer(context, answer)
        assert found is not None and context[found[0] : found[1]] == answer


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_squad_without_positions_gives_the_same_windows(ending, shared, albert, tmp_path):
    """But where a label's text stands twice: 32 of the 1,299 labels are at another place."""
    examples = read_squad(shared / "squad" / "dev.json")
    rows = [
        {"id": e.id, "question": e.question, "context": e.context, "title": e.title}
        | {"answer": json.dumps([text for text, _ in e.answers]) if e.answers else ""}
        for e in examples
    ]
    if ending != "csv":
        rows = [row | {"answer": json.loads(row["answer"] or "[]")} for row in rows]
    notes = Notes()
    found = read(write(tmp_path / f"dev.{ending}", rows), notes=notes)
    moved = [i for i, (a, b) in enumerate(zip(examples, found, strict=True)) if a != b]
    labels = [i for i in moved if examples[i].answers[0] != found[i].answers[0]]
    assert (len(labels), notes.counts[REPEATED]) == (32, 140)
    same = np.setdiff1d(np.arange(len(examples)), labels)[:400]
    ours, theirs = (build_windows([each[i] for i in same], albert) for each in (found, examples))
    for name, column in theirs.columns().items():
        assert np.array_equal(ours.columns()[name], column), name


def test_a_fraction_cuts_whole_contexts_whatever_their_order(tmp_path):
    names = "question", "context", "answer"
    texts = [(f"Which {n}?", f"Text {n % 60} is here.", f"Text {n % 60}") for n in range(240)]
    rows, parts = [dict(zip(names, each, strict=True)) for each in texts], []
    for name, some in (("a.csv", rows), ("b.csv", rows[::-1])):
        path = write(tmp_path / name, some)
        split = {s: read(path, s, fraction=0.25) for s in ("train", "validation")}
        train, held = ({e.context for e in split[s]} for s in split)
        assert not train & held and sum(map(len, split.values())) == 240 and len(held) == 15
        parts.append({e.question for e in split["validation"]})
    assert parts[0] == parts[1]
    few = write(tmp_path / "few.csv", rows[:2])
    assert all(len(read(few, split, fraction=0.9)) == 1 for split in ("train", "validation"))
    lone = write(tmp_path / "lone.csv", rows[:1])
    with pytest.raises(UserError, match="lone.csv has one context, and each set needs one"):
        read(lone, fraction=0.25)
    sources = [
        open_source(str(path), "train", Path(), Reading(fraction=f)) for f in (None, 0.1, 0.2)
    ]
    assert len({source.fingerprint for source in sources}) == 3


def load(tmp_path: Path, **keys: Any) -> SquadData:
    config = {"cache_dir": str(tmp_path / "cache"), "tokenizer": "embedded/albert-tiny", **keys}
    return SquadData.load(config, HParams(model_config={}, max_seq_length=192, doc_stride=64))


def test_what_the_splits_say(tmp_path, caplog):
    caplog.set_level("WARNING")
    opening = "town " * 70
    context = "Zanto was built in Orvane. Zanto was loaded with salt."
    rows = [
        {"question": f"{opening}{end}?", "context": context, "answer": answer}
        for end, answer in (("built where", "Orvane"), ("loaded with", "Zanto"))
    ]
    path = write(tmp_path / "long.csv", rows)
    loaded = load(tmp_path, train=str(path), validation=str(path))
    assert "2 of its 2 questions are in data.train" in caplog.text
    lines = loaded.summary().lines
    for said in ("1 answers stand more than once", "2 questions are cut to 64 tokens"):
        assert said in lines["train"]
    assert "cut" not in lines["validation"]
    cut, whole = loaded.train.windows, loaded.validation.windows
    asked = [[w.pack([i])["input_ids"].tolist() for i in (0, 1)] for w in (cut, whole)]
    assert asked[0][0] == asked[0][1] and asked[1][0] != asked[1][1]
    other = write(tmp_path / "other.csv", [{**rows[0], "question": "Why?"}])
    caplog.clear()
    load(tmp_path, train=str(path), validation=str(other))
    assert caplog.text == ""


LINE = "question,context,answer\n"
MISTAKES = {
    "answer.csv": (f"{LINE}Who?,Ada did.,Bo\n", "question 1: answer 'Bo' is not in its context;"),
    "none.csv": ("question,context\nWho?,Ada did.\n", "question 1: no answers and not marked"),
    "twice.csv": (f"id,{LINE}1,a,b,\n1,a,b,\n", "question 1: another one has this"),
    "empty.csv": (LINE, "no usable question in it; set data.train"),
    "kind.jsonl": (
        '{"question": "a", "context": "b", "answer": 5}',
        "question 1: answer '5' is not in its context",
    ),
    "start.jsonl": (
        '{"question": "a", "context": "b", "answers": [{"text": "b", "answer_start": "x"}]}',
        "question 1: answer_start is 'x'; write a number of characters",
    ),
    "bytes.parquet": ("PAR0", "text, and no parquet file; rename it"),
    "bytes2.parquet": ("PAR1", "not a whole parquet file"),
    "commas.csv": (f"{LINE}\nWho?,Ada, the first, did.,\n", "line 3: 5 cells under 3 names; fix"),
    "open.csv": (f'{LINE}a,b,b\nc,"d\n,d\ne,f,f\n', "line 3: unexpected end of data; fix it: a"),
    "quotes.tsv": ('question\tcontext\nWho?\t"Ada" did.\n', "line 2: '\t' expected after '\"'"),
    "names.csv": ("question,context,question\na,b,c\n", "two columns are named 'question'; rename"),
    "repr.csv": (
        "question,context,answers\nWho?,Ada did.,\"{'text': ['Ada, Bo']}\"\n",
        "question 1: answer 'Ada, Bo' is not in its context",
    ),
    "book.xlsx": ("PK\x03\x04", "a workbook or zip archive; save the sheet as CSV UTF-8"),
    "latin.csv": (f"{LINE}\udce9,b,c\n", "not UTF-8 at byte 24; save the file as UTF-8"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_a_file_is_one_line(name, tmp_path):
    text, said = MISTAKES[name]
    path = tmp_path / name
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UserError) as error:
        read(path)
    assert str(error.value).startswith(str(path)) and said in str(error.value)


KEYS: dict[str, dict[str, Any]] = {
    "set 'validation' (a file or data set) or": {"validation": None},
    "'b.csv' is set beside validation_fraction; leave": {"validation_fraction": 0.1},
    "1.5 must be greater than 0 and less": {"validation": None, "validation_fraction": 1.5},
    "columns.questoin: unknown key; did you mean 'question'?": {"columns": {"questoin": "Frage"}},
    "columns.question: 3; give the column's name as text": {"columns": {"question": 3}},
}


@pytest.mark.parametrize("said", KEYS)
def test_a_mistake_in_the_keys_is_one_line(said):
    with pytest.raises(UserError) as error:
        parse_data_config({"train": "a.csv", "validation": "b.csv", **KEYS[said]})
    assert said in str(error.value) and "\n" not in str(error.value)


def test_a_mistake_in_the_place_is_one_line(tmp_path):
    for name, said in {
        tmp_path / "no.xlsx": "no.xlsx: no such file",
        "nowhere.json": "nowhere.json: no such file; set data.train",
        "no_such_set": "data.train: 'no_such_set' is no file",
    }.items():
        with pytest.raises(UserError, match=said):
            read(name)
    for ending in ("csv", "jsonl"):
        write(tmp_path / f"train.{ending}", ROWS)
    with pytest.raises(UserError, match=r"train.csv, train.jsonl: which is it\? Name one file"):
        read(tmp_path)

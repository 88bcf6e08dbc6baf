"""Questions in several files, and paragraphs as rows."""

import json
from collections.abc import Sequence
from pathlib import Path

import datasets
import fsspec
import pytest

from detalbert.errors import UserError
from detalbert.reading.notes import Notes
from detalbert.squad.sources import open_source, read_examples

CONTEXT = "Ada met Bo in the old town."
ROWS = [{"question": f"Who {number}?", "context": CONTEXT, "answer": "Ada"} for number in range(6)]
# Their ids are numbers from 1.
QUESTIONS = [(str(number + 1), f"Who {number}?") for number in range(6)]


def read(path: Path, split: str = "train") -> list[tuple[str, str]]:
    """Return ids and questions of a split."""
    examples = read_examples(open_source(str(path), split, Path()))
    return [(example.id, example.question) for example in examples]


def test_the_shards_of_a_saved_set_are_one_source(tmp_path: Path) -> None:
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "saved", num_shards=3)
    assert read(tmp_path / "saved") == QUESTIONS


def test_the_shards_of_a_split_are_one_source(tmp_path: Path) -> None:
    folder = tmp_path / "snapshot"
    (folder / "data").mkdir(parents=True)
    shards = {
        "train-00000-of-00002": ROWS[:3],
        "train-00001-of-00002": ROWS[3:],
        "validation-00000-of-00001": ROWS[:1],
    }
    for name, rows in shards.items():
        datasets.Dataset.from_list(rows).to_parquet(folder / "data" / f"{name}.parquet")
    assert read(folder) == QUESTIONS
    assert read(folder, "validation") == QUESTIONS[:1]

    # The fingerprint is of all of them.
    before = open_source(str(folder), "train", Path()).fingerprint
    last = folder / "data" / "train-00001-of-00002.parquet"
    datasets.Dataset.from_list(ROWS[1:2]).to_parquet(last)
    assert open_source(str(folder), "train", Path()).fingerprint != before


# Files that other tools write in parts, in order; the last sorts wrongly by its letters.
PARTS = {
    "Spark": ("part-00000-3f2a-c000.json", "part-00001-3f2a-c000.json"),
    "Spark, with an empty part": ("part-00000.json", "part-00002.json"),
    "BigQuery": ("q-000000000000.json", "q-000000000001.json"),
    "pyarrow": ("part-0.json", "part-1.json"),
    "in a folder": ("train/part-0.json", "train/part-1.json"),
    "an old datasets": ("a-00000-of-00002-0fe1.json", "a-00001-of-00002-77ab.json"),
    "by hand": ("questions 2.json", "questions 10.json"),
    "by hand, from 1": ("1.json", "2.json", "10.json"),
}


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("ending", ["", "/", "/**/*.json"])
def test_parts_are_one_source(name: str, ending: str, tmp_path: Path) -> None:
    folder = tmp_path / "f"
    names = PARTS[name] if name != "by hand" else ("questions 1.json", *PARTS[name])
    write_parts(folder, names)
    (folder / "_SUCCESS").write_text("")
    notes = Notes()
    source = open_source(f"{folder}{ending}", "train", Path())
    examples = read_examples(source, notes=notes)
    assert [example.question for example in examples] == [f"Who {name}?" for name in names]
    assert [example.id for example in examples] == list(map(str, range(1, len(names) + 1)))
    assert notes.counts == {"files are read as one": len(names)}


def write_parts(folder: Path, names: Sequence[str]) -> None:
    """Write files of a question each, which has the name of its file."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        row = {"question": f"Who {name}?", "context": CONTEXT, "answer": "Ada"}
        path.write_text(json.dumps(row) + "\n")


def test_parts_of_another_system_are_one_source() -> None:
    system = fsspec.filesystem("memory")
    for number in (2, 10, 1):
        system.pipe(f"/parts/q-{number}.jsonl", json.dumps(ROWS[0] | {"id": number}).encode())
    for address in ("memory://parts", "memory://parts/", "memory://parts/*.jsonl"):
        examples = read_examples(open_source(address, "train", Path()))
        assert [example.id for example in examples] == ["1", "2", "10"]


# Names with different words, years or two numbers may be anything.
OTHERS = {
    "letters": ("a.jsonl", "b.jsonl"),
    "languages": ("xquad.de.json", "xquad.en.json"),
    "years": ("q2019.json", "q2020.json"),
    "versions": ("train-v1.1.json", "train-v2.0.json"),
    "shards of two sets": ("de-00000-of-00001.json", "en-00000-of-00001.json"),
    "of two lengths": ("q-00000-of-00002.json", "q-00001-of-00003.json"),
    "folders": ("de/part-0.json", "en/part-0.json"),
    "forms": ("train.json", "train.jsonl"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_files_of_a_folder_are_not_joined(name: str, tmp_path: Path) -> None:
    write_parts(tmp_path, OTHERS[name])
    files = ", ".join(OTHERS[name])
    with pytest.raises(UserError, match=rf" {files}: which is it\?") as error:
        read(tmp_path)
    # The cure works.
    pattern = str(error.value).rpartition("such as ")[2]
    first = tmp_path / OTHERS[name][0]
    suffix = first.suffix
    fitting = [
        file for file in OTHERS[name] if (tmp_path / file).match(f"{first.parent}/*{suffix}")
    ]
    assert [question for _, question in read(Path(pattern))] == [f"Who {file}?" for file in fitting]


def test_a_folder_without_the_split_says_so(tmp_path: Path) -> None:
    write_parts(tmp_path, ("train.jsonl", "test.jsonl"))
    with pytest.raises(UserError) as error:
        read(tmp_path, "validation")
    assert str(error.value) == (
        f"data.validation: no file for validation below {tmp_path} (test.jsonl, train.jsonl); "
        f"name its file, such as {tmp_path}/test.jsonl"
    )
    assert len(read(tmp_path / "test.jsonl", "validation")) == 1


def test_a_pattern_of_nothing_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"q\*: no such file; set data.train to a file of questions"
    ):
        read(tmp_path / "q*")


def test_files_without_an_ending_by_a_pattern(tmp_path: Path) -> None:
    """The cure for a folder in which nothing is known by its ending."""
    write_parts(tmp_path, ("a.rows", "b.rows"))
    with pytest.raises(UserError, match=r"name its files: .*/\*$"):
        read(tmp_path)
    assert len(read(tmp_path / "*")) == 2

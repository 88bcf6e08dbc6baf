"""Questions in several files, and paragraphs as rows."""

import json
from pathlib import Path

import datasets
import pytest

from detalbert.errors import UserError
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


def test_other_files_of_a_folder_are_not_joined(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text("\n".join(map(json.dumps, ROWS)))
    with pytest.raises(UserError, match=r"a.jsonl, b.jsonl: which is it\?"):
        read(tmp_path)

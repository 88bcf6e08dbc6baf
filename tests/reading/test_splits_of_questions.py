"""Questions in several files, and paragraphs as rows."""

import gzip
import json
from pathlib import Path

import datasets
import pytest

from detalbert.errors import UserError
from detalbert.squad.sources import open_source, read_examples

CONTEXT = "Ada met Bo in the old town."
ROWS = [{"question": f"Who {n}?", "context": CONTEXT, "answer": "Ada"} for n in range(6)]


def read(path: Path, split: str = "train") -> list[tuple[str, str]]:
    """Ids and questions of a split."""
    examples = read_examples(open_source(str(path), split, Path()))
    return [(example.id, example.question) for example in examples]


def test_shards_of_a_split_are_one_source(tmp_path: Path) -> None:
    numbered = [(str(n + 1), row["question"]) for n, row in enumerate(ROWS)]
    saved = tmp_path / "saved"
    datasets.Dataset.from_list(ROWS).save_to_disk(saved, num_shards=3)
    assert read(saved) == numbered
    snapshot = tmp_path / "snapshot" / "data"
    snapshot.mkdir(parents=True)
    for shard in range(2):
        part = datasets.Dataset.from_list(ROWS[3 * shard : 3 * shard + 3])
        part.to_parquet(snapshot / f"train-0000{shard}-of-00002.parquet")
    datasets.Dataset.from_list(ROWS[:1]).to_parquet(snapshot / "validation-00000-of-00001.parquet")
    assert read(tmp_path / "snapshot") == numbered
    assert read(tmp_path / "snapshot", "validation") == numbered[:1]
    before = open_source(str(tmp_path / "snapshot"), "train", Path()).fingerprint
    datasets.Dataset.from_list(ROWS[1:2]).to_parquet(snapshot / "train-00001-of-00002.parquet")
    assert open_source(str(tmp_path / "snapshot"), "train", Path()).fingerprint != before


def test_other_files_of_a_folder_are_not_joined(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text("\n".join(map(json.dumps, ROWS)))
    with pytest.raises(UserError, match=r"a.jsonl, b.jsonl: which is it\?"):
        read(tmp_path)


def test_paragraphs_on_lines(tmp_path: Path) -> None:
    """As the shared task MRQA has them: a header, then a context with its questions."""
    first = {"qid": "x", "question": "Who?", "answers": ["Ada"]}
    second = {"qid": "y", "question": "Where?", "answers": ["the old town"]}
    lines = [{"header": {"dataset": "A", "split": "train"}}]
    lines += [{"id": "", "context": CONTEXT, "qas": [first]}, {"context": CONTEXT, "qas": [second]}]
    path = tmp_path / "A.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, lines)).encode()))
    assert read(path) == [("x", "Who?"), ("y", "Where?")]
    lines[1]["qas"][0]["answers"] = ["Cy"]
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, lines)).encode()))
    with pytest.raises(UserError, match="line 2: question x: answer 'Cy' is not in its context"):
        read(path)

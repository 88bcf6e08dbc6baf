"""Parquet in batches of bytes: the rows of the whole table, in little memory whatever they are."""

import subprocess
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from detalbert.errors import UserError
from detalbert.reading import parquet as reader
from detalbert.reading.parquet import open_table, rows_of_table
from detalbert.squad.sources import read_questions
from tests.conftest import Script, max_examples

LONG = "word " * 175_000  # 875,000 characters

words = st.one_of(st.none(), st.text("aé東 ", max_size=8), st.just("x" * 300))
answers = st.fixed_dictionaries(
    {"text": st.lists(words, max_size=3), "answer_start": st.lists(st.integers(0, 9), max_size=3)}
)
rows = st.fixed_dictionaries(
    {
        "question": words,
        "context": words,
        "answers": st.one_of(st.none(), answers),
        "number": st.one_of(st.none(), st.integers(-9, 9)),
        "tags": st.lists(st.lists(words, max_size=2), max_size=2),
        "raw": st.binary(max_size=4),
    }
)
TEXT = pyarrow.string()
SCHEMA = pyarrow.schema(
    {
        "question": TEXT,
        "context": pyarrow.large_string(),
        "answers": pyarrow.struct(
            {"text": pyarrow.list_(TEXT), "answer_start": pyarrow.list_(pyarrow.int64())}
        ),
        "number": pyarrow.int64(),
        "tags": pyarrow.list_(pyarrow.list_(TEXT)),
        "raw": pyarrow.binary(),
    }
)


@max_examples(100)
@given(
    table=st.lists(rows, max_size=20),
    group=st.integers(1, 7),
    dictionary=st.booleans(),
    size=st.sampled_from([1, 200, 1 << 24]),
    stored=st.booleans(),
)
def test_rows_are_those_of_the_whole_table(
    table: list[Any],
    group: int,
    dictionary: bool,
    size: int,
    stored: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("table") / "rows.parquet"
    written = pyarrow.Table.from_pylist(table, schema=SCHEMA)
    if stored:  # as pandas writes a column of categories
        categories = written["question"].dictionary_encode()
        written = written.set_column(0, "question", categories)
    parquet.write_table(written, path, row_group_size=group, use_dictionary=dictionary)
    with pytest.MonkeyPatch.context() as patch, open_table(path, where="a") as opened:
        patch.setattr(reader, "BATCH_BYTES", size)
        assert list(rows_of_table(opened, SCHEMA.names)) == table
        groups = range(opened.num_row_groups)[1:3]
        contexts = [row["context"] for row in rows_of_table(opened, ["context"], groups)]
    assert contexts == [row["context"] for row in table[group : 3 * group]]


@pytest.mark.parametrize(("budget", "rows_of_batch"), [(1 << 24, 16), (3_500, 3), (1, 1)])
def test_rows_are_read_in_batches_of_so_many_bytes(
    budget: int, rows_of_batch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"{number:04}" * 250 for number in range(64)]  # 1,000 bytes each
    table = pyarrow.table({"context": texts})
    parquet.write_table(table, tmp_path / "a.parquet", use_dictionary=False, compression="none")
    monkeypatch.setattr(reader, "BATCH_BYTES", budget)
    with open_table(tmp_path / "a.parquet", where="a") as opened:
        batches = Mock(wraps=opened.iter_batches)
        monkeypatch.setattr(opened, "iter_batches", batches)
        assert [row["context"] for row in rows_of_table(opened, ["context"])] == texts
    assert [call.kwargs["batch_size"] for call in batches.call_args_list] == [rows_of_batch]


def test_a_name_twice_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    column = pyarrow.array(["a"])
    table = pyarrow.Table.from_arrays([column] * 3, ["context", "q", "q"])
    parquet.write_table(table, path)

    with pytest.raises(UserError, match=r"rows.parquet: two columns are named 'q'"):
        list(read_questions(path))


READ = """
import resource
from pathlib import Path
from detalbert.corpus.read_text import TextReader
from detalbert.corpus.sources import open_text
from detalbert.settings.text import SourceConfig
from detalbert.squad.sources import read_questions
path = Path({path!r})
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
before = peak()
def texts():
    if {corpus}:
        source = SourceConfig(str(path), text_key="context")
        (part,) = open_text(source, "data.text", "train").parts
        return (block.text for block in TextReader().read(part))
    return (example.context for example in read_questions(path))
assert sum(map(len, texts())) == 600 * 875_000 - 600 * {corpus}
print(peak() - before)
"""


@pytest.mark.parametrize("corpus", [False, True])
@pytest.mark.parametrize("where", ["context", "answers"])
def test_a_text_that_many_rows_share_is_held_once(
    corpus: bool, where: str, tmp_path: Path, script: Script
) -> None:
    """A file of some kB; 1,000 rows of it at a time were 1.5 GB."""
    column = pyarrow.array([LONG]).dictionary_encode()
    shared = column.take(pyarrow.array([0] * 600))
    columns = {"question": pyarrow.array(map(str, range(600))), "context": shared}
    if where == "answers":
        lists = pyarrow.ListArray.from_arrays(pyarrow.array(range(601), "int32"), shared)
        starts = pyarrow.array([[0]] * 600)
        columns["answers"] = pyarrow.StructArray.from_arrays(
            [lists, starts], ["text", "answer_start"]
        )
    path = tmp_path / "rows.parquet"
    table = pyarrow.table(columns)
    parquet.write_table(table, path, compression="zstd", store_schema=False)
    assert path.stat().st_size < 20_000

    source = READ.format(path=str(path), corpus=corpus)
    done = subprocess.run(script(source), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 250  # MiB

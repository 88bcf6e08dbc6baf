"""Examples within a document; a shard's text cut into chunks."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from detalbert.corpus.chunks import Job, cut_examples, cut_job
from detalbert.corpus.sources import Part, group_parts, size_of


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), max_size=60), st.integers(5, 30))
def test_examples_hold_what_fits_of_one_document(sentences: Any, capacity: int) -> None:
    if sentences:
        sentences[-1] = (sentences[-1][0], True)
    lengths, counts = cut_examples([n for n, _ in sentences], [e for _, e in sentences], capacity)
    assert lengths.sum() == sum(n for n, _ in sentences) and counts.sum() == len(lengths)
    sizes = [e.sum() for e in np.split(lengths, np.cumsum(counts)[:-1])] if len(counts) else []
    assert all(0 < size <= capacity for size in sizes)
    ends = np.cumsum([n for n, _ in sentences])[[e for _, e in sentences]] if sentences else []
    assert set(ends) <= {0, *np.cumsum(sizes)}  # no example goes past the end of a document


def test_one_shard_has_chunks_for_many_processes() -> None:
    """17 MB are one shard at the usual size."""
    for address, size in (("a.txt", 17 << 20), ("hub:x", 4_400)):
        chunks = cut_job(Job(0, (Part(address, 0, size, size),), 0.0))
        assert 30 < len(chunks) <= 35 and max(size_of(chunk.parts) for chunk in chunks) < 1 << 20
        parts = [part for chunk in chunks for part in chunk.parts]
        assert [part.begin for part in parts] == [0, *(part.end for part in parts[:-1])]
        assert parts[-1].end == size
    many = cut_job(Job(0, tuple(Part(f"{i}.jsonl", 0, 999, 999) for i in range(3_000)), 0.0))
    assert len(many) < 15 and sum(len(chunk.parts) for chunk in many) == 3_000
    assert len(cut_job(Job(0, (Part("a.json", 0, 1 << 30, 1 << 30),), 0.0))) == 1  # read whole
    rows = [Part("hub:x", at, at + 500_000, 6_000_000) for at in range(0, 6_000_000, 500_000)]
    assert len(group_parts(rows, 500_000 * 4_000)) == 12  # rows are not bytes

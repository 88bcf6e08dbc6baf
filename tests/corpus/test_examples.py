"""Examples within a document."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from detalbert.corpus.examples import cut_examples


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

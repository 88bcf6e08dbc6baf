"""Where sentences end."""

import re

from hypothesis import given
from hypothesis import strategies as st

from detalbert.corpus.sentences import _ABBREVIATION, split_sentences
from tests.conftest import max_examples


def test_sentences() -> None:
    said = split_sentences('Dr. Who came. "Who?" He left.')
    assert said == ["Dr. Who came.", '"Who?"', "He left."]
    said = split_sentences("In the U.S. Army of 1.5 men.\nNew line")
    assert said == ["In the U.S. Army of 1.5 men.", "New line"]
    assert split_sentences(" \n ") == []


_LETTERS = st.sampled_from([*"aB1.!? \n'\"”)([“À", ". ", ".\n", "Dr. ", "e.g. "])


@given(st.lists(_LETTERS, max_size=40).map("".join))
@max_examples(500)
def test_sentences_end_where_the_rule_says(text: str) -> None:
    """The rule as it would be written if speed did not matter."""
    end = re.compile(r"""(?<=[.!?])(["'”’)\]]*)\s+(?=["'“‘(\[]?[A-Z0-9À-Þ])|\n+""")
    sentences, begin = [], 0
    for found in end.finditer(text):
        stop = found.end(1) if found.group(1) is not None else found.start()
        if not _ABBREVIATION.search(text, max(begin, stop - 12), stop):
            sentences.append(text[begin:stop].strip())
            begin = found.end()
    sentences.append(text[begin:].strip())
    assert split_sentences(text) == [sentence for sentence in sentences if sentence]

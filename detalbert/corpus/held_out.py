"""The split of long documents, which the hash of their whole text decides.

It is needed before the first token is written, so a temporary file keeps the text until the end of
the document has been read: disk and not memory, and text is downloaded and unpacked only once.
"""

import itertools
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from detalbert.corpus.blocks import Segment
from detalbert.corpus.shards import is_low, new_hash


def decide(
    segments: Iterable[Segment], share: float, folder: Path
) -> Iterator[tuple[float, Segment]]:
    """Yield segments, each with the fraction of its document that is held out.

    Whether a document of several segments is held out is decided here: its fraction is 0 or 1. That
    of a document of one segment is `share`: see `is_held_out`.

    Args:
        segments: those of complete documents.
        share: fraction of the documents that are held out.
        folder: where the temporary file is.
    """
    segments = iter(segments)
    for segment in segments:
        if segment.starts and segment.ends or share in (0.0, 1.0):
            yield share, segment
        else:
            document = itertools.chain([segment], _to_end(segments))
            yield from _decide_long(document, share, folder)


def _to_end(segments: Iterator[Segment]) -> Iterator[Segment]:
    for segment in segments:
        yield segment
        if segment.ends:
            return


def _decide_long(
    document: Iterable[Segment], share: float, folder: Path
) -> Iterator[tuple[float, Segment]]:
    digest = new_hash()
    sizes: list[int] = []  # of each segment, in bytes
    with tempfile.TemporaryFile(dir=folder) as copy:
        for segment in document:
            content = segment.text.encode()
            digest.update(content)
            copy.write(content)
            sizes.append(len(content))

        # The same segments again, now that the hash of all of the text is known.
        copy.seek(0)
        held_out = float(is_low(digest, share))
        for number, size in enumerate(sizes):
            text = copy.read(size).decode()
            last = number == len(sizes) - 1
            yield held_out, Segment(text, starts=number == 0, ends=last)

"""A shard's text cut into chunks, and these shared out."""

from detalbert.corpus.chunks import Job, cut_job
from detalbert.corpus.sources import Part, group_parts, size_of
from detalbert.corpus.writer import _share_out


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


def test_a_long_compressed_file_is_one_stream() -> None:
    """It shares no chunk with another file, so one process can read it from its start to its end;
    short ones are read whole, many in a chunk."""
    sizes = [9 << 20, 1000, 2000, 9 << 20]
    parts = [Part(f"{i}.zst", 0, size, size, packed=1) for i, size in enumerate(sizes)]
    chunks = cut_job(Job(0, tuple(parts), 0.0))
    streams = [{part.stream for part in chunk.parts} for chunk in chunks]
    assert all(len(stream) == 1 for stream in streams)
    names = [name for stream in streams for name in stream]
    assert [*dict.fromkeys(names)] == ["0.zst", "", "3.zst"] and names.count("") == 1
    tasks = [len(task) for task in _share_out(chunks)]
    assert tasks == [names.count("0.zst"), 1, names.count("3.zst")]

"""How long a local run took, all its starts, read from what is in its folder."""

import struct
from collections.abc import Iterator
from pathlib import Path


def hours_of(path: Path, least: float) -> tuple[float, float, int, str]:
    """Hours of work and from first to last, `least` at least; starts, and what was counted.

    Each start writes an event file from its first report on; config.yaml is as old as the last
    start, so the time between the two is the start-up, which the earlier starts had as well. The
    last checkpoint comes after the last event, and metrics.json after that.
    """
    files = path.glob("tensorboard/events.out.tfevents.*")
    starts = sorted((times[0], times[-1]) for file in files if (times := list(_times(file))))
    if not starts:
        return least, least, 1, "training and checkpoints of its last start; its events are gone"
    (first, last), config = starts[-1], path / "config.yaml"
    ahead = first - config.stat().st_mtime if config.exists() else -1.0
    after = (path / "metrics.json").stat().st_mtime - last
    note = f"{len(starts)} starts, validation and checkpoints counted"
    note += ", start-up too" if 0 < ahead < 3600 else "; start-up is not known: a copied folder"
    ahead, after = (value if 0 < value < 3600 else 0.0 for value in (ahead, after))
    worked = sum(end - start + ahead for start, end in starts) + after
    whole = max(end for _, end in starts) + after - starts[0][0] + ahead
    return max(worked / 3600, least), max(whole / 3600, least), len(starts), note


def _times(file: Path) -> Iterator[float]:
    """Unix time of each event: records of length, checksum, event, checksum; its first field."""
    data, at = file.read_bytes(), 0
    while at + 21 <= len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        if data[at + 12] == 0x09:  # field 1, eight bytes: wall_time
            yield struct.unpack_from("<d", data, at + 13)[0]
        at += length + 16

"""Bytes from S3's protocol on loopback, slow, failing and cut off on purpose."""

import random
from typing import Any

import pytest

from detalbert.corpus import storage
from detalbert.errors import Unavailable, UserError


def test_a_read_continues_where_it_was_cut(s3: Any) -> None:
    client, faults = s3
    content = random.Random(0).randbytes(300_000)
    client.put_object(Bucket="bucket", Key="a.bin", Body=content)
    faults.kinds = ["fine", "slow", "500", "truncated"]
    for begin in range(0, 30, 3):
        found = b"".join(storage.read("s3://bucket/a.bin", begin, 300_000 - begin))
        assert found == content[begin : 300_000 - begin]
    assert storage.read_all("s3://bucket/a.bin") == content
    assert all(faults.done.values()), faults.done


def test_what_cannot_be_read_is_one_line(s3: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    client, faults = s3
    monkeypatch.setattr(storage.time, "sleep", lambda _: None)
    with pytest.raises(UserError, match="key: no .txt file below s3://bucket/nothing"):
        storage.find_files("s3://bucket/nothing", "key", (".txt",))
    with pytest.raises(UserError, match="/nothing: cannot read it: No such file"):
        storage.read_all("/nothing")
    client.put_object(Bucket="bucket", Key="a.bin", Body=b"a")
    faults.kinds = ["500"]
    with pytest.raises(Unavailable, match=f"a.bin: not read after {storage.TRIES} tries: "):
        list(storage.read("s3://bucket/a.bin", 0, 1))

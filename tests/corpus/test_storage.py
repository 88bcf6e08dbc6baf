"""What cannot be read. That reads continue through faults, test_sources and test_reader show."""

from typing import Any

import pytest

from detalbert.corpus import storage
from detalbert.errors import Unavailable, UserError


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

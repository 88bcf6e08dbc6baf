"""The command that writes shards to S3: it goes on where it was cut, and what makes them count."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detalbert import bucket
from detalbert.corpus import writer
from detalbert.corpus.__main__ import main
from detalbert.errors import Unavailable, UserError
from pretrain.data import PretrainText
from tests.corpus.documents import write_config
from tests.corpus.test_mixture import three
from tests.fakes.s3 import Faults
from tests.fakes.text import tiny, write


def test_what_makes_shards_count_follows_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    monkeypatch.setattr(bucket, "put", lambda _, address, names: sent.extend(names))
    (tmp_path / "a.bin").touch()
    target = writer.Target("s3://b/x/", "")
    target.folder = tmp_path

    target.move(["a.bin"], "jobs/0.json")

    assert sent == ["a.bin", "jobs/0.json"]
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("address", ["s3://bucket", "file:///x", "s3:/b/x"])
def test_a_wrong_address_is_one_line(address: str) -> None:
    with pytest.raises(UserError, match=f"^{address}: give s3://BUCKET/PATH"):
        writer.Target(address, "")


def test_the_command_writes_to_s3_and_goes_on(
    s3: tuple[Any, Faults],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    client, _ = s3  # whose faults are of reading
    monkeypatch.setenv("AWS_ENDPOINT_URL", client.meta.endpoint_url)
    sources = three(tmp_path)
    config = write_config(tmp_path, sources, shard_mib=0.01)
    upload = writer.Target.move
    uploads: list[list[str]] = []

    def move_but_the_third(target: Any, names: list[str], *last: str) -> None:
        if names:
            uploads.append(names)
            if len(uploads) == 3:
                raise Unavailable("cut")
        upload(target, names, *last)

    monkeypatch.setattr(writer.Target, "move", move_but_the_third)
    command = [str(config), "--output", "s3://bucket/shards", "--workers", "1"]
    assert main(command) == 4
    assert "unavailable: cut" in capsys.readouterr().err

    # None of another config's shards are added to these.
    assert main([*command, "--set", "data.shard_mib=0.02"]) == 2
    assert "another text, tokenizer or length" in capsys.readouterr().err

    # The command goes on, and does nothing when all is there.
    assert main(command) == 0
    assert main(command) == 0
    assert "a document of plain text is a line" in capsys.readouterr().out
    sent = [name for name in itertools.chain.from_iterable(uploads) if name.endswith(".bin")]
    assert len(sent) == len(set(sent)) + len(uploads[2])  # only what was cut is done again
    assert_same_shards(client, write(sources, tmp_path, shard_mib=0.01), tmp_path)


def assert_same_shards(client: Any, folder: Path, cache: Path) -> None:
    """Assert that s3://bucket/shards has the files of `folder`, and reads as it does."""
    objects = client.list_objects_v2(Bucket="bucket")["Contents"]
    names = {path.name for path in folder.iterdir() if path.is_file()} - {".lock"}
    assert {f"shards/{name}" for name in names} <= {item["Key"] for item in objects}
    client.download_file("bucket", "shards/index.json", str(cache / "index.json"))
    assert (cache / "index.json").read_bytes() == (folder / "index.json").read_bytes()

    remote = PretrainText.load({"shards": "s3://bucket/shards", "cache_dir": str(cache)}, tiny())
    local = PretrainText.load({"shards": str(folder), "cache_dir": str(cache)}, tiny())
    assert np.array_equal(remote.train.lengths, local.train.lengths)
    assert remote.fingerprints() == local.fingerprints()


def test_parts_meet_in_a_bucket(
    s3: tuple[Any, Faults], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, _ = s3
    monkeypatch.setenv("AWS_ENDPOINT_URL", client.meta.endpoint_url)
    sources = three(tmp_path)
    config = write_config(tmp_path, sources, shard_mib=0.01)
    command = [str(config), "--output", "s3://bucket/shards", "--workers", "1", "--part"]

    # In any order, and one of them twice.
    for part in ("3/3", "1/3", "3/3"):
        assert main([*command, part]) == 0
        keys = {item["Key"] for item in client.list_objects_v2(Bucket="bucket")["Contents"]}
        assert "shards/index.json" not in keys
    assert main([*command, "2/3"]) == 0

    assert_same_shards(client, write(sources, tmp_path, shard_mib=0.01), tmp_path)

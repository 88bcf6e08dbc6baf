"""Keys of a bucket's objects: nothing is written outside of the folder of a download."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from determined.common import storage
from hypothesis import given
from hypothesis import strategies as st

from detalbert import bucket
from detalbert.errors import UserError
from tests.conftest import max_examples
from tests.test_names import NAME, tree


@pytest.fixture
def store(s3: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Fill a bucket with keys below runs/1/. The proxy before it would resolve `..` in them."""
    client, faults = s3
    monkeypatch.setenv("AWS_ENDPOINT_URL", faults.upstream)

    def fill(keys: list[str]) -> None:
        for key in keys:
            client.put_object(Bucket="bucket", Key=f"runs/1/{key}", Body=b"theirs")

    return fill


@max_examples(50)
@given(keys=st.lists(NAME, min_size=9, max_size=11, unique=True))
def test_no_key_is_written_outside(keys, tmp_path_factory):
    """Each alone, as one that is refused keeps the others out."""
    home = tmp_path_factory.mktemp("home")
    (home / "mine").write_bytes(b"mine")
    folder, written = home / "a" / "b", dict[str, bytes]()
    for key in keys:
        manager: Any = object.__new__(storage.S3StorageManager)
        objects = SimpleNamespace(
            filter=lambda Prefix, key=key: [SimpleNamespace(key=Prefix + key)]
        )
        take = lambda key, path: Path(path).write_bytes(b"theirs")  # noqa: E731
        manager.prefix, manager.bucket_name = "", "bucket"
        manager.bucket = SimpleNamespace(objects=objects, download_file=take)
        try:
            manager.download("runs/1/", folder)
        except UserError as error:
            assert "checkpoint storage, below runs/1/: the name " in str(error)
            assert "\n" not in str(error) and tree(home) == written | {"mine": b"mine"}
        written = tree(home)
        assert written.pop("mine") == b"mine"
        assert all(name.startswith("a/b/") for name in written)


def test_of_a_bucket_with_one_wrong_key_nothing_is_taken(store, tmp_path):
    store(["a", "checkpoints/", "z/../../../x"])
    for download in (
        lambda: bucket.download("s3://bucket/runs/1", tmp_path / "in"),
        lambda: storage.S3StorageManager("bucket").download("runs/1", tmp_path / "in"),
        lambda: storage.from_string("s3://bucket").restore_path("runs/1").__enter__(),
    ):
        with pytest.raises(UserError, match="below runs/1.*'../../x' does not stay inside"):
            download()
    assert tree(tmp_path) == {}


def test_ordinary_keys_and_folders_arrive(store, tmp_path):
    """Also the marks of folders, which browsers of buckets leave."""
    store(["", "a", "checkpoints/", "checkpoints/step-4/manifest.json", "..b", "ü"])
    bucket.download("s3://bucket/runs/1", tmp_path)
    assert sorted(tree(tmp_path)) == ["..b", "a", "checkpoints/step-4/manifest.json", "ü"]
    with pytest.raises(UserError, match="its file '../a' is not inside"):
        bucket.put(tmp_path / "checkpoints", "s3://bucket/runs/2", ["../a"])


@pytest.mark.parametrize("kind", ["gcs", "azure"])
def test_the_other_storages_hold_names_as_well(kind, tmp_path):
    names = ["runs/1/a", "runs/1/../../x"]
    written: list[str] = []
    take = lambda *path: written.append(path[-1])  # noqa: E731
    blobs = [SimpleNamespace(name=name, download_to_filename=take) for name in names]
    if kind == "gcs":
        manager: Any = object.__new__(storage.GCSStorageManager)
        manager.prefix, manager.bucket = "", SimpleNamespace(list_blobs=lambda prefix: blobs)
    else:
        manager = object.__new__(storage.AzureStorageManager)
        manager.container = "box"
        manager.client = SimpleNamespace(list_files=lambda *a, **k: names, get=take)
    with pytest.raises(UserError, match="'../../x' does not stay inside"):
        manager.download("runs/1", tmp_path / "in")
    assert written == [] and tree(tmp_path) == {}
    names.pop()
    blobs.pop()
    manager.download("runs/1", tmp_path / "in")
    assert written == [str(tmp_path / "in" / "a")]

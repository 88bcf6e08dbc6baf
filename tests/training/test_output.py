"""A run whose output is in a bucket, and whose machine vanishes between two starts."""

import errno
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import yaml

from detalbert import bucket
from detalbert.errors import Unavailable
from detalbert.training.controller import Controller
from detalbert.training.manifest import MANIFEST, find_fault
from detalbert.training.output import Output
from tests.conftest import TINY_LM, configured, settings
from tests.fakes.runs import change, refusal, run, steps_of, stop_after
from tests.same_bits import differences

ADDRESS = "s3://bucket/runs/1"
KEPT = ("--set", "checkpoint_storage.save_trial_latest=2")
PERIODS = {"max_steps": 14, "checkpoint_period": 4, "validation_period": 8, "reporting_period": 1}


@pytest.fixture
def place(tmp_path: Path, tiny_config: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the run of `tiny_config` at ADDRESS has its folder."""
    change(tiny_config, **PERIODS)
    # The 150 files of the code would be half a minute of each test.
    monkeypatch.setattr(Controller, "copy_code", staticmethod(lambda path: None))
    monkeypatch.chdir(tmp_path)
    return Path("runs/s3/bucket/runs/1")


def start(config: Path, monkeypatch: pytest.MonkeyPatch, until: int = 99) -> int:
    with monkeypatch.context() as patch:
        stop_after(patch, until)
        return run(config, ADDRESS, *KEPT)


def keys(client: Any, below: str = "runs/1/") -> set[str]:
    found = client.list_objects_v2(Bucket="bucket", Prefix=below).get("Contents", [])
    return {entry["Key"].removeprefix(below) for entry in found}


@pytest.mark.parametrize("weights", ["state_dict.pth", "__0_0.distcp"])
def test_a_machine_that_vanishes_leaves_a_run_that_goes_on(
    weights: str, place: Path, s3: Any, tiny_config: Path, cache_dir: Path, monkeypatch: Any
) -> None:
    """Through answers that are refused, slow and cut; a run whose name begins alike is left out.
    A sharded model's checkpoints are uploaded beside the training."""
    client, faults = s3
    if weights.endswith(".distcp"):
        tiny_config.write_text(yaml.safe_dump(configured(TINY_LM, cache_dir, **PERIODS)))
    assert run(tiny_config, "uncut", *KEPT) == 0
    other = "runs/12/checkpoints/step-00000099/manifest.json"
    client.put_object(Bucket="bucket", Key=other, Body="")
    faults.kinds = ["500", "slow", "truncated", *["fine"] * 5]
    for until in (5, 9, 11):
        assert start(tiny_config, monkeypatch, until) == 143
        assert steps_of(place)[-1] == until
        whole = [path.parent.name for path in place.glob(f"checkpoints/*/{weights}")]
        shutil.rmtree("runs")
    assert sorted(whole) == ["step-00000009", "step-00000011"]  # of others no weights are fetched
    faults.kinds = []
    assert start(tiny_config, monkeypatch) == 0
    assert all(faults.done.values()), faults.done
    assert differences(place, Path("uncut")) == []
    files = {path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file()}
    local = {name for name in files if name.startswith("checkpoints") or "/" not in name}
    there = {name for name in keys(client) if not name.startswith("tensorboard")}
    assert len(there) < len(keys(client))
    assert there == local - {".lock"} and len(keys(client, "runs/12/")) == 1  # also the best
    at_the_end = client.get_object(Bucket="bucket", Key="runs/1/metrics.json")["Body"].read()
    assert at_the_end == (place / "metrics.json").read_bytes()


def test_half_a_checkpoint_does_not_count(
    place: Path, s3: Any, tiny_config: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """The bucket fails in the middle of the second checkpoint, which is whole here."""
    client, _ = s3
    put, sent = bucket.put, []

    def put_or_fail(folder: Path, address: str, names: Any) -> None:
        sent.append(address)
        if address.endswith("/step-00000008") and MANIFEST in names:
            raise Unavailable("the bucket does not answer")
        put(folder, address, names)

    with monkeypatch.context() as patch:
        patch.setattr(bucket, "put", put_or_fail)
        said = refusal(capsys, tiny_config, ADDRESS, *KEPT)
    assert said == "train.py: unavailable: the bucket does not answer"
    assert "checkpoints/step-00000008/state_dict.pth" in keys(client)
    assert steps_of(place) == [4, 8]
    assert start(tiny_config, monkeypatch, 5) == 143
    assert steps_of(place) == [4, 5], sent
    unsent = place / "previous-1" / "checkpoints" / "step-00000008"
    assert find_fault(unsent) is None
    assert f"{ADDRESS} lacks step-00000008; moved to {unsent.parent}" in capsys.readouterr().err
    assert start(tiny_config, monkeypatch) == 0 and run(tiny_config, "uncut", *KEPT) == 0
    assert differences(place, Path("uncut")) == []


def test_of_a_damaged_checkpoint_the_one_before_it_is_used(
    place: Path, s3: Any, tiny_config: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    client, _ = s3
    assert start(tiny_config, monkeypatch, 7) == 143
    key = "runs/1/checkpoints/step-00000007/state_dict.pth"
    client.put_object(Bucket="bucket", Key=key, Body=b"cut")
    shutil.rmtree("runs")
    fetched, download = list[str](), bucket.download
    note = lambda address, *to: (fetched.append(address), download(address, *to))  # noqa: E731
    monkeypatch.setattr(bucket, "download", note)
    assert start(tiny_config, monkeypatch) == 0
    place_of_7 = f"{ADDRESS}/checkpoints/step-00000007"
    assert fetched.count(place_of_7) == 3  # it may have been the network
    said = capsys.readouterr().err
    assert "step-00000007 is damaged (state_dict.pth" in said and "resumed at step 4 of" in said
    assert run(tiny_config, "uncut", *KEPT) == 0 and differences(place, Path("uncut")) == []


WRONG = {
    "s3:/bucket/runs": "s3:/bucket/runs: give s3://BUCKET/PATH, gs://, az://, or a folder",
    "s3://a bucket/runs": "s3://a bucket/runs: give s3://BUCKET/PATH",
    "http://bucket/runs": "http://bucket/runs: give s3://BUCKET/PATH, gs://, az://, or a folder",
    "s3://b/../../x": "s3://b/../../x: give s3://BUCKET/PATH",
    "s3://none/runs": "s3://none/runs: An error occurred (NoSuchBucket) ",
    "az://box/runs": "az://box/runs: Either 'connection_string' or ",
    "gs://box/runs": "gs://box/runs: Your default credentials were not found",
}


@pytest.mark.parametrize("address", WRONG)
def test_a_wrong_address_is_one_line(
    address: str, place: Path, s3: Any, tiny_config: Path, capsys: Any
) -> None:
    assert refusal(capsys, tiny_config, address).startswith(f"train.py: error: {WRONG[address]}")


def test_a_run_in_a_bucket_is_not_started_over(
    place: Path, s3: Any, tiny_config: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    before = start(tiny_config, monkeypatch, 5), keys(s3[0])
    capsys.readouterr()
    said = refusal(capsys, tiny_config, ADDRESS, "--resume", "never")
    assert said.endswith(f"--resume never: {ADDRESS} has a run; give another one")
    assert before == (143, keys(s3[0])) and steps_of(place)[-1] == 5


def test_a_bucket_that_can_only_be_read_is_found_before_the_first_step(
    place: Path, s3: Any, tiny_config: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    pass_on = s3[1].respond
    for status, kind in ((403, "error"), (429, "unavailable"), (500, "unavailable")):
        refuse = lambda asked, s=status: (s, b"", {}) if asked.method == "PUT" else pass_on(asked)  # noqa: E731
        monkeypatch.setattr(s3[1], "respond", refuse)
        said = refusal(capsys, tiny_config, ADDRESS)
        assert said.startswith(f"train.py: {kind}: {ADDRESS}: An error occurred ({status}) when ")
        assert steps_of(place) == []


def test_a_full_disk_is_no_fault_of_the_bucket(
    place: Path, s3: Any, tiny_config: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    full = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr(bucket.storage.S3StorageManager, "download", full)
    said = refusal(capsys, tiny_config, ADDRESS)
    assert said == f"train.py: error: {ADDRESS}: No space left on device"


def test_names_that_begin_alike_are_not_below(s3: Any, tmp_path: Path) -> None:
    for key in ("runs/1/a", "runs/12/a"):
        s3[0].put_object(Bucket="bucket", Key=key, Body=b"")
    bucket.download(ADDRESS, tmp_path / "runs" / "1")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / "runs/1/a"]
    bucket.remove(ADDRESS)
    assert keys(s3[0], "runs/") == {"12/a"}


def test_a_wsd_run_made_longer_elsewhere(place: Path, s3: Any, tiny_config: Path) -> None:
    """The decay of 12 steps begins at 8, whose checkpoint is damaged; that of 4 is fetched then."""
    damaged = "checkpoints/step-00000008/state_dict.pth"
    wsd = [*settings(schedule="wsd", decay_fraction=0.3), "--set"]
    wsd.append("checkpoint_storage.save_trial_latest=9")
    for steps in (12, 24):
        for output in (ADDRESS, Path("local")):
            assert run(tiny_config, output, *wsd, *settings(max_steps=steps)) == 0
        if steps == 12:
            shutil.rmtree("runs")
            s3[0].put_object(Bucket="bucket", Key=f"runs/1/{damaged}", Body=b"cut")
            Path("local", damaged).write_bytes(b"cut")
    assert differences(place, Path("local")) == []


def test_an_older_checkpoint_is_gone_on_from_elsewhere(
    place: Path, s3: Any, tiny_config: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """On another machine, which has fetched the manifest of that checkpoint alone: the later ones
    are set aside in the bucket too, and the next start goes on from the new time line."""
    assert start(tiny_config, monkeypatch, 9) == 143 and steps_of(place) == [8, 9]
    shutil.rmtree("runs")
    old = str(place / "checkpoints" / "step-00000008")
    with monkeypatch.context() as patch:
        stop_after(patch, 10)
        assert run(tiny_config, ADDRESS, *KEPT, "--resume", old) == 143
    aside = {name for name in keys(s3[0]) if name.startswith("previous-1/checkpoints/")}
    assert "previous-1/checkpoints/step-00000009/state_dict.pth" in aside
    assert "previous-1/metrics.json" in keys(s3[0])
    shutil.rmtree("runs")
    capsys.readouterr()
    assert start(tiny_config, monkeypatch) == 0
    assert "resumed at step 10 of 14" in capsys.readouterr().err
    assert run(tiny_config, "uncut", *KEPT) == 0 and differences(place, Path("uncut")) == []


def test_a_folder_without_a_manifest_is_no_checkpoint(tmp_path: Path, monkeypatch: Any) -> None:
    """It is somebody's, and stays beside those that a bucket lacks."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bucket, "download", lambda *a: None)
    output = Output(ADDRESS)
    notes = output.folder / "checkpoints" / "step-00000099" / "notes.txt"
    notes.parent.mkdir(parents=True)
    notes.write_text("mine")
    output.fetch()
    assert notes.read_text() == "mine"

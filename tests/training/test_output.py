"""A run whose output is in a bucket, and whose machine vanishes between two starts."""

import errno
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import yaml

from detalbert import bucket
from detalbert.errors import Unavailable, UserError
from detalbert.training.controller import Controller
from detalbert.training.manifest import MANIFEST, find_fault
from detalbert.training.output import Output
from tests.conftest import TINY_LM, configured, settings
from tests.fakes.runs import change, refusal, run, steps_of, stop_after
from tests.same_bits import differences

Patch = pytest.MonkeyPatch
Capture = pytest.CaptureFixture[str]
ADDRESS = "s3://bucket/runs/1"
KEEP_TWO = ["--set", "checkpoint_storage.save_trial_latest=2"]
PERIODS = {"max_steps": 14, "checkpoint_period": 4, "validation_period": 8, "reporting_period": 1}


@pytest.fixture
def place(tmp_path: Path, tiny_config: Path, monkeypatch: Patch) -> Path:
    """Where the run of `tiny_config` at ADDRESS has its folder."""
    change(tiny_config, **PERIODS)
    # The 150 files of the code would be half a minute of each test.
    monkeypatch.setattr(Controller, "copy_code", staticmethod(lambda path: None))
    monkeypatch.chdir(tmp_path)
    return Path("runs/s3/bucket/runs/1")


@pytest.fixture
def client(s3: Any) -> Any:
    """A client of the bucket."""
    client, _ = s3
    return client


@pytest.fixture
def server(s3: Any) -> Any:
    """The server before the bucket, which may fail."""
    _, server = s3
    return server


def start(config: Path, monkeypatch: Patch, until: int = 99) -> int:
    """Start or resume the run at ADDRESS; it is stopped at step `until`."""
    with monkeypatch.context() as patch:
        stop_after(patch, until)
        return run(config, ADDRESS, *KEEP_TWO)


def lose_machine() -> None:
    shutil.rmtree("runs")


def assert_as_uncut(config: Path, output: Path) -> None:
    assert run(config, "uncut", *KEEP_TWO) == 0
    assert differences(output, Path("uncut")) == []


def keys(client: Any, below: str = "runs/1/") -> set[str]:
    objects = client.list_objects_v2(Bucket="bucket", Prefix=below).get("Contents", [])
    return {entry["Key"].removeprefix(below) for entry in objects}


def local_files(place: Path) -> set[str]:
    """The files of a run but for its charts."""
    names = set()
    for path in place.rglob("*"):
        name = path.relative_to(place).as_posix()
        if path.is_file() and (name.startswith("checkpoints") or "/" not in name):
            names.add(name)
    return names


@pytest.mark.parametrize("weights", ["state_dict.pth", "__0_0.distcp"])
def test_a_machine_that_vanishes_leaves_a_run_that_goes_on(
    weights: str,
    place: Path,
    client: Any,
    server: Any,
    tiny_config: Path,
    cache_dir: Path,
    monkeypatch: Patch,
) -> None:
    """Through answers that are refused, slow and cut; a run whose name begins alike is left out.
    A sharded model's checkpoints are uploaded beside the training."""
    if weights.endswith(".distcp"):
        tiny_config.write_text(yaml.safe_dump(configured(TINY_LM, cache_dir, **PERIODS)))
    alike = "runs/12/checkpoints/step-00000099/manifest.json"
    client.put_object(Bucket="bucket", Key=alike, Body="")

    server.kinds = ["500", "slow", "truncated", *["fine"] * 5]
    for until in (5, 9, 11):
        assert start(tiny_config, monkeypatch, until) == 143
        assert steps_of(place)[-1] == until
        with_weights = [path.parent.name for path in place.glob(f"checkpoints/*/{weights}")]
        lose_machine()
    # Of the one at step 5 no weights are fetched.
    assert sorted(with_weights) == ["step-00000009", "step-00000011"]
    server.kinds = []
    assert start(tiny_config, monkeypatch) == 0

    assert all(server.done.values()), server.done
    assert_as_uncut(tiny_config, place)
    stored = keys(client)
    without_charts = {name for name in stored if not name.startswith("tensorboard")}
    assert without_charts == local_files(place) - {".lock"}  # also the best
    assert len(without_charts) < len(stored)
    assert len(keys(client, "runs/12/")) == 1
    response = client.get_object(Bucket="bucket", Key="runs/1/metrics.json")
    assert response["Body"].read() == (place / "metrics.json").read_bytes()


def test_half_a_checkpoint_does_not_count(
    place: Path, client: Any, tiny_config: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    """The bucket fails in the middle of the second checkpoint, which is whole here."""
    put = bucket.put

    def put_or_fail(folder: Path, address: str, files: Any) -> None:
        if address.endswith("/step-00000008") and MANIFEST in files:
            raise Unavailable("the bucket does not answer")
        put(folder, address, files=files)

    with monkeypatch.context() as patch:
        patch.setattr(bucket, "put", put_or_fail)
        error = refusal(capsys, tiny_config, ADDRESS, *KEEP_TWO)
    assert error == "train.py: unavailable: the bucket does not answer"
    assert "checkpoints/step-00000008/state_dict.pth" in keys(client)
    assert steps_of(place) == [4, 8]

    assert start(tiny_config, monkeypatch, 5) == 143
    assert steps_of(place) == [4, 5]
    unsent = place / "previous-1" / "checkpoints" / "step-00000008"
    assert find_fault(unsent) is None
    assert f"{ADDRESS} lacks step-00000008; moved to {unsent.parent}" in capsys.readouterr().err

    assert start(tiny_config, monkeypatch) == 0
    assert_as_uncut(tiny_config, place)


def test_of_a_damaged_checkpoint_the_one_before_it_is_used(
    place: Path, client: Any, tiny_config: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    assert start(tiny_config, monkeypatch, 7) == 143
    weights = "runs/1/checkpoints/step-00000007/state_dict.pth"
    client.put_object(Bucket="bucket", Key=weights, Body=b"cut")
    lose_machine()
    download = bucket.download
    downloads: list[str] = []

    def note_and_download(address: str, *arguments: Any, **options: Any) -> None:
        downloads.append(address)
        download(address, *arguments, **options)

    monkeypatch.setattr(bucket, "download", note_and_download)
    assert start(tiny_config, monkeypatch) == 0

    damaged = f"{ADDRESS}/checkpoints/step-00000007"
    assert downloads.count(damaged) == 3  # it may have been the network
    shown = capsys.readouterr().err
    assert "step-00000007 is damaged (state_dict.pth" in shown
    assert "resumed at step 4 of" in shown
    assert_as_uncut(tiny_config, place)


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
    address: str, place: Path, s3: Any, tiny_config: Path, capsys: Capture
) -> None:
    error = refusal(capsys, tiny_config, address)
    assert error.startswith(f"train.py: error: {WRONG[address]}")


def test_a_run_in_a_bucket_is_not_started_over(
    place: Path, client: Any, tiny_config: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    assert start(tiny_config, monkeypatch, 5) == 143
    before = keys(client)
    capsys.readouterr()
    error = refusal(capsys, tiny_config, ADDRESS, "--resume", "never")
    assert error.endswith(f"--resume never: {ADDRESS} has a run; give another one")
    assert keys(client) == before
    assert steps_of(place)[-1] == 5


@pytest.mark.parametrize(
    "status, kind", [(403, "error"), (429, "unavailable"), (500, "unavailable")]
)
def test_a_bucket_that_can_only_be_read_is_found_before_the_first_step(
    status: int,
    kind: str,
    place: Path,
    server: Any,
    tiny_config: Path,
    monkeypatch: Patch,
    capsys: Capture,
) -> None:
    respond = server.respond

    def refuse_writes(request: Any) -> Any:
        if request.method == "PUT":
            return status, b"", {}
        return respond(request)

    monkeypatch.setattr(server, "respond", refuse_writes)
    error = refusal(capsys, tiny_config, ADDRESS)
    assert error.startswith(f"train.py: {kind}: {ADDRESS}: An error occurred ({status}) when ")
    assert steps_of(place) == []


def test_a_full_disk_is_no_fault_of_the_bucket(
    place: Path, s3: Any, tiny_config: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    full = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr(bucket.storage.S3StorageManager, "download", full)
    error = refusal(capsys, tiny_config, ADDRESS)
    assert error == f"train.py: error: {ADDRESS}: No space left on device"


def test_names_that_begin_alike_are_not_below(client: Any, tmp_path: Path) -> None:
    client.put_object(Bucket="bucket", Key="runs/1/a", Body=b"")
    client.put_object(Bucket="bucket", Key="runs/12/a", Body=b"")
    bucket.download(ADDRESS, tmp_path / "runs" / "1")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files == [tmp_path / "runs/1/a"]
    bucket.remove(ADDRESS)
    assert keys(client, "runs/") == {"12/a"}


def test_a_wsd_run_made_longer_elsewhere(place: Path, client: Any, tiny_config: Path) -> None:
    """The decay of 12 steps begins at 8, whose checkpoint is damaged; that of 4 is fetched then."""
    local = Path("local")
    damaged = "checkpoints/step-00000008/state_dict.pth"
    options = settings(schedule="wsd", decay_fraction=0.3)
    options += ["--set", "checkpoint_storage.save_trial_latest=9"]
    for output in (ADDRESS, local):
        assert run(tiny_config, output, *options, *settings(max_steps=12)) == 0
    lose_machine()
    client.put_object(Bucket="bucket", Key=f"runs/1/{damaged}", Body=b"cut")
    (local / damaged).write_bytes(b"cut")

    for output in (ADDRESS, local):
        assert run(tiny_config, output, *options, *settings(max_steps=24)) == 0
    assert differences(place, local) == []


def test_an_older_checkpoint_is_gone_on_from_elsewhere(
    place: Path, client: Any, tiny_config: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    """On another machine, which has fetched the manifest of that checkpoint alone: the later ones
    are set aside in the bucket too, and the next start goes on from the new time line."""
    assert start(tiny_config, monkeypatch, 9) == 143
    assert steps_of(place) == [8, 9]
    lose_machine()

    older = place / "checkpoints" / "step-00000008"
    with monkeypatch.context() as patch:
        stop_after(patch, 10)
        assert run(tiny_config, ADDRESS, *KEEP_TWO, "--resume", older) == 143
    assert "previous-1/checkpoints/step-00000009/state_dict.pth" in keys(client)
    assert "previous-1/metrics.json" in keys(client)

    lose_machine()
    capsys.readouterr()
    assert start(tiny_config, monkeypatch) == 0
    assert "resumed at step 10 of 14" in capsys.readouterr().err
    assert_as_uncut(tiny_config, place)


def test_a_folder_without_a_manifest_is_no_checkpoint(tmp_path: Path, monkeypatch: Patch) -> None:
    """It is somebody's, and stays beside those that a bucket lacks."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bucket, "download", Mock())
    output = Output(ADDRESS)
    notes = output.folder / "checkpoints" / "step-00000099" / "notes.txt"
    notes.parent.mkdir(parents=True)
    notes.write_text("mine")
    output.fetch()
    assert notes.read_text() == "mine"


def test_an_empty_name_is_no_folder() -> None:
    """A variable of the shell that is not set would fill the working directory."""
    with pytest.raises(UserError, match="^--output-dir: it is empty; name a folder$"):
        Output("")

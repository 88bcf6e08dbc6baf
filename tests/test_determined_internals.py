"""Private names of Determined are those of the installed version; nothing leaves a download."""

import contextlib
import inspect
import io
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3  # noqa: F401  Determined's manager needs it imported
import determined
import pytest
from determined import core, experimental, pytorch, util
from determined.common import storage
from hypothesis import given
from hypothesis import strategies as st

import detalbert.determined_internals  # noqa: F401  it is what is tested
from detalbert.errors import UserError
from tests.conftest import max_examples

LOOP, CHECKPOINTS = pytorch._PyTorchTrialController, core.CheckpointContext
CONTEXT = pytorch.PyTorchTrialContext
SIGNATURES = {
    LOOP._step_batch: ["self"],
    LOOP._stop_requested: ["self"],
    LOOP._steps_until_complete: ["self", "train_unit"],
    LOOP._checkpoint: ["self", "already_exiting"],
    LOOP._load: ["self", "load_path"],
    LOOP._load_state: ["self", "state"],
    LOOP._save: ["self", "path"],
    CHECKPOINTS._upload_sharded: ["self", "ckpt_dir", "storage_id", "metadata", "selector"],
    CHECKPOINTS._report_checkpoint: ["self", "storage_id", "resources", "metadata"],
    util.write_user_code: ["path", "on_cluster"],
    pytorch.Batch.should_stop: ["self", "step_num"],
    pytorch._ShouldExit: ["skip_exit_checkpoint"],
    LOOP: "trial_inst context checkpoint_period validation_period reporting_period "
    "smaller_is_better steps_completed latest_checkpoint local_training test_mode "
    "searcher_metric_name checkpoint_policy step_zero_validation max_length global_batch_size "
    "profiling_enabled".split(),
}  # fmt: skip
# Where a name is called, or an attribute set that is read there.
USES = {
    LOOP: "_step_batch _stop_requested _steps_until_complete _checkpoint _load _save _ShouldExit "
    "should_stop".split(),
    CONTEXT: "_core _exp_conf _PyTorchDistributedDataParallel _current_batch_idx".split(),
    CHECKPOINTS: "_dist _storage_manager _upload_sharded _report_checkpoint".split(),
    determined.TrialInfo: ["_config"],
    experimental.Model: ["_session"],
}


def test_names_and_signatures_are_as_used():
    for function, names in SIGNATURES.items():
        assert list(inspect.signature(function).parameters) == names, function
    for owner, names in USES.items():
        source = inspect.getsource(owner)
        assert [name for name in names if name not in source] == [], owner


def content(folder: Path) -> dict[str, str]:
    """The content of all files below a folder, by path."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_text() for path in files}


def download(kind: str, keys: list[str], folder: Path) -> None:
    """Download these keys, below runs/1, from a storage in which each is a file."""

    def take(path: str) -> None:
        Path(path).write_text("theirs")

    manager: Any = object.__new__(
        {
            "s3": storage.S3StorageManager,
            "gcs": storage.GCSStorageManager,
            "azure": storage.AzureStorageManager,
        }[kind]
    )
    keys = [f"runs/1/{key}" for key in keys]
    manager.prefix = ""
    manager.bucket_name = manager.container = "box"
    objects = [SimpleNamespace(key=key, name=key, download_to_filename=take) for key in keys]
    manager.bucket = SimpleNamespace(
        objects=SimpleNamespace(filter=lambda Prefix: objects),
        list_blobs=lambda prefix: objects,
        download_file=lambda key, path: take(path),
    )
    manager.client = SimpleNamespace(
        list_files=lambda *a, **k: keys, get=lambda container, key, path: take(path)
    )
    manager.download("runs/1", folder)


PARTS = ["..", ".", "", "a", "b.json", "step-4", "x\\..\\y", "..a", "a..", "\n", "ü"]
KEY = st.lists(st.sampled_from(PARTS), min_size=1, max_size=6).map("/".join)


@max_examples(100)
@given(KEY, st.sampled_from(["s3", "gcs", "azure"]))
def test_no_key_is_written_outside(tmp_path_factory, key, kind):
    home = tmp_path_factory.mktemp("home")
    (home / "mine").write_text("mine")
    folder = home / "a" / "b"
    folder.mkdir(parents=True)
    try:
        download(kind, [key, "fine"], folder)
    except UserError as error:
        assert str(error).startswith("checkpoint storage, below runs/1: ")
    except OSError:
        assert key.endswith(".")  # a file in place of a folder
    written = content(home)
    assert written.pop("mine") == "mine"
    assert all(name.startswith("a/b/") for name in written)


@pytest.mark.parametrize("kind", ["s3", "gcs", "azure"])
def test_ordinary_keys_arrive(kind, tmp_path):
    download(kind, ["a", "step-4/manifest.json", "..b", "ü"], tmp_path)
    assert sorted(content(tmp_path)) == ["..b", "a", "step-4/manifest.json", "ü"]


MEMBERS: dict[str, dict[str, Any]] = {
    "../x": {},
    "{tmp}/x": {},
    "a/../../x": {},
    "link": {"type": tarfile.SYMTYPE, "linkname": "/"},
    "hard": {"type": tarfile.LNKTYPE, "linkname": "../x"},
    "null": {"type": tarfile.CHRTYPE},
    "./code/a.py": {},
}


@pytest.mark.parametrize("name", MEMBERS)
def test_an_archive_of_the_master_stays_in_its_folder(name, tmp_path):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        member = tarfile.TarInfo(name.format(tmp=tmp_path))
        for key, value in MEMBERS[name].items():
            setattr(member, key, value)
        member.size = 0 if MEMBERS[name] else 1
        archive.addfile(member, io.BytesIO(b"x"))
    buffer.seek(0)
    session: Any = SimpleNamespace(get=lambda *a, **k: SimpleNamespace(ok=True, raw=buffer))
    with contextlib.suppress(tarfile.FilterError):
        experimental.Checkpoint._download_via_master(session, "uuid", tmp_path / "in")
    written = content(tmp_path)
    assert all(path.startswith("in/") for path in written)
    assert not any(path.is_symlink() for path in tmp_path.rglob("*"))
    assert (name == "./code/a.py") <= (written == {"in/code/a.py": "x"})

"""A sharded checkpoint in S3, from two machines whose temporary folders look like one."""

import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import boto3
import pytest
import torch
import torch.distributed as dist
from determined import core
from determined.common import api, storage
from determined.core import _checkpoint

from detalbert.errors import UserError
from detalbert.training.checkpoints import write_manifest
from detalbert.training.parts import TensorSaver, files_needed, load_tensors
from detalbert.training.uploads import STATE, Peers, UploadedParts
from lm.layout import Layout
from tests.fakes.master import TOKEN, FakeMaster
from tests.fakes.s3 import moto_server
from tests.lm.ranks import start
from tests.lm.tables import write_as_before
from tests.lm.test_elastic import Job

pytestmark = pytest.mark.usefixtures("fork")

METADATA = {"steps_completed": 2}
KEYS = {"access_key": "any", "secret_key": "any"}


def one_inode(path: Any) -> os.stat_result:
    """Every folder as the first of a disk of its own: machines made from one image."""
    found = os.stat(path)
    return os.stat_result((found.st_mode, 7, 1, *found[3:]))


class Machine:
    """One process on a machine of its own, with a model of which it has half."""

    def __init__(self, folder: Path, s3: str, master: str, ports: list[int], seed: int) -> None:
        rank = dist.get_rank()
        temporary = folder / f"tmp{rank}"
        temporary.mkdir(exist_ok=True)
        os.environ["TMPDIR"] = str(temporary)
        self.job = Job(Layout(shard=2), seed, tied=False)
        self.job.step(0)
        ranks = {"rank": rank, "size": 2, "local_rank": 0, "local_size": 1}
        ranks |= {"cross_rank": rank, "cross_size": 2, "pub_port": ports[0], "pull_port": ports[1]}
        their_dist = core.DistributedContext(chief_ip="127.0.0.1", **ranks)
        session = api.TaskSession(master, "determined", TOKEN, None)
        made = {"endpoint_url": s3, "temp_dir": str(temporary), **KEYS}
        self.manager = storage.S3StorageManager("bucket", **made)
        manual = core.TensorboardMode.MANUAL
        self.theirs = core.CheckpointContext(
            their_dist, self.manager, session, "1.task", "1.allocation", manual, None, 1
        )
        self.fetched: set[str] = set()
        self.store = UploadedParts(self.theirs, self.needed)
        self.group = dist.new_group(backend="gloo")

    def needed(self, path: Path) -> set[str]:
        self.fetched = files_needed(path, self.job.model, self.job.optimizer)
        return self.fetched

    def save(self) -> None:
        with self.store.store_together(METADATA, Peers(self.group)) as (path, _):
            if dist.get_rank() == 0:
                (path / STATE).write_text("{}")
            TensorSaver(self.group).save(path, self.job.model, self.job.optimizer)()

    def save_as_determined_would(self) -> None:
        with self.theirs.store_path(METADATA, shard=True) as (path, _):
            TensorSaver(self.group).save(path, self.job.model, self.job.optimizer)()

    def restore(self, name: str) -> None:
        with self.store.restore_path(name) as path:
            load_tensors(path, self.job.model, self.job.optimizer)


def saved(
    folder: Path, s3: str, master: str, ports: list[int], how: str, spoilt: str
) -> tuple[Any, str]:
    """State that a process has and saved, and the line that it ended with."""
    machine = Machine(folder, s3, master, ports, seed=7)
    upload, state = machine.manager.upload, machine.job.state()

    def spoil(src: Any, dst: str, paths: set[str]) -> None:
        """What `upload` would do if the storage lost the end of a file, or all of it."""
        if spoilt == "short" and "__1_0.distcp" in paths:
            os.truncate(Path(src) / "__1_0.distcp", 1000)
        if spoilt == "lost":
            paths = paths - {"__1_0.distcp"}
        upload(src, dst, paths)

    machine.manager.upload = spoil
    with mock.patch.object(_checkpoint, "os", SimpleNamespace(**{**vars(os), "stat": one_inode})):
        try:
            getattr(machine, how)()
        except UserError as error:
            return None, str(error)
    assert how != "save" or not list((folder / f"tmp{dist.get_rank()}").iterdir())
    return state, ""


def restored(
    folder: Path, s3: str, master: str, ports: list[int], name: str
) -> tuple[Any, str, set[str]]:
    """State that a process reads into other weights, what it says, the files that it read."""
    machine = Machine(folder, s3, master, ports, seed=8)
    try:
        machine.restore(name)
    except UserError as error:
        return None, str(error), set()
    return machine.job.state(), "", machine.fetched


class Cloud:
    """A bucket and a master, and what two machines do with them."""

    def __init__(self, s3: str, master: FakeMaster, folder: Path) -> None:
        self.s3, self.master, self.folder, self.runs = s3, master, folder, 0
        keys = {"aws_access_key_id": "any", "aws_secret_access_key": "any"}
        self.client = boto3.client("s3", endpoint_url=s3, region_name="us-east-1", **keys)
        self.client.create_bucket(Bucket="bucket")

    def do(self, what: Any, *args: Any) -> list[Any]:
        self.runs += 1
        folder = self.folder / str(self.runs)
        folder.mkdir()
        with socket.socket() as one, socket.socket() as other:
            for each in (one, other):
                each.bind(("127.0.0.1", 0))
            ports = [each.getsockname()[1] for each in (one, other)]
        return start(what, 2, folder, folder, self.s3, self.master.url, ports, *args)

    def sizes(self, name: str) -> dict[str, int]:
        found = self.client.list_objects_v2(Bucket="bucket", Prefix=f"{name}/").get("Contents", [])
        return {entry["Key"].split("/", 1)[1]: entry["Size"] for entry in found}


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with moto_server() as s3, FakeMaster() as master:
        yield Cloud(s3, master, tmp_path_factory.mktemp("cloud"))


@pytest.fixture(scope="module")
def kept(cloud: Cloud) -> tuple[str, dict[str, torch.Tensor]]:
    """A checkpoint's name and what it holds."""
    (state, said), (other, _) = cloud.do(saved, "save", "")
    assert said == "" and all(torch.equal(state[name], other[name]) for name in state)
    return cloud.master.checkpoints[-1].uuid, state


def test_every_file_of_both_machines_arrives_and_restores(cloud: Cloud, kept: Any) -> None:
    name, state = kept
    (checkpoint,) = [one for one in cloud.master.checkpoints if one.uuid == name]
    sizes = cloud.sizes(name)
    beside = {"tensors.json", "numbers.json", "state.json", "manifest.json"}
    assert {"__0_0.distcp", "__1_0.distcp", *beside} < set(sizes) and ".metadata" not in sizes
    assert {key: int(size) for key, size in checkpoint.resources.items()}.items() <= sizes.items()
    for loaded, said, fetched in cloud.do(restored, name):
        assert said == "" and fetched <= {"__0_0.distcp", "__1_0.distcp"}
        assert all(torch.equal(loaded[key], state[key]) for key in state)


def test_a_machine_fetches_what_its_processes_read(cloud: Cloud, kept: Any) -> None:
    """On the layout that wrote them, parts are read by those who wrote them."""
    fetched = [files for _, _, files in cloud.do(restored, kept[0])]
    assert fetched == [{"__0_0.distcp"}, {"__1_0.distcp"}]


def test_a_checkpoint_of_596c121_restores(cloud: Cloud, kept: Any, tmp_path: Path) -> None:
    """Which has its table as a pickle."""
    name, state = kept
    for key in cloud.sizes(name):
        (tmp_path / key).parent.mkdir(exist_ok=True)
        cloud.client.download_file("bucket", f"{name}/{key}", str(tmp_path / key))
    (tmp_path / "manifest.json").unlink()
    write_as_before(tmp_path)
    write_manifest(tmp_path, {"steps": 2})
    for path in (path for path in tmp_path.rglob("*") if path.is_file()):
        cloud.client.upload_file(str(path), "bucket", f"old/{path.relative_to(tmp_path)}")
    for loaded, said, _ in cloud.do(restored, "old"):
        assert said == "" and all(torch.equal(loaded[key], state[key]) for key in state)


def test_determineds_own_way_loses_a_machine_there(cloud: Cloud) -> None:
    """So the conditions above are those of the loss."""
    before = len(cloud.master.checkpoints)
    cloud.do(saved, "save_as_determined_would", "")
    assert len(cloud.master.checkpoints) == before + 1
    sizes = cloud.sizes(cloud.master.checkpoints.pop().uuid)
    assert "__0_0.distcp" in sizes and "__1_0.distcp" not in sizes


@pytest.mark.parametrize("spoilt, has", [("lost", "no"), ("short", "1000")])
def test_what_did_not_arrive_whole_is_not_reported(cloud: Cloud, spoilt: str, has: str) -> None:
    reported, objects = len(cloud.master.checkpoints), count(cloud)
    (_, said), _ = cloud.do(saved, "save", spoilt)
    assert said.startswith("checkpoint_storage: the checkpoint of step 2 is not stored")
    assert f"__1_0.distcp has {has} of " in said and "\n" not in said
    assert len(cloud.master.checkpoints) == reported and count(cloud) == objects


def count(cloud: Cloud) -> int:
    return len(cloud.client.list_objects_v2(Bucket="bucket").get("Contents", []))


@pytest.mark.parametrize(
    "file, spoil, said",
    [
        ("__1_0.distcp", "short", "__1_0.distcp is not as it was written"),
        ("__1_0.distcp", "lost", "__1_0.distcp is missing"),
        ("tensors.json", "short", "tensors.json is not as it was written"),
        ("manifest.json", "lost", "manifest.json is missing"),
    ],
)
def test_restore_names_what_is_not_as_it_was(
    cloud: Cloud, kept: Any, file: str, spoil: str, said: str
) -> None:
    name = f"{file.strip('._')}-{spoil}"
    for key in cloud.sizes(kept[0]):
        body = cloud.client.get_object(Bucket="bucket", Key=f"{kept[0]}/{key}")["Body"].read()
        if key == file and spoil == "lost":
            continue
        body = body[:-9] if key == file else body
        cloud.client.put_object(Bucket="bucket", Key=f"{name}/{key}", Body=body)
    results = [line for _, line, _ in cloud.do(restored, name)]
    assert any(f"checkpoint {name}: {said}; go on from another one" in line for line in results)

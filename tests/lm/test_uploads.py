"""A sharded checkpoint in S3, from two machines whose temporary folders look like one."""

import os
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import boto3
import pytest
import torch
import torch.distributed as dist
from determined import core
from determined.common import api, storage
from determined.core import _checkpoint

from detalbert.errors import UserError
from detalbert.training.parts import TensorSaver, files_needed, load_tensors
from detalbert.training.uploads import STATE, GroupCollectives, UploadedParts
from lm.hparams import Layout
from tests.cluster.container import free_port
from tests.fakes.master import TOKEN, FakeMaster
from tests.fakes.s3 import moto_server
from tests.lm.ranks import start
from tests.lm.test_parity import Job

pytestmark = pytest.mark.usefixtures("fork")

METADATA = {"steps_completed": 2}
KEYS = {"access_key": "any", "secret_key": "any"}
BUCKET = "machines"  # moto's buckets outlive its server


def one_inode(path: Any) -> os.stat_result:
    """Every folder as the first of a disk of its own: machines made from one image."""
    found = os.stat(path)
    return os.stat_result((found.st_mode, 7, 1, *found[3:]))


class Machine:
    """One process on a machine of its own, with a model of which it has half."""

    def __init__(self, folder: Path, s3: str, master: str, ports: list[int]) -> None:
        rank = dist.get_rank()
        tempfile.tempdir = str(folder / f"tmp{rank}")
        Path(tempfile.tempdir).mkdir(exist_ok=True)
        ranks = {"rank": rank, "size": 2, "local_rank": 0, "local_size": 1}
        ranks |= {"cross_rank": rank, "cross_size": 2, "pub_port": ports[0], "pull_port": ports[1]}
        their_dist = core.DistributedContext(chief_ip="127.0.0.1", **ranks)
        session = api.TaskSession(master, "determined", TOKEN, None)
        made = {"endpoint_url": s3, "temp_dir": tempfile.tempdir, **KEYS}
        self.manager = storage.S3StorageManager(BUCKET, **made)
        task = "1.task", "1.allocation", core.TensorboardMode.MANUAL, None, 1
        theirs = core.CheckpointContext(their_dist, self.manager, session, *task)
        self.store = UploadedParts(theirs, self.needed)
        self.group = dist.new_group(backend="gloo")

    def start(self, seed: int) -> None:
        self.job = Job(Layout(shard=2), seed, tied=False)
        self.job.step(0)
        self.fetched: set[str] = set()

    def needed(self, path: Path) -> set[str]:
        self.fetched = files_needed(path, self.job.model, self.job.optimizer)
        return self.fetched

    def save(self, _: str) -> None:
        with self.store.store_together(METADATA, GroupCollectives(self.group)) as (path, _):
            if dist.get_rank() == 0:
                (path / STATE).write_text("{}")
            TensorSaver(self.group).save(path, self.job.model, self.job.optimizer)()

    def restore(self, name: str) -> None:
        with self.store.restore_path(name) as path:
            load_tensors(path, self.job.model, self.job.optimizer)


def at_a_machine(
    folder: Path, s3: str, master: str, ports: list[int], acts: list[tuple[str, str]]
) -> list[tuple[Any, str, set[str]]]:
    """Of each act: the state after it, the line that it ended with, the files that it read."""
    machine, found = Machine(folder, s3, master, ports), list[Any]()
    upload = machine.manager.upload
    for number, (act, name) in enumerate(acts):
        machine.start(seed=len(acts) + number)  # other weights than those of a checkpoint

        def spoil(src: Any, dst: str, paths: set[str], spoilt: str = name) -> None:
            """What `upload` would do if the storage lost the end of a file, or all of it."""
            if spoilt == "short" and "__1_0.distcp" in paths:
                os.truncate(Path(src) / "__1_0.distcp", 1000)
            upload(src, dst, paths - {"__1_0.distcp"} if spoilt == "lost" else paths)

        machine.manager.upload = spoil
        fake_os = SimpleNamespace(**{**vars(os), "stat": one_inode})
        with mock.patch.object(_checkpoint, "os", fake_os):
            said = ""
            try:
                getattr(machine, act)(name)
                assert act != "save" or not list(Path(tempfile.gettempdir()).iterdir())
            except UserError as error:
                said = str(error)
        found.append((machine.job.state(), said, machine.fetched))  # of both together
    return found


class Cloud(NamedTuple):
    s3: str
    client: Any
    master: FakeMaster
    folder: Path

    def do(self, acts: list[tuple[str, str]]) -> list[Any]:
        ports = [free_port(), free_port()]
        given = self.folder, self.s3, self.master.url, ports, acts
        return start(at_a_machine, 2, self.folder, *given)

    def put(self, name: str) -> None:
        copy = self.folder / "copy"
        for path in (path for path in copy.rglob("*") if path.is_file()):
            self.client.upload_file(str(path), BUCKET, f"{name}/{path.relative_to(copy)}")

    def sizes(self, name: str = "") -> dict[str, int]:
        """Of all objects below a name."""
        found = self.client.list_objects_v2(Bucket=BUCKET, Prefix=name)["Contents"]
        return {entry["Key"].removeprefix(f"{name}/"): entry["Size"] for entry in found}


def test_checkpoints_of_two_machines(tmp_path):
    with moto_server() as s3, FakeMaster() as master:
        keys = {"aws_access_key_id": "any", "aws_secret_access_key": "any"}
        client = boto3.client("s3", endpoint_url=s3, region_name="us-east-1", **keys)
        client.create_bucket(Bucket=BUCKET)
        cloud = Cloud(s3, client, master, tmp_path)
        restores(cloud, *saves(cloud))


def saves(cloud: Cloud) -> tuple[str, dict[str, torch.Tensor]]:
    """Every file arrives, or nothing is reported; a checkpoint's name and what it holds."""
    (whole, lost, short), ((other, *_), *_) = cloud.do([("save", k) for k in ("", "lost", "short")])
    state = whole[0]
    assert whole[1] == "" and all(torch.equal(state[name], other[name]) for name in state)
    for (_, said, _), has in ((lost, "no"), (short, "1000")):
        assert said.startswith("checkpoint_storage: the checkpoint of step 2 is not stored")
        assert f"__1_0.distcp has {has} of " in said and "\n" not in said
    (stored,) = cloud.master.checkpoints
    sizes = cloud.sizes(stored.uuid)
    assert len(sizes) == len(cloud.sizes())  # of the others nothing is left
    beside = {"tensors.json", "numbers.json", "state.json", "manifest.json"}
    assert {"__0_0.distcp", "__1_0.distcp", *beside} < set(sizes) and ".metadata" not in sizes
    listed = {key: int(size) for key, size in stored.resources.items()}
    assert listed.items() <= sizes.items()
    return stored.uuid, state


DAMAGE = {
    "short-1": ("__1_0.distcp", "__1_0.distcp is not as it was written"),
    "short-table": ("tensors.json", "tensors.json is not as it was written"),
    "lost-manifest": ("manifest.json", "manifest.json is missing"),
}


def restores(cloud: Cloud, name: str, state: dict[str, torch.Tensor]) -> None:
    folder = cloud.folder / "copy"
    for key in cloud.sizes(name):
        (folder / key).parent.mkdir(exist_ok=True, parents=True)
        cloud.client.download_file(BUCKET, f"{name}/{key}", str(folder / key))
    for damaged, (file, _) in DAMAGE.items():
        content = (folder / file).read_bytes()
        (folder / file).write_bytes(content[:-9])
        if damaged.startswith("lost"):
            (folder / file).unlink()
        cloud.put(damaged)
        (folder / file).write_bytes(content)
    wanted = [name, *DAMAGE]
    for rank, found in enumerate(cloud.do([("restore", one) for one in wanted])):
        for loaded, said, fetched in found[:1]:
            assert said == "" and all(torch.equal(loaded[key], state[key]) for key in state)
            # On the layout that wrote them, parts are read by those who wrote them.
            assert fetched == {f"__{rank}_0.distcp"}
        for (damaged, (_, fault)), (_, said, _) in zip(DAMAGE.items(), found[1:], strict=True):
            assert f"checkpoint {damaged}: {fault}; go on from another one" in said

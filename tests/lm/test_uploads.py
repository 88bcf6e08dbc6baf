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
from torch import Tensor

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
PART = "__1_0.distcp"  # written by rank 1


class Act(NamedTuple):
    """What both machines do: save, or restore a checkpoint."""

    method: str
    name: str = ""  # of the checkpoint to restore
    fault: str = ""  # of the storage while it saves: lost or short


class Outcome(NamedTuple):
    """What an act left on a machine."""

    state: dict[str, Tensor]  # of both machines together
    error: str
    fetched: set[str]  # the files that it read


class Place(NamedTuple):
    """Where the machines find what they share."""

    folder: Path
    s3: str
    master: str
    ports: list[int]


def one_inode(path: Any) -> os.stat_result:
    """Every folder as the first of a disk of its own: machines made from one image."""
    real = os.stat(path)
    return os.stat_result((real.st_mode, 7, 1, *real[3:]))


class Machine:
    """One process on a machine of its own, with a model of which it has half."""

    def __init__(self, place: Place) -> None:
        rank = dist.get_rank()
        tempfile.tempdir = str(place.folder / f"tmp{rank}")
        Path(tempfile.tempdir).mkdir(exist_ok=True)
        distributed = core.DistributedContext(
            rank=rank,
            size=2,
            local_rank=0,
            local_size=1,
            cross_rank=rank,
            cross_size=2,
            chief_ip="127.0.0.1",
            pub_port=place.ports[0],
            pull_port=place.ports[1],
        )
        self.manager = storage.S3StorageManager(
            BUCKET, endpoint_url=place.s3, temp_dir=tempfile.tempdir, **KEYS
        )
        context = core.CheckpointContext(
            distributed,
            self.manager,
            api.TaskSession(place.master, "determined", TOKEN, None),
            task_id="1.task",
            allocation_id="1.allocation",
            tbd_sync_mode=core.TensorboardMode.MANUAL,
            tensorboard_manager=None,
            storage_backend_id=1,
        )
        self.store = UploadedParts(context, self.needed)
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
        assert list(Path(tempfile.gettempdir()).iterdir()) == []

    def restore(self, name: str) -> None:
        with self.store.restore_path(name) as path:
            load_tensors(path, self.job.model, self.job.optimizer)


def at_a_machine(place: Place, acts: list[Act]) -> list[Outcome]:
    """Carry out the acts on this rank's machine."""
    machine = Machine(place)
    upload = machine.manager.upload
    fake_os = SimpleNamespace(**{**vars(os), "stat": one_inode})
    outcomes = []
    for number, act in enumerate(acts):
        machine.start(seed=len(acts) + number)  # other weights than those of a checkpoint

        def upload_badly(src: Any, dst: str, paths: set[str], fault: str = act.fault) -> None:
            """What `upload` would do if the storage lost the end of a file, or all of it."""
            if fault == "short" and PART in paths:
                os.truncate(Path(src) / PART, 1000)
            if fault == "lost":
                paths = paths - {PART}
            upload(src, dst, paths)

        machine.manager.upload = upload_badly
        error = ""
        with mock.patch.object(_checkpoint, "os", fake_os):
            try:
                getattr(machine, act.method)(act.name)
            except UserError as user_error:
                error = str(user_error)
        outcomes.append(Outcome(machine.job.state(), error, machine.fetched))
    return outcomes


class Cloud(NamedTuple):
    """Storage and master, and the machines that use them."""

    s3: str
    client: Any
    master: FakeMaster
    folder: Path

    def do(self, acts: list[Act]) -> list[list[Outcome]]:
        """The outcomes of the acts on each of two machines."""
        ports = [free_port(), free_port()]
        place = Place(self.folder, self.s3, self.master.url, ports)
        return start(at_a_machine, 2, self.folder, place, acts)

    def get(self, name: str) -> Path:
        """Download the checkpoint `name` into the folder copy."""
        copy = self.folder / "copy"
        for key in self.sizes(name):
            file = copy / key
            file.parent.mkdir(exist_ok=True, parents=True)
            self.client.download_file(BUCKET, f"{name}/{key}", str(file))
        return copy

    def put(self, name: str) -> None:
        """Upload the folder copy as the checkpoint `name`."""
        copy = self.folder / "copy"
        for path in copy.rglob("*"):
            if path.is_file():
                self.client.upload_file(str(path), BUCKET, f"{name}/{path.relative_to(copy)}")

    def sizes(self, name: str = "") -> dict[str, int]:
        """The bytes of each object below a name."""
        objects = self.client.list_objects_v2(Bucket=BUCKET, Prefix=name)["Contents"]
        return {entry["Key"].removeprefix(f"{name}/"): entry["Size"] for entry in objects}


def test_checkpoints_of_two_machines(tmp_path):
    with moto_server() as s3, FakeMaster() as master:
        client = boto3.client(
            "s3",
            endpoint_url=s3,
            region_name="us-east-1",
            aws_access_key_id="any",
            aws_secret_access_key="any",
        )
        client.create_bucket(Bucket=BUCKET)
        cloud = Cloud(s3, client, master, tmp_path)
        name, state = check_saves(cloud)
        check_restores(cloud, name, state)


def equal(tensors: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    return all(torch.equal(tensors[name], tensor) for name, tensor in expected.items())


def check_saves(cloud: Cloud) -> tuple[str, dict[str, Tensor]]:
    """Every file arrives, or nothing is reported; a checkpoint's name and what it holds."""
    acts = [Act("save"), Act("save", fault="lost"), Act("save", fault="short")]
    first_machine, second_machine = cloud.do(acts)
    saved, lost, short = first_machine
    assert saved.error == ""
    assert equal(second_machine[0].state, saved.state)
    for error, size in ((lost.error, "no"), (short.error, "1000")):
        assert error.startswith("checkpoint_storage: the checkpoint of step 2 is not stored")
        assert f"{PART} has {size} of " in error
        assert "\n" not in error

    (stored,) = cloud.master.checkpoints
    sizes = cloud.sizes(stored.uuid)
    assert len(sizes) == len(cloud.sizes())  # of the others nothing is left
    assert {"__0_0.distcp", PART} < set(sizes)
    assert {"tensors.json", "numbers.json", "state.json", "manifest.json"} < set(sizes)
    assert ".metadata" not in sizes
    reported = {key: int(size) for key, size in stored.resources.items()}
    assert reported.items() <= sizes.items()
    return stored.uuid, saved.state


# The file that is cut or lost, and the error, by the name of the damaged checkpoint.
DAMAGE = {
    "short-1": (PART, f"{PART} is not as it was written"),
    "short-table": ("tensors.json", "tensors.json is not as it was written"),
    "lost-manifest": ("manifest.json", "manifest.json is missing"),
}


def check_restores(cloud: Cloud, name: str, state: dict[str, Tensor]) -> None:
    folder = cloud.get(name)
    for damaged_name, (file, _) in DAMAGE.items():
        content = (folder / file).read_bytes()
        if damaged_name.startswith("lost"):
            (folder / file).unlink()
        else:
            (folder / file).write_bytes(content[:-9])
        cloud.put(damaged_name)
        (folder / file).write_bytes(content)

    acts = [Act("restore", name) for name in (name, *DAMAGE)]
    for rank, outcomes in enumerate(cloud.do(acts)):
        restored, *refused = outcomes
        assert restored.error == ""
        assert equal(restored.state, state)
        # On the layout that wrote them, parts are read by those who wrote them.
        assert restored.fetched == {f"__{rank}_0.distcp"}
        for (damaged_name, (_, fault)), outcome in zip(DAMAGE.items(), refused, strict=True):
            assert f"checkpoint {damaged_name}: {fault}; go on from another one" in outcome.error

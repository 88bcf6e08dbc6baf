"""A sharded checkpoint in S3, from two machines whose temporary folders look like one."""

import os
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import boto3
import pytest
import torch
import torch.distributed as dist
from determined import core
from determined.common import api, storage
from determined.core import _checkpoint

from detalbert.errors import UserError
from detalbert.training.parts import TensorSaver, load_tensors
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
SHARDS = [f"shard-0000{rank}-model-00001-of-00001.safetensors" for rank in (1, 2)]
PART = SHARDS[1]
DAMAGED = "damaged"  # the name of a checkpoint whose part has lost its end


class Place(NamedTuple):
    """Where the machines find what they share."""

    folder: Path
    s3: str
    master: str
    ports: list[int]


def one_inode(path):
    """Every folder as the first of a disk of its own: machines made from one image."""
    real = os.stat(path)
    return os.stat_result((real.st_mode, 7, 1, *real[3:]))


def store_of(place):
    """The checkpoints as one process sees them, on a machine of its own."""
    rank = dist.get_rank()
    _checkpoint.os = SimpleNamespace(**{**vars(os), "stat": one_inode})
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
    manager = storage.S3StorageManager(
        BUCKET, endpoint_url=place.s3, temp_dir=tempfile.tempdir, **KEYS
    )
    context = core.CheckpointContext(
        distributed,
        manager,
        api.TaskSession(place.master, "determined", TOKEN, None),
        task_id="1.task",
        allocation_id="1.allocation",
        tbd_sync_mode=core.TensorboardMode.MANUAL,
        tensorboard_manager=None,
        storage_backend_id=1,
    )
    return UploadedParts(context)


def make_job(seed):
    """A model of which each machine has half, after a step."""
    job = Job(Layout(shard=2), seed, tied=False)
    job.step(0)
    return job


def save(place):
    """What both machines together have stored."""
    store = store_of(place)
    job = make_job(seed=1)
    group = dist.new_group(backend="gloo")
    with store.store_together(METADATA, GroupCollectives(group)) as (path, _):
        if dist.get_rank() == 0:
            (path / STATE).write_text("{}")
        TensorSaver(group).save(path, job.model, job.optimizer)()
    assert list(Path(tempfile.gettempdir()).iterdir()) == []
    return job.state()


def restore(place, name):
    """What both machines together have of a checkpoint; they refuse a damaged one."""
    store = store_of(place)
    job = make_job(seed=2)
    with store.restore_path(name) as path:
        load_tensors(path, job.model, job.optimizer)
    problem = f"checkpoint {DAMAGED}: {PART} is not as it was written; go on from another"
    with pytest.raises(UserError, match=problem), store.restore_path(DAMAGED):
        pass
    return job.state()


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
        place = Place(tmp_path, s3, master.url, ports=[free_port(), free_port()])

        saved, _ = start(save, 2, tmp_path, place)

        # Every file has arrived.
        (stored,) = master.checkpoints
        objects = client.list_objects_v2(Bucket=BUCKET)["Contents"]
        sizes = {entry["Key"].removeprefix(f"{stored.uuid}/"): entry["Size"] for entry in objects}
        assert {*SHARDS, "state.json", "manifest.json"} <= set(sizes)
        assert ".metadata" not in sizes
        reported = {key: int(size) for key, size in stored.resources.items()}
        assert reported.items() <= sizes.items()

        for name in sizes:
            content = client.get_object(Bucket=BUCKET, Key=f"{stored.uuid}/{name}")["Body"].read()
            if name == PART:
                content = content[:1000]
            client.put_object(Bucket=BUCKET, Key=f"{DAMAGED}/{name}", Body=content)
        for restored in start(restore, 2, tmp_path, place, stored.uuid):
            assert all(torch.equal(restored[name], tensor) for name, tensor in saved.items())

"""Private names of Determined that this package uses, each once, with the reason for it.

tests/test_determined_internals.py compares them with the installed version; they are of 0.38.1.
Other modules override or call the public names that stand here instead. What was traded: each hook
of Determined's loop takes two methods, its private one and ours, and a new version of Determined is
one file's work.
"""

import copy
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, cast

import determined
from determined import core, errors, pytorch, util
from determined.common import api
from determined.common.api import bindings
from determined.experimental import client
from torch import nn

from detalbert import (
    bucket,  # noqa: F401 (holds the names of objects in folders)
    names,
)
from detalbert.errors import UserError
from detalbert.integrity import Json

_ARCHIVE = "the master's archive"  # the key of errors about it


def core_context(context: pytorch.PyTorchTrialContext) -> core.Context:
    """Return the Core API's context, which `pytorch.init` does not return."""
    return context._core


def experiment_config(info: determined.ClusterInfo) -> Json:
    """Return a copy of the experiment's config, private because its format may change."""
    return dict(info.trial._config)


def set_experiment_config(context: pytorch.PyTorchTrialContext, config: Json) -> None:
    """Set the config that Determined writes into every checkpoint's load_data.json."""
    context._exp_conf = config


def wrap_model(context: pytorch.PyTorchTrialContext, model: nn.Module) -> nn.Module:
    """Wrap `model` without DistributedDataParallel, which `context.wrap_model` alone would add."""
    context._PyTorchDistributedDataParallel = lambda model: model  # type: ignore[assignment,misc]
    return context.wrap_model(model)


def set_step(context: pytorch.PyTorchTrialContext, step: int) -> None:
    """Set the current step, which the trial loop counts, for optimizer steps without a loop."""
    context._current_batch_idx = step


def register_version(model: client.Model, uuid: str, **facts: Any) -> int:
    """Add a checkpoint to a model of the registry; return the version's number. `facts` are
    metadata, notes and comment (in the WebUI: description), which `Model.register_version` lacks.
    """
    body = bindings.v1PostModelVersionRequest(checkpointUuid=uuid, modelName=model.name, **facts)
    response = bindings.post_PostModelVersion(model._session, body=body, modelName=model.name)
    return response.modelVersion.version


def download_checkpoint(checkpoint: Any, folder: Path) -> None:
    """Download a checkpoint of the client into `folder`, from its storage or through the master.

    The client unpacks the master's archive wherever its names lead.

    Raises:
        UserError: a name leaves the folder.
        Exception: of whatever class the client raises.
    """
    checkpoint._download_via_master = _download_via_master
    try:
        checkpoint.download(str(folder))
    except errors.MultipleDownloadsFailed as error:
        if isinstance(error.__cause__, UserError):
            raise error.__cause__ from None
        raise


def _download_via_master(session: api.Session, uuid: str, folder: Path) -> None:
    """Replace the client's method of this name: unpack files and folders only, inside `folder`."""
    response = session.get(
        f"/checkpoints/{uuid}", headers={"Accept": "application/gzip"}, stream=True
    )
    if not response.ok:
        raise errors.ProxiedDownloadFailed(
            "unable to download checkpoint from master:", response.status_code, response.reason
        )
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=response.raw, mode="r|*") as archive:
        for member in archive:
            name = member.name.removeprefix("./")
            if name not in ("", "."):  # the archive's own folder
                _unpack(archive, member, folder, name)


def _unpack(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path, name: str) -> None:
    """Write one file or folder of the master's archive as `name`, in `folder`."""
    if member.isdir():
        path = names.hold(folder, f"{name}/", source=_ARCHIVE)
        path.mkdir(parents=True, exist_ok=True)
        return
    path = names.hold(folder, name, source=_ARCHIVE)
    content = archive.extractfile(member) if member.isfile() else None
    if content is None:
        raise UserError(f"{name!r} is a link or a device; nothing is used", key=_ARCHIVE)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        shutil.copyfileobj(content, file)


class LoopSchedule(Protocol):
    """Schedule of a loop, as the loop asks it: schedule.Schedule."""

    def at(self, step: int) -> set[str]:
        """Return what is due after `step`. Collective."""

    def stops(self) -> bool:
        """Return whether to stop now. Collective."""


class _Period(pytorch.Batch):
    """Period of Determined's loop that ends at the steps at which the schedule has it due."""

    def __init__(self, loop: "TrialLoop", name: str) -> None:
        super().__init__([])
        self.loop = loop
        self.name = name

    def should_stop(self, step_num: int) -> bool:
        return self.name in self.loop.due


class TrialLoop(pytorch._PyTorchTrialController):
    """Determined's trial loop, with public names for the methods that subclasses override.

    `Trainer.fit` creates the private class itself, and unpickles what it restores. `schedule`
    replaces the periods of the loop and its poll for preemption; the other arguments are those of
    Determined's class.
    """

    def __init__(self, schedule: LoopSchedule, **arguments: Any) -> None:
        super().__init__(
            test_mode=False,
            reporting_period=_Period(self, "report"),
            validation_period=_Period(self, "validate"),
            checkpoint_period=_Period(self, "checkpoint"),
            **arguments,
        )
        self.schedule = schedule
        # Called before the first step, after an initial validation.
        self.begin: Callable[[], None] = lambda: None

    def copy_code(self, path: Path) -> None:
        """Save the code by which a checkpoint's trial can be loaded, below the folder `path`."""
        raise NotImplementedError

    def ends_early(self) -> bool:
        """Return whether no step is left to do, whatever the length of the run."""
        raise NotImplementedError

    def after_step(self) -> None:
        """Count a step, and find out what is due after it. Collective."""
        super()._step_batch()
        assert self.state is not None
        self.due = self.schedule.at(self.state.batches_trained)

    def save(self, exiting: bool) -> None:
        """Save a checkpoint; `exiting`: the last one of this start."""
        # `_save` takes no other function than this one of the module, which would copy the whole
        # working directory, even into itself. It is replaced while a checkpoint is saved.
        write_user_code = util.write_user_code
        util.write_user_code = lambda path, on_cluster: self.copy_code(path)
        try:
            super()._checkpoint(exiting)
        finally:
            util.write_user_code = write_user_code

    def validate(self) -> Json:
        """Validate; return the metrics."""
        return super()._validate()

    def load(self, folder: Path) -> None:
        """Load the checkpoint in `folder`."""
        super()._load(folder)

    def load_state(self, state: Json) -> None:
        """Restore the loop's position; begin anew if `state` is another trial's."""
        super()._load_state(state)

    # Determined's private names for these methods:

    def _steps_until_complete(self, train_unit: pytorch.TrainUnit) -> int:
        return 0 if self.ends_early() else super()._steps_until_complete(train_unit)

    def _step_batch(self) -> None:
        self.after_step()

    def _stop_requested(self) -> None:
        if self.schedule.stops():
            raise pytorch._ShouldExit()

    def _train(self, length: pytorch.TrainUnit, *args: Any, **kwargs: Any) -> None:
        self.begin()
        super()._train(length, *args, **kwargs)

    def _validate(self) -> Json:
        return self.validate()

    def _checkpoint(self, already_exiting: bool) -> None:
        self.save(already_exiting)

    def _load(self, load_path: Path) -> None:
        self.load(load_path)


class Collectives(Protocol):
    """Part of Determined's distributed context by which ranks write a checkpoint together. All
    ranks call its methods at the same points.
    """

    rank: int
    size: int

    def allgather(self, value: Any, /) -> list[Any]:
        """Return the values of all ranks, in their order."""

    def broadcast(self, value: Any, /) -> Any:
        """Return rank 0's value."""


class CheckpointContext(core.CheckpointContext):
    """Determined's checkpoint context with public names; replaces `theirs` and has its state."""

    def __init__(self, theirs: core.CheckpointContext) -> None:
        vars(self).update(vars(theirs))
        self.storage = theirs._storage_manager
        self.distributed = theirs._dist

    def upload_as(self, name: str, folder: Path, metadata: Json, peers: Collectives) -> None:
        """Upload each rank's `folder` into checkpoint `name`. Collective over `peers`, which
        replaces Determined's distributed context. `upload(shard=True)` would choose the name.
        """
        uploading = copy.copy(self)
        uploading._dist = cast(core.DistributedContext, peers)
        uploading._upload_sharded(str(folder), name, metadata, selector=lambda path: True)

    def report(self, name: str, sizes: dict[str, int], metadata: Json) -> None:
        """Report a checkpoint, with its files' sizes, to the master; rank 0, after all uploads."""
        super()._report_checkpoint(name, sizes, metadata)

    def _report_checkpoint(
        self,
        storage_id: str,
        resources: dict[str, int] | None = None,
        metadata: Json | None = None,
    ) -> None:
        self.report(storage_id, resources or {}, metadata or {})

"""Private names of Determined that this package uses, each once, with the reason for it.

tests/test_determined_internals.py compares them with the installed version; they are of 0.38.1.
Other modules override or call the public names that stand here instead. What was traded: each hook
of Determined's loop takes two methods, its private one and ours, and a new version of Determined is
one file's work.
"""

import copy
import functools
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, cast

import determined
from determined import core, errors, pytorch, util
from determined.common import api, storage
from determined.common.api import bindings
from determined.experimental import client
from torch import nn

from detalbert.errors import UserError, as_raised
from detalbert.sums import Json

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

    Raises:
        UserError: a name leaves the folder.
        Exception: of whatever class the client raises.
    """
    # The client unpacks the master's archive wherever its names lead, and as its links do.
    checkpoint._download_via_master = _download_via_master
    try:
        checkpoint.download(str(folder))
    except errors.MultipleDownloadsFailed as error:
        raise as_raised(error) or error from None


def _download_via_master(session: api.Session, uuid: str, folder: Path) -> None:
    """Replace the client's method of this name: unpack files and folders only, inside `folder`."""
    archive = session.get(
        f"/checkpoints/{uuid}", headers={"Accept": "application/gzip"}, stream=True
    )
    if not archive.ok:
        problem = "unable to download checkpoint from master:"
        raise errors.ProxiedDownloadFailed(problem, archive.status_code, archive.reason)
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=archive.raw, mode="r|*") as members:
        for member in members:
            _hold(folder, member.name, source=_ARCHIVE)
            if not (member.isfile() or member.isdir()):
                problem = f"{member.name!r} is a link or a device; nothing is used"
                raise UserError(problem, key=_ARCHIVE)
            members.extract(member, folder, set_attrs=False)


def _hold(folder: Path, name: str, source: str) -> None:
    """Raise UserError if the file `name`, which `source` gives, would be outside of `folder`, also
    through a link in it.
    """
    try:
        is_held = (folder / name).resolve().is_relative_to(folder.resolve())
    except (OSError, ValueError, RuntimeError):  # too long, not encodable; a loop of links
        is_held = False
    if not is_held:
        problem = f"the name {name!r} does not stay inside {folder}; nothing of it is used"
        raise UserError(problem, key=source, cure="remove it")


def _hold_names(manager: Any) -> None:
    """Have a class of storage managers write no object outside the folder of a download: they join
    names as they are, for a trial's restart as for a download of the client.
    """
    download = manager.download

    @functools.wraps(download)
    def download_inside(
        self: Any, src: str, dst: str | os.PathLike, selector: storage.Selector | None = None
    ) -> None:
        def is_held(name: str) -> bool:
            _hold(Path(dst), name, source=f"checkpoint storage, below {src}")
            return True

        def is_wanted(name: str) -> bool:
            return is_held(name) and (selector is None or selector(name))

        # The first pass wants no file and only lists, so that beside a name that is refused nothing
        # is written.
        download(self, src, dst, selector=lambda name: not is_held(name))
        download(self, src, dst, selector=is_wanted)

    manager.download = download_inside


_hold_names(storage.S3StorageManager)
_hold_names(storage.GCSStorageManager)
_hold_names(storage.AzureStorageManager)


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
    (schedule.Schedule) replaces the periods of the loop and its poll for preemption; the other
    arguments are those of Determined's class.
    """

    def __init__(self, schedule: Any, **arguments: Any) -> None:
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

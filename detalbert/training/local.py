"""Local runs: one process or torchrun's, on this machine, into an output directory.

Determined's own local mode restarts the data on resume, so a local run drives the trial loop of the
cluster with contexts that write to a folder instead of the master. What was traded: one loop for
both, at the price of standing on Determined's private names (controller.py).
"""

import contextlib
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

import torch
from determined import core, pytorch

from detalbert.errors import PeerLost, UserError
from detalbert.settings.values import Config
from detalbert.training.checkpoints import LocalCheckpoints
from detalbert.training.metrics import RunMetrics
from detalbert.training.schedule import LocalStops

HERE = Path(__file__).resolve().parents[2]
P = ParamSpec("P")
T = TypeVar("T")


def copy_modules(path: Path) -> None:
    """Save the modules by which a checkpoint's trial can be loaded: the packages of an upload."""
    code = path / "code"
    # The file of the names that are not uploaded is not uploaded either.
    left_out: list[str] = []
    ignore_file = HERE / ".detignore"
    if ignore_file.is_file():
        left_out = ignore_file.read_text().splitlines()

    folders = ["embedded"]  # it has a model, and no __init__.py
    for file in HERE.glob("*/__init__.py"):
        package = file.parent.name
        if f"/{package}/" not in left_out:
            folders.append(package)
    # File by file, so that the first one that fails is the error.
    files = list(HERE.glob("*.py"))
    for folder in folders:
        files += (HERE / folder).rglob("*")
    for file in files:
        if file.is_file() and file.parent.name != "__pycache__":
            copy = code / file.relative_to(HERE)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)


@contextlib.contextmanager
def process_group() -> Iterator[core.DistributedContext]:
    """Join torchrun's process group if there is one (gloo on CPUs, NCCL on GPUs)."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        try:
            yield core.DummyDistributedContext()
        finally:
            # A sharded model makes itself a group of one.
            if torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()
        return

    # Determined wraps the model in DDP only then.
    os.environ["USE_TORCH_DISTRIBUTED"] = "1"
    torch.distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    pub_port, pull_port = _common_ports()

    # Two runs on one machine would meet on Determined's fixed ports.
    class Context(core.DistributedContext):
        def __init__(self, **ranks: Any) -> None:
            super().__init__(**ranks, pub_port=pub_port, pull_port=pull_port)

    try:
        yield Context.from_torch_distributed(chief_ip=os.environ["MASTER_ADDR"])
    finally:
        torch.distributed.destroy_process_group()


def _common_ports() -> list[int]:
    """Return two free ports of rank 0's machine, the same on all ranks. Collective.

    Determined's server binds them on all addresses, so they are sought there: a port that is free
    on localhost alone may be another address's. They are held until all ranks know them.
    """
    with contextlib.ExitStack() as stack:
        sockets: list[socket.socket] = []
        if torch.distributed.get_rank() == 0:
            sockets = [stack.enter_context(socket.socket()) for _ in range(2)]
        for bound in sockets:
            bound.bind(("", 0))
        ports = [bound.getsockname()[1] for bound in sockets]
        # torch broadcasts in place.
        common: list[list[int]] = [ports]
        torch.distributed.broadcast_object_list(common)
    return common[0]


class Ranks(NamedTuple):
    """The ranks of a run, and work of all or of some of them. All methods are collective.

    A UserError of any rank is raised on all: those of another machine would else wait for that rank
    for ever.
    """

    distributed: core.DistributedContext

    def on_all(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what `work` returns on this rank; all ranks do it."""
        error = None
        try:
            value = work(*args, **kwargs)
        except UserError as user_error:
            error = user_error
        # The lowest rank's error is raised on all.
        for rank_error in self.distributed.allgather(error):
            if rank_error is not None:
                rank_error.on_all_ranks = True
                raise rank_error
        return value

    def on_chief(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return, on all ranks, what `work` returns on rank 0, which alone does it."""
        if self.distributed.rank == 0:
            return self.distributed.broadcast(self.on_all(work, *args, **kwargs))
        self.on_all(lambda: None)
        return cast(T, self.distributed.broadcast(None))


def lost_rank(error: Exception) -> PeerLost | None:
    """Return the error of a rank whose peer ended, if `error` is NCCL's or gloo's of that."""
    text = str(error)
    if not isinstance(error, torch.distributed.DistError) and "gloo/transport" not in text:
        return None
    # gloo's text begins with a place in its source code.
    reason = text.split("] ", maxsplit=1)[-1][:150]
    return PeerLost(f"another rank is gone ({reason})", cure="its lines say why")


@contextlib.contextmanager
def trial_context(
    distributed: core.DistributedContext,
    metrics: RunMetrics,
    stops: LocalStops,
    config: Config,
    steps_completed: int,
    run: Callable[[], Config],
) -> Iterator[pytorch.PyTorchTrialContext]:
    """Yield the context of `determined.pytorch.init` on a cluster.

    Args:
        distributed: of `process_group`.
        metrics: to which rank 0 reports.
        stops: requests to stop.
        config: of the experiment, resolved.
        steps_completed: by earlier starts.
        run: returns the settings of the run, as in manifests, see LocalCheckpoints.
    """
    checkpoints = LocalCheckpoints(
        distributed,
        metrics=metrics,
        run=run,
        pruning=config.get("checkpoint_storage") or {},
    )
    core_context = core.Context(
        checkpoint=checkpoints,
        distributed=distributed,
        preempt=stops,
        train=core.DummyTrainContext() if distributed.rank else metrics,
    )
    with core_context:
        context = pytorch.PyTorchTrialContext(
            core_context=core_context,
            trial_seed=config["hyperparameters"]["seed"],
            hparams=config["hyperparameters"],
            slots_per_trial=distributed.size,
            num_gpus=torch.cuda.device_count(),
            exp_conf=config,
            aggregation_frequency=1,
            steps_completed=steps_completed,
            managed_training=True,
            debug_enabled=False,
            enable_tensorboard_logging=False,  # RunMetrics writes the events
        )
        yield context

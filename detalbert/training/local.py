"""Local runs: one process or torchrun's, on this machine, into an output directory.

Determined's own local mode restarts the data on resume, so a local run drives the trial loop of the
cluster with contexts that write to a folder instead of the master.
"""

import contextlib
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from determined import core, pytorch

from detalbert.determined_internals import set_step
from detalbert.errors import PeerLost, UserError
from detalbert.training.checkpoints import LocalCheckpoints
from detalbert.training.metrics import RunMetrics
from detalbert.training.schedule import LocalStops

HERE = Path(__file__).resolve().parents[2]


def copy_modules(path: Path) -> None:
    """Save the modules by which a checkpoint's trial can be loaded: the packages of an upload."""
    code, ignored = path / "code", shutil.ignore_patterns("__py*")
    unsent = HERE / ".detignore"  # itself not uploaded
    left_out = unsent.read_text().splitlines() if unsent.is_file() else ()
    packages = (file.parent.name for file in HERE.glob("*/__init__.py"))
    for folder in ("embedded", *(name for name in packages if f"/{name}/" not in left_out)):
        shutil.copytree(HERE / folder, code / folder, ignore=ignored)
    for module in HERE.glob("*.py"):
        shutil.copyfile(module, code / module.name)


@contextlib.contextmanager
def process_group() -> Iterator[core.DistributedContext]:
    """Join torchrun's process group if there is one (gloo on CPUs, NCCL on GPUs)."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        try:
            yield core.DummyDistributedContext()
        finally:
            if torch.distributed.is_initialized():  # a sharded model makes itself a group of one
                torch.distributed.destroy_process_group()
        return
    os.environ["USE_TORCH_DISTRIBUTED"] = "1"  # Determined wraps the model in DDP only then
    torch.distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    pub_port, pull_port = _common_ports()

    class Context(core.DistributedContext):  # two runs must not meet on Determined's fixed ports
        def __init__(self, **ranks: Any) -> None:
            super().__init__(**ranks, pub_port=pub_port, pull_port=pull_port)

    try:
        yield Context.from_torch_distributed(os.environ["MASTER_ADDR"])
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
        common: list[list[int]] = [ports]
        torch.distributed.broadcast_object_list(common)
    return common[0]


def together(
    distributed: core.DistributedContext, work: Callable[[], Any], mine: bool = True
) -> Any:
    """Return what `work` returns, done if it is `mine`. A UserError of any rank is raised on all:
    those of another machine would else wait for that rank for ever. Collective.
    """
    value = None
    own_error = None
    try:
        if mine:
            value = work()
    except UserError as error:
        own_error = error
    for rank_error in distributed.allgather(own_error):  # None where there is none
        if rank_error is not None:
            rank_error.on_all_ranks = True
            raise rank_error
    return value


def lost_rank(error: Exception) -> PeerLost | None:
    """Return the error of a rank whose peer ended, if `error` is NCCL's or gloo's of that."""
    text = str(error)
    if not isinstance(error, torch.distributed.DistError) and "gloo/transport" not in text:
        return None
    without_source_file = text.split("] ", maxsplit=1)[-1]  # gloo's begins with it
    reason = without_source_file.split(". ")[0][:150]
    return PeerLost(f"another rank is gone ({reason})", cure="its lines say why")


@contextlib.contextmanager
def trial_context(
    distributed: core.DistributedContext,
    metrics: RunMetrics,
    stops: LocalStops,
    config: dict[str, Any],
    steps_completed: int,
    run: dict[str, Any],
) -> Iterator[pytorch.PyTorchTrialContext]:
    """Yield the context of `determined.pytorch.init` on a cluster; rank 0 reports to `metrics`.
    `run`: see LocalCheckpoints.
    """
    pruning = config.get("checkpoint_storage") or {}
    core_context = core.Context(
        checkpoint=LocalCheckpoints(distributed, metrics, run, pruning),
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
        set_step(context, steps_completed)
        yield context

"""How many threads compute: as many as cores are idle when a run begins, then always so many.

The number makes bits: torch cuts a sum into a part for each thread. Sixty steps of
configs/local.yaml with 1 and with 2 threads differ in every weight, by up to 1e-4. So a checkpoint
keeps the number, and every restart sets it again (see `handover`).

And the number makes speed: threads wait for each other, so one that has to share its core holds
up all of them. On two cores of an AMD EPYC, one of them busy, 2 threads train 31 windows/s and 1
trains 72, as many as with both cores idle (docs/speed.md).
"""

from typing import Literal

import torch
from determined import core

from detalbert.processes import count_cores, idle_cores


def set_threads(
    wanted: int | Literal["auto"],
    distributed: core.DistributedContext | None = None,
    fresh: bool = True,
) -> int:
    """Set the number of threads that torch computes with; returns it, the same on every rank.

    Args:
        wanted: "auto": the cores that this process may use, shared among the slots of its machine,
            at least 1; of a run that begins (`fresh`), less those that others keep busy. Of
            machines that differ, the smallest number.
        distributed: every rank must call it; None: this process is alone.
    """
    distributed = distributed or core.DummyDistributedContext()
    if wanted == "auto":
        slots, cores = distributed.local_size, float(count_cores())
        if fresh and max(distributed.allgather(cores // slots)) > 1:  # and all ranks are here:
            cores = idle_cores()  # none measures what another one still does
        mine = max(1, round(cores) // slots)
        wanted = int(min(distributed.allgather(mine)))
    torch.set_num_threads(wanted)
    return wanted

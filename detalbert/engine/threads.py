"""Number of compute threads: the cores that are idle when a run begins, then always that number.

It affects rounding: torch splits a sum among threads. Sixty steps of configs/local.yaml with 1 and
with 2 threads differ in every weight, by up to 1e-4. So a checkpoint stores the number, and every
restart restores it (see `handover`). It affects speed too: threads wait for each other, so one that
shares its core delays all. On two cores of an AMD EPYC, one of them busy, 2 threads train 31
windows/s and 1 trains 72, as many as with both cores idle (docs/speed.md).
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
    """Set and return the number of threads that torch computes with, the same on every rank.

    Args:
        wanted: "auto": the cores available to this process, divided among the ranks of its machine,
            at least 1; minus those that others keep busy if the run begins (`fresh`). The minimum
            over machines.
        distributed: every rank must call this; None: a single process.
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

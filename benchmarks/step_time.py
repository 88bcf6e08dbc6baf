"""How long an optimizer step takes on N slots: compute, the slowest slot, the all-reduce.

A step ends when the slot with the most tokens has run forward and backward and the gradients have
gone round. ALBERT's gradients come out all at once, at the end of backward, so nothing overlaps:

    T(N) = tokens per slot x imbalance(N) / (tokens per second of one slot) + all_reduce(N) + fixed

`python -m benchmarks scaling` measures the parts and holds the sum against two real processes.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from detalbert.engine.order import TrainOrder


class Network(NamedTuple):
    """Machines of `slots` slots each; bandwidths in bytes per second and direction."""

    slots: int
    inside: float  # of one slot to its neighbour in the machine
    between: float  # of one machine to the next, shared by its slots
    latency: float = 20e-6  # seconds per message

    def all_reduce(self, ranks: int, size: int) -> float:
        """Seconds of a ring all-reduce of `size` bytes over `ranks` slots, whole machines.

        Each of n members sends 2 (n - 1) / n of the bytes in 2 (n - 1) messages (Patarasu and Yuan
        2009). A ring over machines enters and leaves each machine once, so the slower of the two
        kinds of link sets the pace: 0.89 GB over 8 machines of 8 at 3.1 GB/s takes 0.57 s.
        """
        if ranks == 1:
            return 0.0
        pace = self.inside if ranks <= self.slots else min(self.inside, self.between)
        return 2 * (ranks - 1) / ranks * size / pace + 2 * (ranks - 1) * self.latency


class Work(NamedTuple):
    """What a training run asks of every step."""

    lengths: np.ndarray  # tokens per training window, int [W]
    global_batch_size: int
    gradient_bytes: int  # 4 a parameter, or 2 with allreduce_dtype bf16 or fp16


def imbalance(work: Work, ranks: int, steps: int = 200) -> float:
    """Tokens of the fullest slot over the mean of all, averaged over `steps` steps; 1 is even.

    From the order and the deal that training itself uses. Real SQuAD lengths, 256 windows on 64
    slots: 1.05; dealt at random it would be 1.57.
    """
    order = TrainOrder(work.lengths, work.global_batch_size, ranks, seed=0)
    ratios = []
    for step in range(steps):
        tokens = [work.lengths[order.share(step, slot)].sum() for slot in range(ranks)]
        ratios.append(max(tokens) / np.mean(tokens))
    return float(np.mean(ratios))


def predict(
    work: Work, tokens_per_second: float, network: Network, ranks: Sequence[int], fixed: float = 0.0
) -> dict[int, dict[str, float]]:
    """Seconds of a step at every number of slots, what they go to, and windows per second.

    Args: tokens_per_second: of one slot, real tokens, forward and backward; fixed: seconds per
    step for the optimizer and the launch, the same at every size.
    """
    rows = {}
    for count in ranks:
        share = work.lengths.mean() * work.global_batch_size / count
        compute = share / tokens_per_second
        uneven = compute * (imbalance(work, count) - 1)
        exchange = network.all_reduce(count, work.gradient_bytes)
        seconds = compute + uneven + exchange + fixed
        rows[count] = {
            "compute": compute,
            "uneven": uneven,
            "all_reduce": exchange,
            "fixed": fixed,
            "seconds": seconds,
            "windows_per_second": work.global_batch_size / seconds,
        }
    return rows

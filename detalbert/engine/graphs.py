"""CUDA graphs: forward, loss and backward of a row, captured once and replayed for every row.

The host takes longer to launch a small encoder's kernels, about 1,100 a row, than a GPU to run
them. A graph launches them all at once. But its kernels read and write the same addresses every
time, so each row is padded to the same sizes and copied to the same place. The price is the work on
padding, and that a graph's memory is free for nothing else. What is captured must take no size and
no number from the host that differs from row to row, and must not wait for the GPU.

Random numbers: torch's generator of a GPU is a seed and an offset on the host. A replay copies both
to the GPU and moves the offset on by what the graph draws. So the seed of the step decides the
masks of dropout, which are those of the same rows without a graph (replay_prologue of torch's
CUDAGeneratorImpl.cpp).
"""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from detalbert.engine import kernel
from detalbert.engine.forward import Forward
from detalbert.engine.rows import to_device
from detalbert.errors import UserError, first_line

log = logging.getLogger(__name__)
SHORTEST = 32  # tokens: a row has room for as many windows as if they had so many on average
_WARM_UP = 3  # runs before the capture, as many as torch's make_graphed_callables makes
_DROPOUTS = ("attention_probs_dropout_prob", "attention_dropout")  # in transformers' configs

# (row, weights of the losses) -> losses of its windows, [n]; adds the row's gradient
RunRow = Callable[[Any, Tensor], Tensor]


class RowSizes(NamedTuple):
    """Sizes of every row of a graph."""

    tokens: int  # with padding
    windows: int  # without those of the padding
    longest: int  # tokens of the longest window
    masked: int = 0  # masked tokens, in pretraining


class Padding(NamedTuple):
    """How a column is padded."""

    per: str  # the field of RowSizes that it has a number for
    value: int = 0


Paddings = Mapping[str, Padding]
ROW_PADDINGS: Paddings = {
    "input_ids": Padding("tokens"),
    "token_type_ids": Padding("tokens"),
    "position_ids": Padding("tokens"),
    "windows": Padding("windows"),
}
SPAN_PADDINGS: Paddings = {
    **ROW_PADDINGS,
    "start_positions": Padding("windows", value=-100),  # no loss
    "end_positions": Padding("windows", value=-100),
}


def why_unused(forward: Forward, paddings: Paddings) -> str | None:
    """Return why rows cannot be captured, or None if they can."""
    if forward.device.type != "cuda":
        return "there is no GPU"
    if forward.padded:
        return "the model runs padded windows"
    if not kernel.has_kernel(forward.device) or forward.dtype not in kernel.DTYPES:
        return "torch has no attention kernel for packed rows on this GPU and in this precision"
    if any(getattr(forward.model.config, name, 0) for name in _DROPOUTS):
        return "torch's attention kernel for packed rows has no dropout of attention weights"
    if not paddings:
        return "the workload does not define how its rows are padded"
    return None


def log_unused(reason: str) -> None:
    """Log that `hyperparameters.cuda_graphs` has no effect."""
    log.warning("%-14s%s", "cuda_graphs", f"not used: {reason}")


def pad_to_sizes(row: Mapping[str, Any], sizes: RowSizes, paddings: Paddings) -> dict[str, Any]:
    """Return a row on the CPU, padded so that all its shapes depend on `sizes` alone.

    Empty windows come first, then the row's own, and after them, in a column `tail` of bounds,
    those of the padding. With room for 3 windows and 10 tokens, at most 4 in a window, a row of
    windows of 2 and 3 tokens has cu_seqlens 0 0 2 5 and tail 5 6 10. The empty window begins at
    token 0, where every row has a token.

    Args:
        row: columns of `paddings`, and cu_seqlens.
        sizes: at least those of `row`, see `fits`.
        paddings: of all columns that the model and the loss read.
    """
    padded: dict[str, Any] = {"max_length": sizes.longest}
    for name, padding in paddings.items():
        missing = getattr(sizes, padding.per) - len(row[name])
        before_and_after = (0, missing) if padding.per == "tokens" else (missing, 0)
        padded[name] = F.pad(row[name], before_and_after, value=padding.value)
    bounds = row["cu_seqlens"]
    padded["cu_seqlens"] = F.pad(bounds, (sizes.windows + 1 - len(bounds), 0))

    # Windows of the padding end `longest` tokens apart, the last one with the row.
    count = -(-sizes.tokens // sizes.longest)
    from_the_end = torch.arange(count - 1, -1, -1, dtype=bounds.dtype)
    ends = sizes.tokens - sizes.longest * from_the_end
    padded["tail"] = ends.clamp(min=len(row["input_ids"]))
    return padded


def fits(row: Mapping[str, Any], sizes: RowSizes, paddings: Paddings) -> bool:
    """Return whether no column of `row` is longer than its size."""
    return all(len(row[name]) <= getattr(sizes, padding.per) for name, padding in paddings.items())


class RowGraph:
    """Runs rows by a CUDA graph of `run`, which is captured at the first call.

    Args:
        run: forward, loss and backward of a row; to be captured.
        get_sizes: returns the sizes of all rows, when the graph is captured.
        paddings: of the rows' columns.
        device: a GPU.
    """

    def __init__(
        self,
        run: RunRow,
        get_sizes: Callable[[], RowSizes],
        paddings: Paddings,
        device: torch.device,
    ) -> None:
        self.run = run
        self.get_sizes = get_sizes
        self.paddings = paddings
        self.device = device
        self.replay: Callable[[], Tensor] | None = None
        self.has_warned = False

    def __call__(self, row: Mapping[str, Any], weights: Tensor) -> Tensor:
        """Run a row, on the CPU, as `run` does. The losses are overwritten by the next row's."""
        replay = self.replay or self._capture(weights)
        if not fits(row, self.sizes, self.paddings):
            self._warn_of_size(row)
            return self.run(row, weights)
        for name, column in pad_to_sizes(row, self.sizes, self.paddings).items():
            if isinstance(column, Tensor):
                self.row[name].copy_(column, non_blocking=True)
        self.weights.copy_(weights)
        losses = replay()  # [windows of the sizes], the empty ones first
        return losses[-len(row["windows"]) :]

    def _capture(self, weights: Tensor) -> Callable[[], Tensor]:
        """Capture `run` on a row of padding alone, whose gradient is zero."""
        self.sizes = self.get_sizes()
        nothing = {name: torch.zeros(0, dtype=torch.int64) for name in self.paddings}
        nothing["cu_seqlens"] = torch.zeros(1, dtype=torch.int32)
        padding = pad_to_sizes(nothing, self.sizes, self.paddings)
        self.row = to_device(padding, self.device)
        self.weights = weights.clone()
        self.replay = capture(partial(self.run, self.row, self.weights), self.device)
        return self.replay

    def _warn_of_size(self, row: Mapping[str, Any]) -> None:
        if self.has_warned:
            return
        self.has_warned = True
        windows = len(row["windows"])
        text = f"not used for a row of {windows} windows, as for all that exceed {self.sizes}"
        log.warning("%-14s%s", "cuda_graphs", text)


def capture(run: Callable[[], Tensor], device: torch.device) -> Callable[[], Tensor]:
    """Capture the kernels of `run`; return a function that replays them and returns the same tensor
    each time, with other values.

    `run` runs some times before, on a stream of its own, as torch's notes on CUDA semantics ask:
    kernels are loaded and workspaces allocated then. Random numbers are drawn as if it had not run.

    Raises:
        UserError: if the capture fails.
    """
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.random.fork_rng([device]), torch.cuda.device(device):
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(_WARM_UP):
                    run()
            torch.cuda.current_stream().wait_stream(stream)
            # Loaders' threads allocate page-locked memory meanwhile, which "global" forbids.
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                outputs = run()
    except RuntimeError as error:  # of CUDA, whatever it is
        # No way on: after a failed capture torch's generator takes no draw outside of one.
        raise UserError(
            # The end of a failed capture fails, too; the reason is the error before.
            f"a row cannot be captured here: {first_line(error.__context__ or error)}",
            key="hyperparameters.cuda_graphs",
            cure="set it to false",
        ) from None

    def replay() -> Tensor:
        graph.replay()
        return outputs

    return replay

"""`PackedTrial`: the base class of encoders' trials, whose steps run packed rows one by one.

Every rank holds the whole encoder, so ranks meet once per step: in the average of the gradients.

`max_tokens_per_forward: auto` is the longest row that this GPU's memory can train on. Two short
rows are measured and extrapolated: a search for the longest row that runs would come closer, and
run out of memory on its way.
"""

import contextlib
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from detalbert.engine.flops import ENCODERS, flops_of_row
from detalbert.engine.forward import Forward
from detalbert.engine.gradients import FlatGradients
from detalbert.engine.inputs import read_spans
from detalbert.engine.rows import CPU_TOKENS, AnyRow, dummy_row, to_device
from detalbert.engine.trial import AnyHParams, StepTrial

LARGEST = 32_768  # tokens: by then the matrix units are full; more would only cost memory
SPARE = 0.92  # of what is free: other rows fragment memory in other ways


class PackedTrial(StepTrial[AnyHParams, AnyRow]):
    """Trains an encoder, made with `attn_implementation=PACKED`, that every rank holds unsharded.
    Subclasses define the rows' losses.
    """

    gradients: FlatGradients
    read_logits: Any = staticmethod(read_spans)  # a `ReadLogits`, see rows.py

    def prepare_gradients(self) -> int:
        hparams = self.hparams
        self.rank_windows = hparams.global_batch_size // self.slots  # of a step
        self.forward = Forward(
            self.model,
            precision=hparams.precision,
            device=self.context.device,
            compiled=hparams.compile,
            read_logits=self.read_logits,
        )
        # Frozen parameters take no place in the buffer, and none on the network.
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.gradients = FlatGradients(trained, slots=self.slots)

        # The layers are compiled, and the budget is set, before the first real row.
        longest = hparams.max_seq_length
        max_tokens = hparams.max_tokens_per_forward
        if max_tokens == "auto":
            self.forward.compile_layers(2 * longest, longest)
            return choose_tokens(self.forward, longest, slots=self.slots)
        self.forward.compile_layers(max_tokens, longest)
        return max_tokens

    def numeric_settings(self) -> dict[str, object]:
        return {
            "max_tokens_per_forward": self.max_tokens,
            "compile": bool(self.forward.layers),
            "row_multiple": self.forward.multiple,
        }

    def run_uncompiled(self, row_multiple: int) -> None:
        self.forward.run_uncompiled(row_multiple)

    def row_flops(self, row: AnyRow) -> float | None:
        config = self.model.config
        if config.model_type not in ENCODERS:
            return None
        return flops_of_row(config, row)

    def row_loss(self, row: AnyRow) -> tuple[Tensor, Tensor]:
        """Return the share of a row (on the device) in the rank's loss, a scalar, and the losses of
        its windows for the meter, [n]. The step's loss is the mean over ranks.
        """
        raise NotImplementedError

    def add_gradients(self, batch: list[AnyRow]) -> None:
        # The last step changed the weights; half-precision copies follow.
        self.forward.refresh()
        for row in batch:
            loss, losses = self.row_loss(to_device(row, self.context.device))
            self.backward(loss)
            self.meter.update(row, losses.detach())
        self.gradients.average()


def choose_tokens(forward: Forward, longest: int, slots: int) -> int:
    """Return the most tokens of a row for `forward` on its device, the same on every rank: by the
    GPU's memory, or CPU_TOKENS. Collective.

    Args:
        forward: with its gradients allocated.
        longest: tokens of a full window.
        slots: number of ranks.
    """
    device = forward.device
    if device.type != "cuda":
        return CPU_TOKENS
    tokens = longest
    with contextlib.suppress(torch.OutOfMemoryError):
        tokens = _measure_tokens(forward, longest)
    # Ranks must agree: how rows are cut is part of how results are rounded.
    if slots > 1:
        smallest = torch.tensor(tokens, device=device)
        dist.all_reduce(smallest, op=dist.ReduceOp.MIN)
        tokens = int(smallest)
    return tokens


def _measure_tokens(forward: Forward, longest: int) -> int:
    device = forward.device
    allocated = torch.cuda.memory_allocated(device)
    few_bytes = peak_memory(forward, 2 * longest, longest) - allocated
    many_bytes = peak_memory(forward, 4 * longest, longest) - allocated

    # Free or this process's, less what is held, and the optimizer's two moments in fp32.
    parameters = sum(parameter.numel() for parameter in forward.model.parameters())
    free, _ = torch.cuda.mem_get_info(device)
    room = free + torch.cuda.memory_reserved(device) - allocated - 2 * 4 * parameters
    return fit_tokens(few_bytes, many_bytes, room=int(SPARE * room), longest=longest)


def fit_tokens(few_bytes: int, many_bytes: int, room: int, longest: int) -> int:
    """Return the largest number of tokens whose memory fits in `room` bytes, by a line through the
    memory of rows of two and of four windows of `longest` tokens.

    With 1 GB at 768 tokens and 1.5 GB at 1,536, 10 GB of room hold 14,592 tokens, rounded down to
    14,336: free memory varies by some MiB, and a restart is to compute the same.
    """
    few = 2 * longest
    per_token = max(1, (many_bytes - few_bytes) / few)
    fixed = few_bytes - per_token * few
    tokens = int((room - fixed) / per_token)
    step = 1024 if tokens >= 1024 else longest
    return min(max(longest, tokens // step * step), LARGEST)


def peak_memory(forward: Forward, tokens: int, longest: int) -> int:
    """Return the peak bytes on the GPU during forward and backward of a dummy row."""
    row = dummy_row(tokens, longest=longest, device=forward.device)
    forward.refresh()
    torch.cuda.reset_peak_memory_stats(forward.device)
    forward.zero_loss_backward(row)
    return torch.cuda.max_memory_allocated(forward.device)

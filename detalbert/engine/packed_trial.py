"""`PackedTrial`: the base class of encoders' trials, whose steps run packed rows one by one.

Every rank holds the whole encoder, so ranks meet once per step: in the average of the gradients.
"""

from typing import Any

import torch
from torch import Tensor

from detalbert.engine import graphs, token_budget
from detalbert.engine.flops import ENCODERS, row_lengths, training_flops
from detalbert.engine.forward import Forward
from detalbert.engine.gradients import FlatGradients
from detalbert.engine.graphs import Paddings, RowGraph, RowSizes, RunRow
from detalbert.engine.padded import read_spans
from detalbert.engine.rows import AnyRow, to_device
from detalbert.engine.trial import AnyHParams, StepTrial


class PackedTrial(StepTrial[AnyHParams, AnyRow]):
    """Trains an encoder, made with `attn_implementation=PACKED`, that every rank holds unsharded.
    Subclasses define the rows' losses.
    """

    gradients: FlatGradients
    read_logits: Any = staticmethod(read_spans)  # a `ReadLogits`, see rows.py
    paddings: Paddings = {}  # of all columns that `row_loss` reads; none: CUDA graphs are not used
    run_row: RunRow  # forward, loss and backward of a row on the CPU

    def prepare_gradients(self) -> int:
        hparams = self.hparams
        self.forward = Forward(
            self.model,
            precision=hparams.precision,
            device=self.context.device,
            compiled=hparams.compile,
            read_logits=self.read_logits,
        )
        # Frozen parameters take no place in the buffer, and none on the network.
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.gradients = FlatGradients(trained, slots=self.slots, wire=hparams.allreduce_dtype)

        # The layers are compiled, and the budget is set, before the first real row.
        self._choose_graph()
        longest = hparams.max_seq_length
        max_tokens = hparams.max_tokens_per_forward
        if max_tokens == "auto":
            self.forward.compile_layers(2 * longest, longest)
            return token_budget.resolve(
                self.forward, longest, slots=self.slots, captured=self.captures_rows
            )
        self.forward.compile_layers(max_tokens, longest)
        return max_tokens

    def _choose_graph(self) -> None:
        """Set how a row runs: by a CUDA graph, if the config says so and it is possible."""
        self.run_row = self._run_row
        if not self.hparams.cuda_graphs:
            return
        reason = graphs.why_unused(self.forward, self.paddings)
        if reason is None:
            self.run_row = RowGraph(
                self._run_row, self.row_sizes, self.paddings, device=self.context.device
            )
        elif self.rank == 0:
            graphs.log_unused(reason)

    @property
    def captures_rows(self) -> bool:
        """Whether rows run by a CUDA graph."""
        return isinstance(self.run_row, RowGraph)

    @property
    def rank_windows(self) -> int:
        """Windows of this rank in a step."""
        return self.hparams.global_batch_size // self.slots

    def row_sizes(self) -> RowSizes:
        """Return the sizes that all rows of a CUDA graph are padded to."""
        multiple = self.forward.multiple
        tokens = -(-self.max_tokens // multiple) * multiple
        return RowSizes(
            tokens=tokens,
            windows=min(self.rank_windows, tokens // graphs.SHORTEST + 1),
            longest=self.hparams.max_seq_length,
        )

    def numeric_settings(self) -> dict[str, object]:
        return {
            "max_tokens_per_forward": self.max_tokens,
            "compile": bool(self.forward.layers),
            "row_multiple": self.forward.multiple,
            "allreduce_dtype": self.hparams.allreduce_dtype,
            "cuda_graphs": self.captures_rows,
        }

    def run_uncompiled(self, row_multiple: int) -> None:
        self.forward.run_uncompiled(row_multiple)

    def row_flops(self, row: AnyRow) -> float | None:
        config = self.model.config
        if config.model_type not in ENCODERS:
            return None
        return training_flops(config, row_lengths(row))

    def loss_weights(self, batch: list[AnyRow]) -> Tensor:
        """Return what `row_loss` has to know of all of this rank's rows of a step, always of one
        shape, on the device; by default nothing, [0].
        """
        return torch.empty(0, device=self.context.device)

    def row_loss(self, row: AnyRow, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return the share of a row (on the device) in the rank's loss, a scalar, and the losses of
        its windows for the meter, [n]. The step's loss is the mean over ranks.

        It is captured if `paddings` are set, see graphs.py. Padded windows must then have a loss
        of zero.
        """
        raise NotImplementedError

    def _run_row(self, row: AnyRow, weights: Tensor) -> Tensor:
        """Add the gradient of a row; return the losses of its windows, [n]."""
        loss, losses = self.row_loss(to_device(row, self.context.device), weights)
        self.backward(loss)
        return losses.detach()

    def add_gradients(self, batch: list[AnyRow]) -> None:
        # The last step changed the weights; half-precision copies follow.
        self.forward.refresh()
        weights = self.loss_weights(batch)
        for row in batch:
            losses = self.run_row(row, weights)
            self.meter.update(row, losses)
        if self.slots > 1:
            with self.profile.mark("all_reduce"):
                self.gradients.average()

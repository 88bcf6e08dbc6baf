"""`PackedTrial`: the base class of encoders' trials, whose steps run packed rows one by one.

Every rank holds the whole encoder, so ranks meet once per step: in the average of the gradients.
"""

from typing import Any

import torch
from torch import Tensor

from detalbert.engine import token_budget
from detalbert.engine.flops import ENCODERS, flops_of_row
from detalbert.engine.forward import Forward
from detalbert.engine.gradients import FlatGradients
from detalbert.engine.padded import read_spans
from detalbert.engine.rows import AnyRow, to_device
from detalbert.engine.trial import AnyHParams, StepTrial


class PackedTrial(StepTrial[AnyHParams, AnyRow]):
    """Trains an encoder, made with `attn_implementation=PACKED`, that every rank holds unsharded.
    Subclasses define the rows' losses.
    """

    gradients: FlatGradients
    read_logits: Any = staticmethod(read_spans)  # a `ReadLogits`, see rows.py

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
        self.gradients = FlatGradients(trained, slots=self.slots)

        # The layers are compiled, and the budget is set, before the first real row.
        longest = hparams.max_seq_length
        max_tokens = hparams.max_tokens_per_forward
        if max_tokens == "auto":
            self.forward.compile_layers(2 * longest, longest)
            return token_budget.resolve(self.forward, longest, slots=self.slots)
        self.forward.compile_layers(max_tokens, longest)
        return max_tokens

    @property
    def rank_windows(self) -> int:
        """Windows of this rank in a step."""
        return self.hparams.global_batch_size // self.slots

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

    def loss_weights(self, batch: list[AnyRow]) -> Tensor:
        """Return what `row_loss` has to know of all of this rank's rows of a step, always of one
        shape, on the device; by default nothing, [0].
        """
        return torch.empty(0, device=self.context.device)

    def row_loss(self, row: AnyRow, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return the share of a row (on the device) in the rank's loss, a scalar, and the losses of
        its windows for the meter, [n]. The step's loss is the mean over ranks.
        """
        raise NotImplementedError

    def add_gradients(self, batch: list[AnyRow]) -> None:
        # The last step changed the weights; half-precision copies follow.
        self.forward.refresh()
        weights = self.loss_weights(batch)
        for row in batch:
            loss, losses = self.row_loss(to_device(row, self.context.device), weights)
            self.backward(loss)
            self.meter.update(row, losses.detach())
        if self.slots > 1:
            with self.profile.mark("all_reduce"):
                self.gradients.average()

"""`ParityTrial`: the model, its loss per row, and its validation.

`PackedTrial` has the rest: the optimizer step over all ranks, checkpoints and exact restarts.
"""

from typing import Any

import numpy as np
import torch
from determined import pytorch
from torch import Tensor
from transformers import AlbertConfig, AlbertForTokenClassification

from detalbert.engine.inputs import model_inputs
from detalbert.engine.loaders import RowLoader
from detalbert.engine.models import random_model
from detalbert.engine.order import Steps, TrainOrder
from detalbert.engine.packed_trial import PackedTrial
from detalbert.engine.rows import to_device
from detalbert.engine.trial import Given
from detalbert.settings.hparams import StepHParams
from detalbert.training.workload import Workload
from parity.data import TOKENS, ParityData, ParityRow
from parity.hparams import METRICS, PARSERS

HELD_OUT = 64  # windows of a validation


class ParityTrial(PackedTrial[StepHParams, ParityRow]):
    """Trains a small ALBERT to tell odd token ids from even ones."""

    data: ParityData

    def __init__(self, context: pytorch.PyTorchTrialContext, given: Given) -> None:
        hparams, self.data = given
        torch.manual_seed(hparams.seed)
        config = AlbertConfig(**hparams.model_config)
        super().__init__(
            context,
            hparams,
            random_model(AlbertForTokenClassification, config),
            epoch_windows=self.data.windows,
            metrics=METRICS,
        )
        self.losses_of_rows = context.wrap_reducer(self.mean_loss, for_training=False)
        self.validation: dict[str, float] = {}

    def build_training_data_loader(self) -> RowLoader:
        order = TrainOrder(
            np.ones(self.data.windows),  # tokens of each window: here all have the same
            self.hparams.global_batch_size,
            self.slots,
            self.hparams.known_seed,
        )
        first = self.context.get_initial_batch()  # a restart goes on where the run was
        return RowLoader(self.data, Steps(order, self.rank, first), num_workers=self.workers())

    def build_validation_data_loader(self) -> RowLoader:
        held_out = np.arange(HELD_OUT) - HELD_OUT  # window numbers below zero
        return RowLoader(self.data, [held_out[self.rank :: self.slots]])

    @staticmethod
    def read_logits(model: Any, row: ParityRow, tokens: int) -> tuple[Tensor]:
        """Return the logits of a row, fp32 [tokens, 2]; the rest of a compiled row is padding."""
        outputs = model(**model_inputs(model, row))
        return (outputs.logits[0, :tokens].float(),)

    def window_losses(self, row: ParityRow) -> Tensor:
        """Return the mean loss of each window of a row on the device, fp32 [n]."""
        (logits,) = self.forward(row)
        losses = torch.nn.functional.cross_entropy(logits, row["odd"], reduction="none")
        return losses.view(-1, TOKENS).mean(dim=1)

    def row_loss(self, row: ParityRow) -> tuple[Tensor, Tensor]:
        """Return a loss, which adds up to the mean over this rank's windows, and each window's."""
        losses = self.window_losses(row)
        return losses.sum() / self.rank_windows, losses

    def evaluate_batch(self, batch: list[ParityRow], batch_idx: int) -> dict[str, Any]:  # type: ignore[override]  # no tensors
        self.forward.refresh()  # half-precision copies of the weights, if there are any
        for row in batch:
            losses = self.window_losses(to_device(row, self.context.device))
            self.losses_of_rows.update(losses.mean().item())
        return {}

    def mean_loss(self, losses: list[float]) -> dict[str, float]:
        """Reduce what all ranks' `evaluate_batch` gave to the metrics of a validation."""
        self.validation = {"loss": float(np.mean(losses))}
        return dict(self.validation)

    def validated(self) -> tuple[None, dict[str, float]]:
        return None, self.validation


PARITY = Workload(
    parsers=PARSERS,
    load=ParityData.load,
    trial=ParityTrial,
)

"""`PretrainTrial`: an encoder's pretraining as a Determined PyTorchTrial.

The optimizer step is `PackedTrial`'s. The loss of a step is the mean over all masked tokens of the
global batch, plus the mean over all its pairs and the mean over all its spans, regardless of how
they were distributed to ranks and micro-batches.
"""

import math
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from determined import pytorch

from detalbert.corpus.mixture import name_scores
from detalbert.corpus.read import Corpus
from detalbert.engine.loaders import LazyLoader, PackedRows, validation_loader
from detalbert.engine.packed_trial import PackedTrial
from detalbert.engine.rows import to_device, validation_rows
from detalbert.engine.trial import Given, read_experiment
from detalbert.training.workload import Workload
from pretrain import objectives
from pretrain.data import PretrainText
from pretrain.encoders import build_encoder
from pretrain.examples import VALIDATION_EPOCH, ExampleOrder, PretrainRow
from pretrain.hparams import METRICS, PARSERS, PretrainHParams, parse_pretrain_hparams

# Those that each of several sources has, too.
BY_SOURCE = ("loss", "mlm_accuracy")


class PretrainTrial(PackedTrial[PretrainHParams, PretrainRow]):
    """Pretrains an encoder; `given` are hyperparameters and data, default: from `context`."""

    data: PretrainText
    reducer: "ScoreReducer"
    read_logits = staticmethod(objectives.read_pretraining)

    def __init__(self, context: pytorch.PyTorchTrialContext, given: Given | None = None) -> None:
        inputs = given or read_experiment(
            context, parse=parse_pretrain_hparams, load=PretrainText.load
        )
        hparams, self.data = inputs
        held_out = self.data.validation.corpus
        super().__init__(
            context,
            hparams,
            model=build_encoder(hparams, tokenizer=self.data.tokenizer),
            epoch_windows=len(self.data.train.lengths),
            metrics=METRICS,
            also_charted=name_scores(BY_SOURCE, names=held_out.names),
        )
        self.reducer = context.wrap_reducer(ScoreReducer(held_out), for_training=False)

    def guess_loss(self) -> float:
        """Return the loss of a model that gives all tokens, both orders and all places of a span
        the same probability.
        """
        examples = self.data.train
        loss = super().guess_loss()
        if examples.hparams.sentence_order:
            loss += math.log(2)
        if examples.hparams.span_fraction > 0:
            loss += math.log(examples.lengths.mean())
        return loss

    def build_training_data_loader(self) -> torch.utils.data.DataLoader:
        examples = self.data.train
        order = ExampleOrder(
            examples,
            global_batch_size=self.hparams.global_batch_size,
            slots=self.slots,
            seed=self.hparams.known_seed,
        )
        rows = partial(PackedRows, examples, padded=self.forward.padded)
        return LazyLoader(lambda: self.train_loader(rows, order))

    def build_validation_data_loader(self) -> torch.utils.data.DataLoader:
        def load() -> torch.utils.data.DataLoader:
            # A row has examples of one source, so that each source has scores of its own.
            rows = PackedRows(
                self.data.validation,
                max_tokens=self.max_tokens,
                padded=self.forward.padded,
            )
            shares: list[np.ndarray] = []
            for examples in self.data.held_out:
                lengths = self.data.validation.lengths[examples]
                places = np.arange(len(examples))
                for row in validation_rows(lengths, places, max_tokens=self.max_tokens):
                    tickets = np.full((len(row), 2), VALIDATION_EPOCH)
                    tickets[:, 1] = examples[row]
                    shares.append(tickets)
            return validation_loader(
                rows,
                shares,
                slots=self.slots,
                slot=self.rank,
                num_workers=self.workers(),
            )

        return LazyLoader(load)

    def add_gradients(self, batch: list[PretrainRow]) -> None:
        # Numbers of labels are of the whole step, so they are summed before its first row.
        row_counts = torch.stack([objectives.count_labels(row) for row in batch])  # [rows, 3]
        # Summed on the device, it would wait for the step before.
        counts = row_counts.sum(0).float().to(self.context.device, non_blocking=True)
        if self.slots > 1:
            dist.all_reduce(counts)
        # The weight of a masked token, a pair and a span in this rank's loss, [3]. Ranks' gradients
        # are averaged: times `slots`, the mean over all masked tokens comes out.
        self.label_weights = self.slots / counts.clamp(min=1)
        super().add_gradients(batch)

    def row_loss(self, row: PretrainRow) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sum of all objectives' losses, each with its weight, and for the meter that
        share of the step's loss, spread over the row's windows.
        """
        losses = objectives.label_losses(row, *self.forward(row))
        sums = torch.stack([objective_losses.sum() for objective_losses in losses])  # [objectives]
        loss = (sums * self.label_weights[: len(sums)]).sum()

        # The meter divides by the windows of all rows; so the step's mean over labels comes out.
        windows = len(row["sop_labels"])
        share = loss.detach() * self.rank_windows / windows
        return loss, share.expand(windows)

    def evaluate_batch(self, batch: list[PretrainRow], batch_idx: int) -> dict[str, Any]:  # type: ignore[override]  # no tensors
        """Score this rank's rows; the metrics come from the reducer, once for all ranks."""
        self.forward.refresh()
        for row in batch:
            device_row = to_device(row, self.context.device)
            sums = objectives.score_row(device_row, *self.forward(device_row))
            self.reducer.update(row, sums)
        return {}


# Of a rank's rows: the first example of each, and its sums, of objectives.score_row.
RankRows = list[tuple[int, np.ndarray]]


class ScoreReducer(pytorch.MetricReducer):
    """Reducer of sums over rows to the split's metrics, the same for any number of ranks.

    Args:
        corpus: the validation's.
    """

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus
        self.metrics: dict[str, float] = {}  # of the last validation

    def reset(self) -> None:
        self.rows: list[tuple[int, torch.Tensor]] = []

    def update(self, row: PretrainRow, sums: torch.Tensor) -> None:
        """Add a row (on the CPU) and its `sums`, of objectives.score_row."""
        first = int(row["windows"][0])
        self.rows.append((first, sums))

    def per_slot_reduce(self) -> RankRows:
        return [(first, sums.cpu().numpy()) for first, sums in self.rows]

    def cross_slot_reduce(self, per_slot: list[RankRows]) -> dict[str, float]:
        # In the order of the examples, so that the sums are rounded alike at every slot count.
        rows = [row for rank_rows in per_slot for row in rank_rows]
        rows.sort(key=lambda row: row[0])
        sums = np.array([row_sums for _, row_sums in rows])  # [rows, objectives, 3]
        metrics = _average(sums)

        # A low cap may leave a small source no row, and so no scores.
        sources = np.array([self.corpus.sources[self.corpus.shard_of(first)] for first, _ in rows])
        names = self.corpus.names if len(self.corpus.names) > 1 else []
        for source, name in enumerate(names):
            if source in sources:
                scores = _average(sums[sources == source])
                metrics |= {f"{score}_{name}": scores[score] for score in BY_SOURCE}
        self.metrics = metrics
        return dict(metrics)  # what is reported is less


def _average(rows: np.ndarray) -> dict[str, float]:
    """Return the metrics of some rows, given their sums, of objectives.score_row, float64
    [rows, objectives, 3].
    """
    sums = rows.sum(axis=0)  # [objectives, 3]
    metrics = {"loss": 0.0}
    for name, (loss, correct, count) in zip(("mlm", "sop", "span"), sums.tolist(), strict=False):
        if count or name == "mlm":
            labelled = max(count, 1)
            metrics[f"{name}_loss"] = loss / labelled
            metrics[f"{name}_accuracy"] = 100.0 * correct / labelled
            metrics["loss"] += metrics[f"{name}_loss"]
    return metrics


PRETRAINING = Workload(
    parsers=PARSERS,
    load=PretrainText.load,
    trial=PretrainTrial,
    commands={
        "write a folder for transformers": "python predict.py --model {} --export FOLDER",
        "fine-tune it": "python train.py --config configs/finetune_pretrained.yaml"
        " --set hyperparameters.model={}",
    },
)

"""`LmTrial`: a causal language model, sharded over the ranks, as a Determined PyTorchTrial.

The loss of a step is the mean over all targets of the global batch, regardless of how its windows
were distributed to data ranks and rows.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from determined import pytorch

from detalbert.corpus.mixture import name_scores
from detalbert.engine.flops import row_lengths
from detalbert.engine.forward import resolve_precision
from detalbert.engine.gradients import local_part
from detalbert.engine.progress import TrainingMeter
from detalbert.engine.trial import Given, StepTrial, read_experiment
from detalbert.errors import UserError
from detalbert.training.workload import Workload
from lm.data import LmText
from lm.flops import causal_flops
from lm.gradients import ShardedGradients, accumulate, compile_layers, evaluate
from lm.hparams import METRICS, PARSERS, LmHParams, parse_lm_hparams
from lm.layout import choose_layout, make_mesh
from lm.model import build_causal_model, causal_config
from lm.packed import NO_TARGET, CausalRow
from lm.token_bytes import token_bytes
from lm.windows import WindowOrder, WindowRows, validation_loader

BY_SOURCE = ("loss", "bits_per_byte")  # of each of several sources, too


class LmMeter(TrainingMeter):
    """Mean loss per target token, accuracy and throughput since the last report."""

    def reset(self) -> None:
        super().reset()
        self.sums: list[torch.Tensor] = []  # float64 [3] each: loss, correct predictions, targets

    def add(self, sums: torch.Tensor, windows: int, tokens: int) -> None:
        self.sums.append(sums)
        self.windows += windows
        self.tokens += tokens

    def per_slot_reduce(self) -> dict[str, float]:
        sums = torch.stack(self.sums) if self.sums else torch.zeros(0, 3, dtype=torch.float64)
        finite = sums.isfinite().all(1)  # the others are of steps that were left out
        loss, correct, targets = sums[finite].sum(0).tolist()
        totals = {"loss": loss, "counted": targets, "correct": correct}
        return {**super().per_slot_reduce(), **totals}

    def cross_slot_reduce(self, per_slot: list[Any]) -> dict[str, float]:
        metrics = super().cross_slot_reduce(per_slot)
        targets = sum(slot["counted"] for slot in per_slot)
        correct = sum(slot["correct"] for slot in per_slot)
        metrics["accuracy"] = 100.0 * correct / max(targets, 1)
        metrics["tokens_per_second"] = self.throughput["tokens"] / self.throughput["seconds"]
        return metrics


class LmTrial(StepTrial[LmHParams, CausalRow]):
    """Trains a causal language model; `given` are hyperparameters and data, if not `context`'s."""

    gradients: ShardedGradients
    reducer: "TargetReducer"
    meter: LmMeter
    meter_kind = LmMeter
    data: LmText

    def __init__(self, context: pytorch.PyTorchTrialContext, given: Given | None = None) -> None:
        hparams, self.data = given or read_experiment(context, parse_lm_hparams, LmText.load)
        held_out = self.data.validation
        config = causal_config(hparams, self.data.tokenizer)

        # The model is built in shards, which the layout places on the ranks.
        self.layout = choose_layout(
            hparams.layout,
            config,
            slots=context.distributed.size,
            slots_per_machine=context.distributed.local_size,
        )
        dtype = resolve_precision(hparams.precision, context.device)
        # The longest row; compiled layers are compiled for it.
        self.row_windows = hparams.max_tokens_per_forward // hparams.max_seq_length
        longest_row_tokens = self.row_windows * hparams.max_seq_length
        self.causal_loss = build_causal_model(
            config,
            make_mesh(self.layout, context.device),
            seed=hparams.known_seed,
            weights=hparams.model,
            half=dtype if dtype is not torch.float32 else None,
            recomputed=hparams.recomputed,
            compiled_tokens=longest_row_tokens if hparams.compile else 0,
        )
        # Determined and the optimizer see the model alone, with transformers' names.
        super().__init__(
            context,
            hparams,
            self.causal_loss.model,
            epoch_windows=len(self.data.train),
            metrics=METRICS,
            also_charted=name_scores(BY_SOURCE, held_out.shards.names),
        )
        self.data_rank = self.layout.data_rank(self.rank)
        reducer = TargetReducer(
            names=held_out.shards.names,
            sizes=token_bytes(
                self.data.tokenizer,
                vocabulary=config.vocab_size,
                averages=held_out.average_bytes(),
            ),
            counts=self._counts,
        )
        self.reducer = context.wrap_reducer(reducer, for_training=False)

    @property
    def _counts(self) -> bool:
        """Whether this rank reports its rows, which its tensor-parallel group shares."""
        return self.rank % self.layout.tensor == 0

    def prepare_gradients(self) -> int:
        self.gradients = ShardedGradients(self.model)
        if self.hparams.compile:
            compile_layers(
                self.causal_loss,
                windows=self.row_windows,
                length=self.hparams.max_seq_length,
                layout=self.layout,
            )
        return self.hparams.max_tokens_per_forward

    def numeric_settings(self) -> dict[str, Any]:
        return {
            "max_tokens_per_forward": self.max_tokens,
            "layout": str(self.layout),
            "compile": self.hparams.compile,
        }

    def row_flops(self, row: CausalRow) -> float | None:
        return causal_flops(self.model.config, row_lengths(row)) if self._counts else 0.0

    def build_training_data_loader(self) -> torch.utils.data.DataLoader:
        windows = self.data.train
        order = WindowOrder(
            windows,
            global_batch_size=self.hparams.global_batch_size,
            seed=self.hparams.known_seed,
            ranks=self.layout.data_ranks,
        )
        return self.train_loader(partial(WindowRows, windows), order)

    def build_validation_data_loader(self) -> torch.utils.data.DataLoader:
        loader, self.sources = validation_loader(
            self.data.validation,
            limit=self.hparams.max_validation_windows,
            rank=self.data_rank,
            ranks=self.layout.data_ranks,
            max_tokens=self.max_tokens,
        )
        return loader

    def get_batch_length(self, batch: list[CausalRow]) -> int:
        return count_tokens(batch) // self.hparams.max_seq_length

    def add_gradients(self, batch: list[CausalRow]) -> None:
        sums = accumulate(self.causal_loss, batch, self.layout, self.backward)
        # Tensor-parallel ranks have the same windows: one of them counts these.
        if self._counts:
            self.meter.add(sums, windows=self.get_batch_length(batch), tokens=count_tokens(batch))

    def evaluate_batch(self, batch: list[CausalRow], batch_idx: int) -> dict[str, Any]:  # type: ignore[override]  # no tensors
        """Score this rank's rows; the metrics come from the reducer, once for all ranks."""
        sums = evaluate(self.causal_loss, batch, self.layout)
        self.reducer.add(batch, sums, source=self.sources[batch_idx])
        return {}

    def on_checkpoint_save_start(self, checkpoint: dict[str, Any]) -> None:
        """Raise UserError if a parameter is sharded: Determined's own loop, which calls this on
        rank 0, would silently save rank 0's shard only, and restore it on every rank.
        """
        for name, parameter in self.model.named_parameters():
            if local_part(parameter).shape != parameter.shape:
                raise UserError(
                    f"{name} is split over processes and would be saved in part",
                    key="checkpoint",
                    cure="run this trial with train.py",
                )


def count_tokens(rows: Sequence[CausalRow]) -> int:
    """Return the tokens of all rows."""
    return sum(len(row["input_ids"]) for row in rows)


class RankTotals(NamedTuple):
    """A rank's contribution to a validation's metrics."""

    sums: np.ndarray  # float64 [sources, 3]: loss, correct predictions, targets of all ranks
    targets: np.ndarray  # int64 [vocabulary]: how often each token is a target of this rank
    bytes: np.ndarray  # float64 [sources]: of the text of this rank's targets


class TargetReducer(pytorch.MetricReducer):
    """Reducer of a validation's sums to its metrics, the same with every layout.

    Bits per byte are those of all targets over the bytes of text that these targets are.

    Args:
        names: of the sources.
        sizes: bytes of each token, float64 [sources, vocabulary], see `token_bytes`.
        counts: True on one rank of each tensor-parallel group.
    """

    def __init__(self, names: Sequence[str], sizes: np.ndarray, counts: bool) -> None:
        self.names = names
        self.sizes = sizes
        self.counts = counts
        self.metrics: dict[str, float] = {}  # of the last validation

    def reset(self) -> None:
        sources, vocabulary = self.sizes.shape
        self.totals = RankTotals(
            sums=np.zeros((sources, 3)),
            targets=np.zeros(vocabulary, np.int64),
            bytes=np.zeros(sources),
        )

    def add(self, rows: list[CausalRow], sums: torch.Tensor, source: int = 0) -> None:
        """Add rows of a source and `sums`, float64 [3]: all data ranks' loss, correct predictions,
        targets.
        """
        self.totals.sums[source] += sums.cpu().numpy()
        if not self.counts:
            return
        # Losses are of all ranks already; targets and bytes are counted here, and summed later.
        vocabulary = self.sizes.shape[1]
        for row in rows:
            has_target = row["targets"] != NO_TARGET
            targets = row["targets"][has_target].numpy()
            self.totals.targets[:] += np.bincount(targets, minlength=vocabulary)
            self.totals.bytes[source] += self.sizes[source][targets].sum()

    def per_slot_reduce(self) -> RankTotals:
        return self.totals

    def cross_slot_reduce(self, per_slot: list[RankTotals]) -> dict[str, float]:
        # The sums are of all ranks, on each of them.
        sums = per_slot[0].sums  # [sources, 3]
        loss, correct, targets = sums.sum(0).tolist()
        mean_loss = loss / targets
        text_bytes = np.sum([totals.bytes for totals in per_slot], axis=0)  # [sources]
        all_bytes = text_bytes.sum()

        # The best that one guess for all targets can do: their own frequencies.
        frequencies = np.sum([totals.targets for totals in per_slot], axis=0) / targets
        frequencies = frequencies[frequencies > 0]
        entropy = float(-(frequencies * np.log(frequencies)).sum())

        self.metrics = {
            "loss": mean_loss,
            "perplexity": math.exp(min(mean_loss, 700.0)),
            "bits_per_byte": _bits_per_byte(loss, all_bytes),
            "baseline_bits_per_byte": _bits_per_byte(entropy * targets, all_bytes),
            "accuracy": 100.0 * correct / targets,
        }
        if len(self.names) > 1:
            for source, name in enumerate(self.names):
                loss, _, targets = sums[source].tolist()
                if targets:  # a low cap may leave a small source no window
                    self.metrics[f"loss_{name}"] = loss / targets
                    self.metrics[f"bits_per_byte_{name}"] = _bits_per_byte(loss, text_bytes[source])
        return dict(self.metrics)  # what is reported is less


def _bits_per_byte(nats: float, text_bytes: float) -> float:
    return float(nats / math.log(2) / max(text_bytes, 1.0))


LANGUAGE_MODEL = Workload(
    parsers=PARSERS,
    load=LmText.load,
    trial=LmTrial,
    commands={
        "write a folder for transformers": "python predict.py --model {} --export FOLDER",
    },
    sharded=True,
)

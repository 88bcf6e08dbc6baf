"""`PretrainTrial`: ALBERT's pretraining as a Determined PyTorchTrial.

The optimizer step is `PackedTrial`'s. The loss of a step is the mean over all masked tokens of the
global batch, plus the mean over all its pairs and the mean over all its spans, regardless of how
they were distributed to ranks and micro-batches.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from determined import pytorch
from transformers import AlbertConfig, AlbertForPreTraining

from detalbert.corpus.mixture import name_scores
from detalbert.corpus.reader import Corpus
from detalbert.engine import models
from detalbert.engine.attention import check_model
from detalbert.engine.flops import flops_of_row
from detalbert.engine.loaders import LazyLoader, validation_loader
from detalbert.engine.packed_trial import PackedTrial
from detalbert.engine.rows import to_device, validation_rows
from detalbert.engine.trial import Given, read_experiment
from detalbert.errors import UserError, as_user_error
from detalbert.settings.text import parse_text_config
from detalbert.training import preflight
from detalbert.training.workload import Workload
from pretrain import objectives
from pretrain.data import PretrainText
from pretrain.examples import ExampleOrder, ExampleRows, PretrainRow
from pretrain.hparams import PARSERS, PretrainHParams, parse_pretrain_hparams
from pretrain.matching import start_matching
from pretrain.sizing import SIZING

METRICS = tuple(
    "mlm_loss mlm_accuracy mlm_baseline sop_loss sop_accuracy span_loss span_accuracy".split()
)
CHARTED = set(METRICS) - {"mlm_baseline"} | {"loss"}  # it never moves
BY_SOURCE = ("loss", "mlm_accuracy")  # of each of several sources, too
SHOWN = ("loss", "mlm_accuracy", "sop_accuracy", "span_accuracy", "mlm_baseline")


class PretrainTrial(PackedTrial[PretrainHParams, PretrainRow]):
    """Pretrains an ALBERT; `given` are hyperparameters and data, default: from `context`."""

    data: PretrainText
    scores: "ScoreReducer"
    read = staticmethod(objectives.read_pretraining)

    def __init__(self, context: pytorch.PyTorchTrialContext, given: Given | None = None) -> None:
        hparams, self.data = given or read_experiment(
            context, parse_pretrain_hparams, PretrainText.load
        )
        model = build_albert(hparams, self.data.tokenizer)
        examples = len(self.data.train.lengths)
        corpus = self.data.validation.corpus
        charted = CHARTED | name_scores(BY_SOURCE, corpus.names)
        super().__init__(context, hparams, model, examples, SHOWN, charted)
        scores = ScoreReducer(self.model.config.vocab_size, corpus)
        self.scores = context.wrap_reducer(scores, for_training=False)

    def build_training_data_loader(self) -> torch.utils.data.DataLoader:
        hparams, examples = self.hparams, self.data.train
        group = examples.corpus.data.shuffle_shards
        batch = hparams.global_batch_size
        order = ExampleOrder(examples, batch, self.slots, hparams.known_seed, group)
        rows = partial(ExampleRows, examples, order=order)
        return LazyLoader(lambda: self.train_loader(rows, order))

    def build_validation_data_loader(self) -> torch.utils.data.DataLoader:
        def load() -> torch.utils.data.DataLoader:
            rows, shares = ExampleRows(self.data.validation, self.max_tokens), list[np.ndarray]()
            for some in self.data.held_out:  # rows of one source each
                lengths = self.data.validation.lengths[some]
                found = validation_rows(lengths, np.arange(len(some)), self.max_tokens)
                shares += [some[row] for row in found]
            return validation_loader(rows, shares, self.slots, self.rank, self.workers())

        return LazyLoader(load)

    def row_flops(self, row: PretrainRow) -> float:
        return flops_of_row(self.model.config, row)

    def losses(self, batch: list[PretrainRow]) -> Iterator[torch.Tensor]:
        weights = self._weights(batch)
        for row in batch:
            yield self._loss(to_device(row, self.context.device), weights)

    def _weights(self, batch: list[PretrainRow]) -> torch.Tensor:
        """Return the weight of a masked token, a pair and a span in the rank's loss, [3]."""
        counts = torch.stack([objectives.count_labels(row) for row in batch]).sum(0).float()
        # Made on the device it would wait for the step before.
        counts = counts.to(self.context.device, non_blocking=True)
        if self.slots > 1:
            with self.profile.mark("all_reduce"):
                dist.all_reduce(counts)
        # Slots' gradients are averaged: times `slots`, the mean over all hidden tokens comes out.
        return self.slots / counts.clamp(min=1)

    def _loss(self, row: PretrainRow, weights: torch.Tensor) -> torch.Tensor:
        losses = objectives.label_losses(row, *self.forward(row))
        counts = objectives.count_labels(row).clamp(min=1)
        # The meter divides by windows: each is given an even share of the row's.
        share: Any = sum(of.detach().sum() / n for of, n in zip(losses, counts, strict=False))
        self.meter.update(row, share.expand(len(row["sop_labels"])))
        return sum(of.sum() * weight for of, weight in zip(losses, weights, strict=False))

    def evaluate_batch(self, batch: list[PretrainRow], batch_idx: int) -> dict[str, Any]:  # type: ignore[override]  # no tensors
        """Score this rank's rows; the metrics come from the reducer, once for all ranks."""
        self.forward.refresh()
        for row in batch:
            moved = to_device(row, self.context.device)
            self.scores.update(row, objectives.score_row(moved, *self.forward(moved)))
        return {}


class ScoreReducer(pytorch.MetricReducer):
    """Reducer of sums over rows to the split's metrics, the same for any number of ranks."""

    def __init__(self, vocabulary: int, corpus: Corpus) -> None:
        self.vocabulary, self.corpus = vocabulary, corpus
        self.metrics: dict[str, float] = {}  # of the last validation

    def reset(self) -> None:
        self.rows: list[tuple[int, torch.Tensor]] = []
        self.labels = np.zeros(self.vocabulary, np.int64)

    def update(self, row: PretrainRow, sums: torch.Tensor) -> None:
        """Add a row (on the CPU) and its `sums`, of objectives.score_row."""
        self.rows.append((int(row["windows"][0]), sums))
        self.labels += np.bincount(row["mlm_labels"].numpy(), minlength=self.vocabulary)

    def per_slot_reduce(self) -> Any:
        return [(first, sums.cpu().numpy()) for first, sums in self.rows], self.labels

    def cross_slot_reduce(self, per_slot: list[Any]) -> dict[str, float]:
        # In the order of the examples, so that the sums are rounded alike at every slot count.
        found = sorted((r for rows, _ in per_slot for r in rows), key=lambda row: row[0])
        labels = sum(counts for _, counts in per_slot)
        metrics = _scores([sums for _, sums in found], labels)
        names, owner = self.corpus.names, self.corpus.source_of
        for source, name in enumerate(names if len(names) > 1 else []):
            if rows := [sums for first, sums in found if owner(first) == source]:
                own = _scores(rows, labels)  # a low cap may leave a small source no window
                metrics |= {f"{score}_{name}": own[score] for score in BY_SOURCE}
        self.metrics = metrics
        return dict(metrics)  # what is reported is less


def _scores(rows: list[np.ndarray], labels: np.ndarray) -> dict[str, float]:
    """Return the metrics of some rows, by their sums of objectives.score_row; `labels` are the
    counts of all hidden tokens, int64 [V].
    """
    sums: Any = sum(rows, np.zeros(3)).tolist()  # [objectives, 3]
    metrics = {"loss": 0.0}
    for name, (loss, hits, count) in zip(("mlm", "sop", "span"), sums, strict=False):
        if count or name == "mlm":
            metrics[f"{name}_loss"] = loss / max(count, 1)
            metrics[f"{name}_accuracy"] = 100.0 * hits / max(count, 1)
            metrics["loss"] += metrics[f"{name}_loss"]
    # What the best single guess for every hidden token would get.
    return {**metrics, "mlm_baseline": 100.0 * float(labels.max()) / max(sums[0][2], 1)}


def build_albert(hparams: PretrainHParams, tokenizer: Any) -> AlbertForPreTraining:
    """Build ALBERT with its heads in fp32, its random weights drawn from `seed`.

    Without sentence order the pooler and its classifier are frozen: they are not trained, and
    LAMB's weight decay would shrink them. Raises UserError if the model cannot be built.
    """
    torch.manual_seed(hparams.known_seed)
    kind = objectives.AlbertForSpanPreTraining if hparams.span_fraction else AlbertForPreTraining
    if hparams.model is not None:
        with as_user_error(partial(models.model_error, hparams.model)):
            model, _ = models.load_weights(kind, hparams.model)
    else:
        config = models.config_from_keys(hparams.model_keys(), tokenizer)
        model = models.random_model(kind, config)
        if hparams.matching_start:
            start_matching(model.albert)
    models.check_vocabulary(model.config, tokenizer)
    check_model(model)
    if model.config.model_type != "albert":
        raise UserError("hyperparameters.model_config.model_type: only albert is pretrained here")
    hparams.check_positions(model.config.max_position_embeddings)
    if not hparams.sentence_order:
        model.albert.pooler.requires_grad_(False)
        model.sop_classifier.requires_grad_(False)
    return model


def check(config: Mapping[str, Any], hparams: PretrainHParams, gpu_uuids: Sequence[str]) -> None:
    """Check that this machine can run the experiment. Raises UserError for the first fault. Text is
    not checked: writing its shards reads it, and reports faults.
    """
    data = parse_text_config(config["data"])
    preflight.check_gpus(gpu_uuids)
    sizes = None
    if hparams.model is None:
        sizes = models.encoder_sizes(AlbertConfig(**hparams.model_keys()), AlbertForPreTraining)
    masked = hparams.masked_fraction
    preflight.check_room(config, hparams, sizes, gpu_uuids, Path(data.cache_dir), masked)


PRETRAINING = Workload(
    parsers=PARSERS,
    load=PretrainText.load,
    trial=PretrainTrial,
    check=check,
    metrics=METRICS,
    metric="loss",
    sizing=SIZING,
    use="python predict.py --model {} --export DIR (or go on with it: pretrain/README.md)",
    smaller_is_better=("loss", "mlm_loss", "sop_loss", "span_loss"),
)

"""`PretrainTrial`: an encoder's pretraining as a Determined PyTorchTrial.

The optimizer step is `PackedTrial`'s. The loss of a step is the mean over all masked tokens of the
global batch, plus the mean over all its pairs and the mean over all its spans, regardless of how
they were distributed to ranks and micro-batches.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from determined import pytorch
from transformers import AlbertForPreTraining, PreTrainedModel, PreTrainedTokenizerBase

from detalbert.corpus.mixture import name_scores
from detalbert.corpus.read import Corpus
from detalbert.engine import model_checks, models
from detalbert.engine.attention import check_model
from detalbert.engine.flops import ENCODERS, flops_of_row
from detalbert.engine.graphs import SPAN_PADDINGS, Padding, RowSizes
from detalbert.engine.loaders import LazyLoader, validation_loader
from detalbert.engine.metric import Metric, charted_names, logged_names
from detalbert.engine.packed_trial import PackedTrial
from detalbert.engine.rows import to_device, validation_rows
from detalbert.engine.trial import Given, read_experiment
from detalbert.errors import as_user_error
from detalbert.settings.text import parse_text_config
from detalbert.training import preflight
from detalbert.training.sizing import encoder_config
from detalbert.training.workload import Workload
from pretrain import objectives
from pretrain.data import PretrainText
from pretrain.encoders import build_encoder, find_family
from pretrain.examples import NO_LABEL, ExampleOrder, ExampleRows, PretrainRow
from pretrain.hparams import ALBERT, PARSERS, PretrainHParams, parse_pretrain_hparams
from pretrain.matching import start_matching
from pretrain.sizing import SIZING

METRICS = (
    Metric("loss", charted=True, logged=True, smaller_is_better=True),
    Metric("mlm_accuracy", charted=True, logged=True),
    Metric("sop_accuracy", charted=True, logged=True),
    Metric("span_accuracy", charted=True, logged=True),
    Metric("mlm_baseline", logged=True),  # it never moves
    Metric("mlm_loss", charted=True, smaller_is_better=True),
    Metric("sop_loss", charted=True, smaller_is_better=True),
    Metric("span_loss", charted=True, smaller_is_better=True),
)
# Those that each of several sources has, too.
BY_SOURCE = ("loss", "mlm_accuracy")


class PretrainTrial(PackedTrial[PretrainHParams, PretrainRow]):
    """Pretrains an encoder; `given` are hyperparameters and data, default: from `context`."""

    data: PretrainText
    reducer: "ScoreReducer"
    read_logits = staticmethod(objectives.read_pretraining)
    paddings = {
        **SPAN_PADDINGS,
        "sop_labels": Padding("windows", value=NO_LABEL),
        "masked": Padding("masked"),
        "mlm_labels": Padding("masked", value=NO_LABEL),
    }

    def __init__(self, context: pytorch.PyTorchTrialContext, given: Given | None = None) -> None:
        inputs = given or read_experiment(
            context, parse=parse_pretrain_hparams, load=PretrainText.load
        )
        hparams, self.data = inputs
        held_out = self.data.validation.corpus
        super().__init__(
            context,
            hparams,
            model=build_model(hparams, tokenizer=self.data.tokenizer),
            epoch_windows=len(self.data.train.lengths),
            logged_metrics=logged_names(METRICS),
            charted_metrics=charted_names(METRICS) | name_scores(BY_SOURCE, names=held_out.names),
        )
        reducer = ScoreReducer(vocabulary=self.model.config.vocab_size, corpus=held_out)
        self.reducer = context.wrap_reducer(reducer, for_training=False)

    def guess_loss(self) -> float:
        order_loss = math.log(2) if self.hparams.sentence_order else 0.0
        return super().guess_loss() + order_loss

    def build_training_data_loader(self) -> torch.utils.data.DataLoader:
        examples = self.data.train
        order = ExampleOrder(
            examples,
            global_batch_size=self.hparams.global_batch_size,
            slots=self.slots,
            seed=self.hparams.known_seed,
            group=examples.corpus.data.shuffle_shards,
        )
        rows = partial(ExampleRows, examples, order=order, padded=self.forward.padded)
        return LazyLoader(lambda: self.train_loader(rows, order))

    def build_validation_data_loader(self) -> torch.utils.data.DataLoader:
        def load() -> torch.utils.data.DataLoader:
            # A row has examples of one source, so that each source has scores of its own.
            rows = ExampleRows(
                self.data.validation, max_tokens=self.max_tokens, padded=self.forward.padded
            )
            shares: list[np.ndarray] = []
            for examples in self.data.held_out:
                lengths = self.data.validation.lengths[examples]
                places = np.arange(len(examples))
                for row in validation_rows(lengths, places, max_tokens=self.max_tokens):
                    shares.append(examples[row])
            return validation_loader(
                rows, shares, slots=self.slots, slot=self.rank, num_workers=self.workers()
            )

        return LazyLoader(load)

    def row_flops(self, row: PretrainRow) -> float | None:
        config = self.model.config
        return flops_of_row(config, row) if config.model_type in ENCODERS else None

    def row_sizes(self) -> RowSizes:
        sizes = super().row_sizes()
        # Each window's number is rounded.
        masked = math.ceil(self.hparams.masked_fraction * sizes.tokens) + sizes.windows
        return sizes._replace(masked=masked)

    def loss_weights(self, batch: list[PretrainRow]) -> torch.Tensor:
        """Return the weight of a masked token, a pair and a span in the rank's loss, [3]."""
        # Numbers of labels are of the whole step, so they are summed before its first row.
        row_counts = torch.stack([objectives.count_labels(row) for row in batch])  # [rows, 3]
        # Summed on the device, it would wait for the step before.
        counts = row_counts.sum(0).float().to(self.context.device, non_blocking=True)
        if self.slots > 1:
            with self.profile.mark("all_reduce"):
                dist.all_reduce(counts)
        # Ranks' gradients are averaged: times `slots`, the mean over all masked tokens comes out.
        return self.slots / counts.clamp(min=1)

    def row_loss(
        self, row: PretrainRow, weights: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sum of all objectives' losses, each with its weight, and the row's mean loss
        for each of its windows.
        """
        losses = objectives.label_losses(row, *self.forward(row))
        counts = objectives.count_labels(row).clamp(min=1)
        row_mean: Any = 0
        loss: Any = 0
        for number, objective_losses in enumerate(losses):
            row_mean = row_mean + objective_losses.detach().sum() / counts[number]
            loss = loss + objective_losses.sum() * weights[number]

        # The meter averages over windows: each counts with its row's mean loss.
        windows = len(row["sop_labels"])
        return loss, row_mean.expand(windows)

    def evaluate_batch(self, batch: list[PretrainRow], batch_idx: int) -> dict[str, Any]:  # type: ignore[override]  # no tensors
        """Score this rank's rows; the metrics come from the reducer, once for all ranks."""
        self.forward.refresh()
        for row in batch:
            device_row = to_device(row, self.context.device)
            sums = objectives.score_row(device_row, *self.forward(device_row))
            self.reducer.update(row, sums)
        return {}


class RankRows(NamedTuple):
    """A rank's contribution to a validation's metrics."""

    rows: list[tuple[int, np.ndarray]]  # of each row its first example, and objectives.score_row
    labels: np.ndarray  # int64 [V]: how often each token is masked


class ScoreReducer(pytorch.MetricReducer):
    """Reducer of sums over rows to the split's metrics, the same for any number of ranks.

    Args:
        vocabulary: tokens of the model, V.
        corpus: the validation's.
    """

    def __init__(self, vocabulary: int, corpus: Corpus) -> None:
        self.vocabulary = vocabulary
        self.corpus = corpus
        self.metrics: dict[str, float] = {}  # of the last validation

    def reset(self) -> None:
        self.rows: list[tuple[int, torch.Tensor]] = []
        self.labels = np.zeros(self.vocabulary, np.int64)

    def update(self, row: PretrainRow, sums: torch.Tensor) -> None:
        """Add a row (on the CPU) and its `sums`, of objectives.score_row."""
        first = int(row["windows"][0])
        self.rows.append((first, sums))
        self.labels += np.bincount(row["mlm_labels"].numpy(), minlength=self.vocabulary)

    def per_slot_reduce(self) -> RankRows:
        rows = [(first, sums.cpu().numpy()) for first, sums in self.rows]
        return RankRows(rows, self.labels)

    def cross_slot_reduce(self, per_slot: list[RankRows]) -> dict[str, float]:
        # In the order of the examples, so that the sums are rounded alike at every slot count.
        rows = sorted(
            itertools.chain.from_iterable(scores.rows for scores in per_slot),
            key=lambda row: row[0],
        )
        labels = np.sum([scores.labels for scores in per_slot], axis=0)  # [V]
        metrics = _average([sums for _, sums in rows], labels=labels)
        if len(self.corpus.names) > 1:
            for source, name in enumerate(self.corpus.names):
                own = [sums for first, sums in rows if self.corpus.source_of(first) == source]
                metrics |= _source_scores(name, rows=own, labels=labels)
        self.metrics = metrics
        return dict(metrics)  # what is reported is less


def _source_scores(name: str, rows: list[np.ndarray], labels: np.ndarray) -> dict[str, float]:
    """Return the scores of a source, by their names in charts; a low cap may leave a small source
    no row, and so no scores.
    """
    if not rows:
        return {}
    scores = _average(rows, labels=labels)
    return {f"{score}_{name}": scores[score] for score in BY_SOURCE}


def _average(rows: list[np.ndarray], labels: np.ndarray) -> dict[str, float]:
    """Return the metrics of some rows.

    Args:
        rows: their sums, of objectives.score_row, float64 [objectives, 3] each.
        labels: how often each token is masked, in all rows, int64 [V].
    """
    sums = np.zeros(3)
    for row in rows:
        sums = sums + row  # [objectives, 3]
    metrics = {"loss": 0.0}
    for name, (loss, correct, count) in zip(("mlm", "sop", "span"), sums.tolist(), strict=False):
        if count or name == "mlm":
            labelled = max(count, 1)
            mean_loss = loss / labelled
            metrics[f"{name}_loss"] = mean_loss
            metrics[f"{name}_accuracy"] = 100.0 * correct / labelled
            metrics["loss"] += mean_loss

    # What the best single guess for every masked token would get.
    masked = float(sums[0][2])
    metrics["mlm_baseline"] = 100.0 * float(labels.max()) / max(masked, 1)
    return metrics


def build_model(hparams: PretrainHParams, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """Build the model with its heads in fp32. Raises UserError as `build_albert`, and for a key
    that is ALBERT's alone, of another model.
    """
    family = find_family(hparams)
    hparams = hparams.of_family(family)
    build = build_albert if family == ALBERT else build_encoder
    return build(hparams, tokenizer)


def build_albert(
    hparams: PretrainHParams, tokenizer: PreTrainedTokenizerBase
) -> AlbertForPreTraining:
    """Build ALBERT with its heads in fp32, its random weights drawn from `seed`.

    Without sentence order the pooler and its classifier are frozen: they are not trained, and
    LAMB's weight decay would shrink them.

    Args:
        hparams: name the model, or its sizes.
        tokenizer: its own.

    Raises:
        UserError: if the model cannot be built.
    """
    # Heads that a named model lacks are drawn, too.
    torch.manual_seed(hparams.known_seed)
    kind = AlbertForPreTraining
    if hparams.span_fraction:
        kind = objectives.AlbertForSpanPreTraining
    if hparams.model is not None:
        with as_user_error(partial(models.model_error, hparams.model)):
            model, missing = models.load_weights(kind, hparams.model)
        model_checks.log_random_head(hparams.model, model, missing)
    else:
        config = models.config_from_keys(hparams.model_keys(), tokenizer)
        model = models.random_model(kind, config)
        if hparams.matching_start:
            start_matching(model.albert)
    models.check_vocabulary(model.config, tokenizer)
    check_model(model)
    hparams.check_positions(model.config.max_position_embeddings)
    if hparams.sentence_order is False:
        model.albert.pooler.requires_grad_(False)
        model.sop_classifier.requires_grad_(False)
    return model


def check(config: Mapping[str, Any], hparams: PretrainHParams, gpu_uuids: Sequence[str]) -> None:
    """Check that this machine can run the experiment.

    Text is not checked: writing its shards reads it, and reports faults.

    Args:
        config: the experiment's.
        hparams: parsed from it.
        gpu_uuids: of this machine's GPUs.

    Raises:
        UserError: for the first fault.
    """
    data = parse_text_config(config["data"])
    preflight.check_gpus(gpu_uuids)
    # Those of a named model are not known before it is downloaded.
    sizes = None
    if hparams.model is None:
        model_config = encoder_config(None, hparams.model_keys())
        sizes = None if model_config is None else SIZING.count_sizes(model_config)
    preflight.check_room(
        config,
        hparams,
        sizes=sizes,
        gpu_uuids=gpu_uuids,
        cache=Path(data.cache_dir),
        masked=hparams.masked_fraction,
    )


PRETRAINING = Workload(
    parsers=PARSERS,
    load=PretrainText.load,
    trial=PretrainTrial,
    check=check,
    metrics=METRICS,
    sizing=SIZING,
    commands={
        "write a folder for transformers": "python predict.py --model {} --export FOLDER",
        "fine-tune it": "python train.py --config configs/finetune_pretrained.yaml"
        " --set hyperparameters.model={}",
    },
)

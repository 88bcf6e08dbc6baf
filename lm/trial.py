"""`LmTrial`: a causal language model, sharded over the ranks, as a Determined PyTorchTrial.

The loss of a step is the mean over all targets of the global batch, regardless of how its windows
were distributed to data ranks and rows.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from determined import pytorch

from detalbert.corpus.mixture import name_scores
from detalbert.engine.flops import causal_flops, row_lengths
from detalbert.engine.meter import TrainingMeter
from detalbert.engine.precision import resolve_precision
from detalbert.engine.trial import Given, StepTrial, read_experiment
from detalbert.training.workload import Workload
from lm.data import LmText
from lm.gradients import ShardedGradients, accumulate, compile_layers, evaluate
from lm.hparams import PARSERS, LmHParams, parse_lm_hparams
from lm.layout import choose_layout, make_mesh
from lm.model import build_causal_model, causal_config
from lm.order import WindowOrder
from lm.packed import NO_TARGET, CausalRow, check_family
from lm.preflight import check
from lm.samples import Samples
from lm.sizing import SIZING
from lm.token_bytes import token_bytes
from lm.windows import WindowRows, validation_loader

METRICS = ("perplexity", "bits_per_byte", "accuracy", "baseline_bits_per_byte")
SHOWN = ("loss", "bits_per_byte", "baseline_bits_per_byte", "accuracy", "perplexity")
BY_SOURCE = ("loss", "bits_per_byte")  # of each of several sources, too
CHARTED = {"loss", "perplexity", "bits_per_byte", "accuracy"}


class LmMeter(TrainingMeter):
    """Mean loss per target token, accuracy and throughput since the last report."""

    def reset(self) -> None:
        super().reset()
        self.sums: list[torch.Tensor] = []  # float64 [3] each: loss, right guesses, targets

    def add(self, sums: torch.Tensor, windows: int, tokens: int) -> None:
        self.sums.append(sums)
        self.windows += windows
        self.tokens += tokens

    def per_slot_reduce(self) -> dict[str, float]:
        sums = torch.stack(self.sums) if self.sums else torch.zeros(0, 3, dtype=torch.float64)
        loss, right, targets = sums[sums.isfinite().all(1)].sum(0).tolist()
        return {**super().per_slot_reduce(), "loss": loss, "counted": targets, "right": right}

    def cross_slot_reduce(self, per_slot: list[Any]) -> dict[str, float]:
        metrics = super().cross_slot_reduce(per_slot)
        targets, right = (sum(slot[key] for slot in per_slot) for key in ("counted", "right"))
        speed = self.throughput["tokens"] / self.throughput["seconds"]
        accuracy = 100.0 * right / max(targets, 1)
        return {**metrics, "accuracy": accuracy, "tokens_per_second": speed}


class LmTrial(StepTrial[LmHParams, CausalRow]):
    """Trains a causal language model; `given` are hyperparameters and data, if not `context`'s."""

    gradients: ShardedGradients
    scores: "Scores"
    meter: LmMeter
    meter_kind = LmMeter
    data: LmText

    def __init__(self, context: pytorch.PyTorchTrialContext, given: Given | None = None) -> None:
        hparams, self.data = given or read_experiment(context, parse_lm_hparams, LmText.load)
        config, slots = causal_config(hparams, self.data.tokenizer), context.distributed.size
        check_family(config)
        machine = context.distributed.local_size
        self.layout = choose_layout(hparams.layout, config, slots, machine)
        dtype = resolve_precision(hparams.precision, context.device)
        mesh = make_mesh(self.layout, context.device)
        start = hparams.seed, hparams.model, None if dtype is torch.float32 else dtype
        length = hparams.max_seq_length
        self.row = hparams.max_tokens_per_forward // length, length  # the longest
        compiled = hparams.compile * math.prod(self.row)
        model = build_causal_model(config, mesh, *start, hparams.recomputed, compiled)
        charted = CHARTED | name_scores(BY_SOURCE, self.data.validation.shards.names)
        super().__init__(context, hparams, model, len(self.data.train), SHOWN, charted)
        held_out = self.data.validation
        sizes = token_bytes(self.data.tokenizer, config.vocab_size, held_out.average_bytes())
        scores = Scores(held_out.shards.names, sizes, self._counts)
        self.scores = context.wrap_reducer(scores, for_training=False)

    @property
    def data_rank(self) -> int:
        return self.layout.data_rank(self.rank)

    @property
    def _counts(self) -> bool:
        """Whether this rank reports its rows, which its tensor-parallel group shares."""
        return self.rank % self.layout.tensor == 0

    def prepare_gradients(self) -> int:
        self.gradients = ShardedGradients(self.model)
        if self.hparams.compile:
            compile_layers(self.model, *self.row, self.layout)
        return self.hparams.max_tokens_per_forward

    def rounding(self) -> dict[str, Any]:
        tokens, compiled = self.max_tokens, self.hparams.compile
        return {"max_tokens_per_forward": tokens, "layout": str(self.layout), "compile": compiled}

    def row_flops(self, row: CausalRow) -> float | None:
        return causal_flops(self.model.config, row_lengths(row)) if self._counts else 0.0

    def build_training_data_loader(self) -> torch.utils.data.DataLoader:
        train, shards, hparams = self.data.train, self.data.train.shards, self.hparams
        drawn = hparams.known_seed, shards.data.shuffle_shards, self.layout.data_ranks
        batch, mix = hparams.global_batch_size, (shards.sources, shards.weights)
        order = WindowOrder(train.counts, batch, *drawn, *mix)
        return self.train_loader(partial(WindowRows, train, order=order), order)

    def build_validation_data_loader(self) -> torch.utils.data.DataLoader:
        limit, ranks = self.hparams.max_validation_windows, self.layout.data_ranks
        loader, self.sources = validation_loader(
            self.data.validation, limit, self.data_rank, ranks, self.max_tokens
        )
        return loader

    def get_batch_length(self, batch: list[CausalRow]) -> int:
        return sum(len(row["input_ids"]) for row in batch) // self.hparams.max_seq_length

    def add_gradients(self, batch: list[CausalRow]) -> None:
        sums = accumulate(self.model, batch, self.layout, self.backward)
        if self._counts:
            tokens = sum(len(row["input_ids"]) for row in batch)
            self.meter.add(sums, self.get_batch_length(batch), tokens)

    def evaluate_batch(self, batch: list[CausalRow], batch_idx: int) -> dict[str, Any]:  # type: ignore[override]  # no tensors
        """Score this rank's rows; the metrics come from the reducer, once for all ranks."""
        sums = evaluate(self.model, batch, self.layout)
        self.scores.add(batch, sums, self.sources[batch_idx])
        return {}

    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        samples = {"samples": Samples(self)} if self.hparams.samples else {}
        return {**super().build_callbacks(), **samples}


class Scores(pytorch.MetricReducer):
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
        self.sums = np.zeros((sources, 3))
        self.bytes = np.zeros(sources)  # of the targets' text
        self.targets = np.zeros(vocabulary, np.int64)  # how often each entry is one

    def add(self, rows: list[CausalRow], sums: torch.Tensor, source: int = 0) -> None:
        """Add rows of a source and `sums`, float64 [3]: all data ranks' loss, correct predictions,
        targets.
        """
        self.sums[source] += sums.cpu().numpy()
        for row in rows if self.counts else []:
            wanted = row["targets"][row["targets"] != NO_TARGET].numpy()
            self.targets += np.bincount(wanted, minlength=len(self.targets))
            self.bytes[source] += self.sizes[source][wanted].sum()

    def per_slot_reduce(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.sums, self.targets, self.bytes

    def cross_slot_reduce(
        self, per_slot: list[tuple[np.ndarray, np.ndarray, np.ndarray]]
    ) -> dict[str, float]:
        sums = per_slot[0][0]  # of all ranks, on each
        loss, right, targets = sums.sum(0).tolist()
        text_bytes = np.sum([sizes for _, _, sizes in per_slot], axis=0)  # [sources]
        frequencies = np.sum([counts for _, counts, _ in per_slot], axis=0) / targets
        frequencies = frequencies[frequencies > 0]
        mean = loss / targets

        # The best that one guess for all targets can do: their own frequencies.
        entropy = float(-(frequencies * np.log(frequencies)).sum())
        self.metrics = {
            "loss": mean,
            "perplexity": math.exp(min(mean, 700.0)),
            "bits_per_byte": _bits_per_byte(loss, text_bytes.sum()),
            "baseline_bits_per_byte": _bits_per_byte(entropy * targets, text_bytes.sum()),
            "accuracy": 100.0 * right / targets,
        }
        for source, name in enumerate(self.names if len(self.names) > 1 else ()):
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
    check=check,
    metrics=METRICS,
    metric="loss",
    sizing=SIZING,
    use="python predict.py --model {} --prompt TEXT (or --perplexity, --export)",
    smaller_is_better=("loss", "perplexity", "bits_per_byte", "baseline_bits_per_byte"),
    sharded=True,
)

"""`SquadTrial`: extractive question answering as a Determined PyTorchTrial.

`PackedTrial` has the optimizer step. `evaluate_batch` decodes spans on the device and sends
candidates, not logits, to a reducer that scores the whole split on rank 0. A mean over ranks would
be no score: a question's windows may be on several of them. So rank 0 merges alone, which takes
seconds, and the result is the same on any number of ranks.
"""

import math
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from determined import get_cluster_info, pytorch

from data import Split, SquadData
from detalbert.engine.forward import evaluate_row, row_losses
from detalbert.engine.loaders import LazyLoader, PackedRows, validation_loader
from detalbert.engine.models import build_span_model, starts_from_scratch
from detalbert.engine.order import TrainOrder
from detalbert.engine.packed_trial import PackedTrial
from detalbert.engine.rows import SquadRow, validation_rows
from detalbert.engine.trial import Given, read_experiment
from detalbert.files import write_json
from detalbert.run_page.outcomes import Outcomes, collect
from detalbert.run_page.run import REPORT, describe_run
from detalbert.settings.hparams import METRICS, PARSERS, HParams, parse_hparams
from detalbert.squad import calibration
from detalbert.squad.answers import Answers, merge_answers, n_best_list
from detalbert.squad.decoding import Candidates
from detalbert.squad.metrics import score
from detalbert.training.folder import SCORES, write_predictions
from detalbert.training.workload import Workload, describe_model


class SquadTrial(PackedTrial[HParams, SquadRow]):
    """Fine-tunes an encoder on SQuAD; `given` are hyperparameters and data, if not `context`'s."""

    data: SquadData
    reducer: "AnswerReducer"

    def __init__(self, context: pytorch.PyTorchTrialContext, given: Given | None = None) -> None:
        inputs = given or read_experiment(context, parse=parse_hparams, load=SquadData.load)
        hparams, self.data = inputs
        super().__init__(
            context,
            hparams,
            model=build_span_model(hparams, self.data.tokenizer),
            epoch_windows=self.data.summary().windows,
            metrics=METRICS,
        )
        reducer = AnswerReducer(hparams, split=self.data.validation, rank=self.rank)
        self.reducer = context.wrap_reducer(reducer, for_training=False)

    def starts_from_scratch(self) -> bool:
        return starts_from_scratch(self.hparams, self.data.tokenizer)

    def guess_loss(self) -> float:
        """Return the loss of a model that knows only the share of windows without an answer."""
        windows = self.data.train.windows
        share = self.data.train.counts["with_answer"] / self.data.summary().windows

        # Any token of the context may be the answer's first.
        loss = share * math.log(windows.context_length.mean())
        for probability in (share, 1 - share):
            if probability:
                loss -= probability * math.log(probability)
        return loss

    def validated(self) -> tuple[Answers | None, dict[str, float]]:
        # After a step they are of other weights.
        answers = self.reducer.latest if self.history.is_validated else None
        return answers, self.reducer.metrics

    def build_training_data_loader(self) -> torch.utils.data.DataLoader:
        windows = self.data.train.windows
        order = TrainOrder(
            windows.lengths,
            global_batch_size=self.hparams.global_batch_size,
            slots=self.slots,
            seed=self.hparams.known_seed,
            optional=np.flatnonzero(windows.holds_answer == 0),
            left_out=self.data.left_out,
        )
        rows = partial(PackedRows, windows, padded=self.forward.padded)
        return LazyLoader(lambda: self.train_loader(rows, order))

    def build_validation_data_loader(self) -> torch.utils.data.DataLoader:
        windows = self.data.validation.windows
        max_tokens = self.max_tokens
        rows = PackedRows(windows, max_tokens=max_tokens, padded=self.forward.padded)

        def load() -> torch.utils.data.DataLoader:
            # The same rows on any number of ranks, which are dealt them.
            shares = validation_rows(
                windows.lengths, example_index=windows.example_index, max_tokens=max_tokens
            )
            return validation_loader(rows, shares, slots=self.slots, slot=self.rank)

        return LazyLoader(load)

    def row_loss(self, row: SquadRow) -> tuple[torch.Tensor, torch.Tensor]:
        start_logits, end_logits = self.forward(row)  # [T] each
        losses = row_losses(row, start_logits, end_logits)  # [windows of the row]
        return losses.sum() / self.rank_windows, losses

    def evaluate_batch(self, batch: list[SquadRow], batch_idx: int) -> dict[str, Any]:  # type: ignore[override]  # no tensors
        """Decode this rank's rows; the metrics come from the reducer, once for the whole split."""
        self.forward.refresh()
        for row in batch:
            spans, losses = evaluate_row(self.forward, row, self.hparams)
            self.reducer.update(spans, losses)
        return {}

    def on_checkpoint_write_end(self, checkpoint_dir: str) -> None:
        """Save predictions and scores as well, if the checkpoint's weights were validated."""
        super().on_checkpoint_write_end(checkpoint_dir)
        answers, scores = self.validated()
        if answers is None:
            return
        folder = Path(checkpoint_dir)
        write_predictions(folder, answers, step=self.history.step)
        language = self.data.validation.config.language
        write_json(folder / SCORES, {**scores, "language": language})
        # A local run has one page, in its output directory.
        if get_cluster_info() is not None:
            best = {**scores, "steps": self.history.step}
            outcomes = collect_outcomes(self, answers)
            run = describe_run(
                self, model=describe_model(self), best=best, outcomes=outcomes, commands={}
            )
            from detalbert.run_page.page import render_report  # with matplotlib: a second

            (folder / REPORT).write_text(render_report(run), encoding="utf-8")


# The candidates of a rank's rows, and the losses of each row's windows, fp32 [n].
RankResult = tuple[list[Candidates], list[np.ndarray]]


@dataclass(eq=False)
class AnswerReducer(pytorch.MetricReducer):
    """Reducer of all ranks' span candidates to answers, exact match and F1, on rank 0."""

    hparams: HParams
    split: Split
    rank: int
    # Of the last validation, on rank 0, and the metrics of these answers.
    latest: Answers | None = None
    metrics: dict[str, float] = field(default_factory=dict)

    def reset(self) -> None:
        self.spans: list[Candidates] = []
        self.losses: list[np.ndarray] = []

    def update(self, spans: Candidates, losses: torch.Tensor) -> None:
        self.spans.append(spans)
        self.losses.append(losses.float().cpu().numpy())

    def per_slot_reduce(self) -> RankResult:
        return self.spans, self.losses

    def cross_slot_reduce(self, per_slot: list[RankResult]) -> dict[str, float]:
        if self.rank != 0:
            return {}  # Determined reports what rank 0 returns

        # Collect all ranks' rows, in the order in which they come.
        spans = []
        row_losses = []
        for rank_spans, rank_losses in per_slot:
            spans += rank_spans
            row_losses += rank_losses
        losses = np.concatenate(row_losses)  # [windows]

        # A question may have several windows: merge them to one answer each, and score these.
        examples = self.split.examples
        windows = self.split.windows
        threshold = self.hparams.null_score_diff_threshold
        self.latest = merge_answers(examples, windows, spans, null_score_diff_threshold=threshold)
        # Spans, not predictions: thresholds above the run's own count for the best ones, too.
        metrics = score(
            examples,
            predictions=self.latest.spans,
            null_odds=self.latest.null_odds,
            threshold=threshold,
            language=self.split.config.language,
        )

        # Sum losses in window order: the bits are the same however the rows were dealt to ranks.
        order = np.argsort(np.concatenate([row.windows for row in spans]))
        metrics["loss"] = float(losses[order].mean(dtype=np.float64))
        if np.isfinite(metrics["loss"]):
            n_best = n_best_list(examples, windows, spans, n_best_size=self.hparams.n_best_size)
            predictions = self.latest.predictions
            fitted, probabilities = calibration.fit_calibration(
                examples, n_best, predictions, language=self.split.config.language
            )
            metrics |= fitted
            if calibration.is_calibrated(metrics):
                self.latest = self.latest._replace(probabilities=probabilities)

        # Kept for the checkpoint's files, which are written after Determined has the metrics.
        self.metrics = metrics
        return dict(metrics)  # the trainer adds counts to what it gets


def collect_outcomes(trial: SquadTrial, answers: Answers) -> Outcomes:
    """Return the answers of a validation beside its questions, for the page of a run."""
    return collect(
        trial.data.validation.examples,
        answers,
        threshold=trial.hparams.null_score_diff_threshold,
        language=trial.data.validation.config.language,
    )


FINE_TUNING = Workload(
    parsers=PARSERS,
    load=SquadData.load,
    trial=SquadTrial,
    outcomes=collect_outcomes,
    commands={
        "answer a file of questions": "python predict.py --model {} --data FILE"
        " --output-dir answers",
        "answer one question": "python predict.py --model {} --context-file FILE --question TEXT",
        "train again, on more questions or longer": "python train.py --config {}/config.yaml"
        " --set data.train=FILE --set hyperparameters.max_steps=STEPS --output-dir FOLDER",
        "serve a page that answers": "python predict.py --model {} --serve",
        "write a folder for transformers": "python predict.py --model {} --export FOLDER",
    },
)

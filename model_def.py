"""`SquadTrial`: extractive question answering as a Determined PyTorchTrial.

One batch is one optimizer step: `train_batch` runs the slot's packed rows one by one, adds up
their gradients, all-reduces them once and steps. `evaluate_batch` decodes spans on
the device and hands candidates, not logits, to a reducer that scores the whole split on the chief.
"""

import hashlib
import time
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import numpy as np
import torch
from determined import pytorch
from transformers import PreTrainedTokenizerBase

import budget
import optim
import resume
from batches import Row, TrainOrder, default_workers, train_loader, validation_loader
from data import Split, load_split, load_tokenizer
from decoding import Answers, Candidates, merge_answers
from display import Progress
from evaluation import evaluate_row, row_losses, to_device
from forward import Forward
from gradients import FlatGradients
from hparams import HParams, parse_data_config, parse_hparams
from modeling import build_model, resolve_precision
from run_folder import PRETRAINED, SCORES, write_json, write_predictions
from squad_metrics import score


class SquadData(NamedTuple):
    """Everything that a trial reads: both splits, featurised with one tokenizer."""

    tokenizer: PreTrainedTokenizerBase
    train: Split
    validation: Split

    @classmethod
    def load(cls, config: Dict[str, Any], hparams: HParams) -> "SquadData":
        """Read `data:` of an experiment config. Raises UserError for anything wrong with it."""
        data = parse_data_config(config)
        tokenizer = load_tokenizer(data, hparams)
        splits = [load_split(data, name, tokenizer, hparams) for name in ("train", "validation")]
        return cls(tokenizer, *splits)

    def fingerprints(self) -> Dict[str, Any]:
        """What the questions and the tokenizer are, by config key: hashes in place of names."""
        vocabulary = self.tokenizer.backend_tokenizer.to_str().encode()
        config = self.train.config
        return {
            "data.train": self.train.source.fingerprint,
            "data.validation": self.validation.source.fingerprint,
            "data.tokenizer": hashlib.sha256(vocabulary).hexdigest(),
            "data.max_train_examples": config.max_train_examples,
            "data.max_validation_examples": config.max_validation_examples,
            "data.skip_invalid": config.skip_invalid,
        }


class SquadTrial(pytorch.PyTorchTrial):
    """Fine-tunes a Hugging Face encoder on SQuAD.

    Args:
        context: Determined's; its hyperparameters and `data` config say everything else.
        data: the splits where the caller has them already; loaded from the config otherwise.
    """

    def __init__(
        self, context: pytorch.PyTorchTrialContext, data: Optional[SquadData] = None
    ) -> None:
        self.context = context
        self.hparams = parse_hparams(context.get_hparams())
        self.data = data or SquadData.load(context.get_data_config(), self.hparams)
        self.dtype = resolve_precision(self.hparams.precision, context.device)
        self.rank, self.slots = context.distributed.rank, context.distributed.size

        # The order matters: Determined wants the scaler wrapped before the model.
        self.scaler = context.wrap_scaler(
            torch.amp.GradScaler(context.device.type, enabled=self.dtype is torch.float16)
        )
        # Private: wrap_model has no other way to leave DistributedDataParallel out. Gradients are
        # all-reduced in one piece here; gradients.py says why.
        context._PyTorchDistributedDataParallel = lambda model: model
        self.model = context.wrap_model(build_model(self.hparams, self.data.tokenizer))
        self.forward = Forward(
            self.model, self.hparams.precision, context.device, self.hparams.compile
        )
        self.gradients = FlatGradients(
            (p for p in self.model.parameters() if p.requires_grad),
            self.slots,
            self.hparams.allreduce_dtype,
        )
        self.max_tokens = self._prepare_device()
        groups = optim.parameter_groups(self.model, self.hparams.weight_decay)
        self.optimizer = context.wrap_optimizer(
            optim.build_optimizer(self.hparams.optimizer, groups, self.hparams.learning_rate())
        )
        self.steps, self.warmup = plan_steps(self.hparams, len(self.data.train.windows))
        self.schedule = context.wrap_lr_scheduler(
            optim.build_scheduler(self.optimizer, self.steps, self.warmup),
            step_mode=pytorch.LRScheduler.StepMode.STEP_EVERY_OPTIMIZER_STEP,
        )
        # Our loaders repeat, deal and skip by themselves, and rows move to the device one by one.
        context.experimental.disable_dataset_reproducibility_checks()
        context.experimental.disable_auto_to_device()
        self.meter = context.wrap_reducer(TrainingMeter(), for_validation=False)
        self.answers = context.wrap_reducer(
            AnswerReducer(self.hparams, self.data.validation, self.rank), for_training=False
        )

    def build_training_data_loader(self) -> torch.utils.data.DataLoader:
        windows = self.data.train.windows
        batch = self.hparams.global_batch_size
        workers = self.hparams.num_workers
        if workers is None:
            workers = default_workers(self.context.distributed.local_size)
        return train_loader(
            windows,
            TrainOrder(windows.lengths, batch, self.slots, self.hparams.seed),
            slot=self.rank,
            first_step=self.context.get_initial_batch(),
            max_tokens=self.max_tokens,
            num_workers=workers,
            pin_memory=self.context.device.type == "cuda",
        )

    def build_validation_data_loader(self) -> torch.utils.data.DataLoader:
        windows = self.data.validation.windows
        return validation_loader(windows, self.slots, self.rank, self.max_tokens)

    def get_batch_length(self, batch: List[Row]) -> int:
        return sum(len(row["windows"]) for row in batch)

    def train_batch(self, batch: List[Row], epoch_idx: int, batch_idx: int) -> Dict[str, Any]:
        """One optimizer step over this slot's rows; `batch_idx` counts steps since the start."""
        resume.seed_step(self.hparams.seed, batch_idx, self.rank)
        self.answers.answers = None  # the weights move on from what was validated
        share = self.get_batch_length(batch)
        self.gradients.zero()
        self.forward.refresh()
        for row in batch:
            row = to_device(row, self.context.device)
            losses = row_losses(row, *self.forward(row))
            self.context.backward(self.scaler.scale(losses.sum() / share))
            self.meter.update(row, losses)
        self.gradients.average()
        self.scaler.unscale_(self.optimizer)
        if self.hparams.max_grad_norm:
            self.gradients.clip(self.hparams.max_grad_norm)
        self.context.step_optimizer(self.optimizer, auto_zero_grads=False, scaler=self.scaler)
        self.scaler.update()
        # The loss stays on the device until a report is due; a returned tensor would be read back,
        # and the device waited for, at every step.
        return {"learning_rate": self.optimizer.param_groups[0]["lr"]}

    def evaluate_batch(self, batch: List[Row], batch_idx: int) -> Dict[str, Any]:
        """Decode this slot's rows; the metrics come from the reducer, once for the whole split."""
        self.forward.refresh()
        for row in batch:
            self.answers.update(*evaluate_row(self.forward, row, self.hparams))
        return {}

    def build_callbacks(self) -> Dict[str, pytorch.PyTorchCallback]:
        steps_done = self.context.get_initial_batch()
        return {
            "progress": Progress(self.steps, steps_done, chief=self.rank == 0),
            "answers": AnswersBesideCheckpoint(self.answers, self.model, self.data.tokenizer),
        }

    def _prepare_device(self) -> int:
        """Compile the layers and settle the token budget, before the first real row."""
        wanted, longest = self.hparams.max_tokens_per_forward, self.hparams.max_seq_length
        self.forward.compile_layers(2 * longest if wanted == "auto" else wanted, longest)
        if wanted == "auto":
            wanted = budget.resolve(self.forward, longest, self.slots)
        return wanted


class TrainingMeter(pytorch.MetricReducer):
    """Mean loss and throughput of the steps since the last report. Loss sums stay on the device."""

    def reset(self) -> None:
        self.losses: List[torch.Tensor] = []
        self.windows = self.tokens = 0
        self.began = time.monotonic()

    def update(self, row: Row, losses: torch.Tensor) -> None:
        self.losses.append(losses.detach().sum())
        self.windows += len(losses)
        self.tokens += len(row["input_ids"])

    def per_slot_reduce(self) -> Tuple[float, int, int, float]:
        total = float(torch.stack(self.losses).sum()) if self.losses else 0.0
        return total, self.windows, self.tokens, time.monotonic() - self.began

    def cross_slot_reduce(self, per_slot: List[Tuple[float, int, int, float]]) -> Dict[str, float]:
        loss, windows, tokens = (sum(slot[i] for slot in per_slot) for i in range(3))
        seconds = max(slot[3] for slot in per_slot)
        return {
            "loss": loss / max(windows, 1),
            "examples_per_second": windows / seconds,
            "tokens_per_second": tokens / seconds,
        }


class AnswerReducer(pytorch.MetricReducer):
    """Span candidates of every slot -> answers -> EM/F1, on the chief."""

    def __init__(self, hparams: HParams, split: Split, rank: int) -> None:
        self.hparams = hparams
        self.split = split
        self.rank = rank
        self.answers: Optional[Answers] = None  # of the weights as they are, on the chief
        self.metrics: Dict[str, float] = {}  # of these answers

    def reset(self) -> None:
        self.spans: List[Candidates] = []
        self.losses: List[np.ndarray] = []

    def update(self, spans: Candidates, losses: torch.Tensor) -> None:
        self.spans.append(spans)
        self.losses.append(losses.float().cpu().numpy())

    def per_slot_reduce(self) -> Tuple[List[Candidates], List[np.ndarray]]:
        return self.spans, self.losses

    def cross_slot_reduce(self, per_slot: List[Any]) -> Dict[str, float]:
        if self.rank != 0:
            return {}  # Determined reports what the chief returns
        spans = [row for slot in per_slot for row in slot[0]]
        losses = np.concatenate([row for slot in per_slot for row in slot[1]])
        examples, windows = self.split.examples, self.split.windows
        threshold = self.hparams.null_score_diff_threshold
        self.answers = merge_answers(examples, windows, spans, threshold)
        metrics = score(examples, self.answers.predictions, self.answers.null_odds, threshold)
        # In window order, so that the sum is the same however the rows were dealt to slots.
        order = np.argsort(np.concatenate([row.windows for row in spans]))
        metrics["loss"] = float(losses[order].mean(dtype=np.float64))
        self.metrics = metrics
        return dict(metrics)  # the trainer adds counts to what it gets


def plan_steps(hparams: HParams, windows: int) -> Tuple[int, int]:
    """Optimizer steps of the whole run, and how many of them warm up."""
    steps = optim.total_steps(windows, hparams.global_batch_size, hparams.epochs, hparams.max_steps)
    return steps, optim.warmup_steps(steps, hparams.warmup_fraction)


class AnswersBesideCheckpoint(pytorch.PyTorchCallback):
    """Puts into a checkpoint what makes it usable by itself: the model's config, the tokenizer
    and, where these weights were validated, their predictions and scores."""

    def __init__(
        self,
        reducer: AnswerReducer,
        model: torch.nn.Module,
        tokenizer: PreTrainedTokenizerBase,
    ) -> None:
        self.reducer = reducer
        self.config = getattr(model, "module", model).config
        self.tokenizer = tokenizer

    def on_checkpoint_write_end(self, checkpoint_dir: str) -> None:
        folder = Path(checkpoint_dir)
        self.config.save_pretrained(folder / PRETRAINED)
        self.tokenizer.save_pretrained(folder / PRETRAINED)
        if self.reducer.answers is not None:
            write_predictions(folder, self.reducer.answers)
            write_json(folder / SCORES, self.reducer.metrics)

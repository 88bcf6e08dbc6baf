"""`StepTrial`: the base class of the package's trials, one optimizer step over packed rows.

Subclasses accumulate the gradients: encoders run row by row and all-reduce once (packed_trial.py),
language models are sharded (lm/). `train_batch` does the rest of a step. One batch of
the loader is one optimizer step, so a checkpoint never falls between two accumulations; the price
is that Determined's own gradient aggregation, scaling and averaging are not used.
docs/a-step.md lists the functions from a YAML file to a changed weight.
"""

import dataclasses
import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, cast

import torch
from determined import pytorch
from loky import cpu_count
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from detalbert.engine import optim
from detalbert.engine.determined_internals import set_experiment_config, wrap_model
from detalbert.engine.forward import resolve_precision
from detalbert.engine.gradients import CURE, FiniteSteps, Gradients
from detalbert.engine.history import EarlyStopping, History, LossWatch
from detalbert.engine.loaders import RowLoader
from detalbert.engine.order import Order, Steps
from detalbert.engine.profile import UNRECORDED_STEPS, StepProfile
from detalbert.engine.progress import Progress, TrainingMeter
from detalbert.engine.resume import CALLBACK, ResumeCallback
from detalbert.engine.rows import AnyRow
from detalbert.errors import Diverged, UserError
from detalbert.hub import PRETRAINED
from detalbert.redact import masked
from detalbert.settings.hparams import StepHParams
from detalbert.settings.metric import Metric

AnyHParams = TypeVar("AnyHParams", bound=StepHParams)
Given = tuple[Any, Any]  # a trial's (hyperparameters, data), of its workload's classes


class TrialData(Protocol):
    """Data of a trial, as far as every trial reads it; the rest belongs to the workload."""

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase | None: ...

    def summary(self) -> Any:
        """Return a DataSummary, see training/workload.py."""


class ValidationReducer(Protocol):
    """Reducer of a validation."""

    metrics: dict[str, float]  # all of the last validation's


def read_experiment(
    context: pytorch.PyTorchTrialContext,
    parse: Callable[[dict[str, object]], StepHParams],
    load: Callable[[dict[str, object], Any], TrialData],
) -> Given:
    """Return hyperparameters and data by the experiment config, as Determined creates trials.

    Args:
        context: has the config.
        parse: returns hyperparameters from `hyperparameters:`.
        load: returns data from `data:` and the hyperparameters.
    """
    hparams = parse(context.get_hparams())
    if hparams.seed is None:
        hparams = dataclasses.replace(hparams, seed=context.get_trial_seed())
    return hparams, load(context.get_data_config(), hparams)


def seed_step(seed: int, step: int, rank: int) -> None:
    """Seed torch so that all random draws of this optimizer step depend on (seed, step, rank) only.

    Determined starts all ranks with one seed, so they would draw the same dropout masks, and its
    checkpoints hold only rank 0's generator state.
    """
    digest = hashlib.blake2b(f"{seed}/{step}/{rank}".encode(), digest_size=8).digest()
    torch.manual_seed(int.from_bytes(digest, "little"))


class StepTrial(pytorch.PyTorchTrial, pytorch.PyTorchCallback, Generic[AnyHParams, AnyRow]):
    """Base class of trials: one `train_batch` is one optimizer step over packed rows. A trial is
    also a callback: it filters the metrics of a validation, and adds files to each checkpoint.

    Args:
        context: of Determined.
        hparams: the workload's hyperparameters.
        model: float32.
        epoch_windows: training windows per epoch.
        metrics: that a validation computes; the searcher's is always charted.
        also_charted: names of more that are reported: one WebUI chart each.
    """

    meter_kind = TrainingMeter
    data: TrialData  # set by the subclass, as the workload's `load` returns it
    gradients: Gradients  # set by `prepare_gradients`
    reducer: ValidationReducer  # set by the subclass

    def __init__(
        self,
        context: pytorch.PyTorchTrialContext,
        hparams: AnyHParams,
        model: nn.Module,
        epoch_windows: int,
        metrics: Sequence[Metric],
        also_charted: Iterable[str] = (),
    ) -> None:
        self.context = context
        self.hparams = hparams
        self.rank = context.distributed.rank
        # Whose random numbers this process draws; processes with the same rows share it.
        self.data_rank = self.rank
        self.slots = context.distributed.size
        set_experiment_config(context, masked(context.get_experiment_config()))
        # It sets the number of threads, by which all that follows is rounded.
        self.resume = ResumeCallback(context, hparams, self)
        self.dtype = resolve_precision(hparams.precision, context.device)

        # Determined requires the scaler to be wrapped before the model.
        scaler = torch.amp.GradScaler(context.device.type, enabled=self.dtype is torch.float16)
        self.scaler = context.wrap_scaler(scaler)
        self.model: PreTrainedModel = wrap_model(context, model)
        self.max_tokens = self.prepare_gradients()
        self._prepare_optimizer(epoch_windows)
        self.finite = FiniteSteps(context.device)

        # Whatever measures, prints, or ends the run.
        logged = [metric.name for metric in metrics if metric.logged]
        self._prepare_reports(epoch_windows, logged_metrics=logged)
        searcher = context.get_experiment_config()["searcher"]
        charted = [metric.name for metric in metrics if metric.charted]
        self.charted_metrics = {*charted, *also_charted, searcher["metric"]}
        self.early = EarlyStopping(
            self.history, searcher, patience=hparams.early_stopping, chief=self.rank == 0
        )

        # The loaders repeat, deal and skip by themselves, and rows move to the device one by one.
        context.experimental.disable_dataset_reproducibility_checks()
        context.experimental.disable_auto_to_device()

    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        callbacks: dict[str, pytorch.PyTorchCallback] = {
            CALLBACK: self.resume,
            "progress": self.progress,
            "trial": self,  # after the progress, which prints metrics that the trial removes
            "early_stopping": self.early,
            "history": self.history,
            "loss_watch": self.loss_watch,
            "finite": self.finite,
        }
        if self.profile is not None:
            callbacks["profile"] = self.profile
        return callbacks

    def prepare_gradients(self) -> int:
        """Create `gradients`, of the wrapped model; return the most real tokens of one forward."""
        raise NotImplementedError

    def add_gradients(self, batch: list[AnyRow]) -> None:
        """Accumulate the gradient of the step's loss, the mean over ranks, in every `.grad`."""
        raise NotImplementedError

    def numeric_settings(self) -> dict[str, object]:
        """Return settings that may change at a restart and then change the bits of results."""
        raise NotImplementedError

    def row_flops(self, row: AnyRow) -> float | None:
        """Return the FLOPs of one forward and backward of `row` (CPU); None if unknown."""
        raise NotImplementedError

    def _prepare_optimizer(self, epoch_windows: int) -> None:
        hparams = self.hparams
        groups = optim.parameter_groups(
            self.model, decay=hparams.weight_decay, optimizer=hparams.optimizer
        )
        optimizer = optim.build_optimizer(
            hparams.optimizer, groups, lr=hparams.learning_rate(), beta2=hparams.beta2
        )
        # Determined registers both, and returns them as they are.
        self.optimizer = self.context.wrap_optimizer(optimizer)
        length = hparams.length(epoch_windows)
        self.steps = length.steps
        self.warmup = length.warmup
        scheduler = optim.build_scheduler(
            self.optimizer, hparams, total=self.steps, warmup=self.warmup
        )
        schedule = self.context.wrap_lr_scheduler(
            scheduler,  # type: ignore[arg-type]  # torch's name for it before 2.0
            step_mode=pytorch.LRScheduler.StepMode.STEP_EVERY_OPTIMIZER_STEP,
        )
        self.schedule = cast(LambdaLR, schedule)

    def _prepare_reports(self, epoch_windows: int, logged_metrics: Sequence[str]) -> None:
        """Create what measures, prints and profiles; the meter is reset at each report."""
        self.history = History(self.context.get_initial_batch())
        meter = self.meter_kind(
            self.history,
            epoch=epoch_windows / self.hparams.global_batch_size,
            device=self.context.device,
            half=self.dtype is not torch.float32,
        )
        self.meter = self.context.wrap_reducer(meter, for_validation=False)
        self.progress = Progress(
            self.history, self.steps, chief=self.rank == 0, logged_metrics=logged_metrics
        )
        self.loss_watch = LossWatch(
            self.history,
            warmup=self.warmup,
            guess=self.guess_loss(),
            rate=self.hparams.base_learning_rate,
            chief=self.rank == 0,
        )
        self.profile: StepProfile | None = None  # of rank 0 alone
        profiled = self.hparams.profile_steps
        if profiled and UNRECORDED_STEPS + profiled > self.steps:
            raise UserError(
                f"{profiled} after the first {UNRECORDED_STEPS} steps are more than the run's "
                f"{self.steps}",
                key="hyperparameters.profile_steps",
                cure="lower it",
            )
        if profiled and self.rank == 0:
            self.profile = StepProfile(profiled, folder=self.context.get_tensorboard_path())

    def guess_loss(self) -> float:
        """Return the loss of a model that gives all choices the same probability."""
        return math.log(self.model.config.vocab_size)

    def starts_from_scratch(self) -> bool:
        """Return whether all of the model's first weights are random."""
        return self.hparams.model is None

    def run_uncompiled(self, row_multiple: int) -> None:
        """Run the layers uncompiled, on rows padded to multiples of `row_multiple` tokens."""
        raise NotImplementedError

    def validated(self) -> tuple[object, dict[str, float]]:
        """Return the last validation's answers (None after a step, or if there are none) and all
        its scores. Rank 0 only.
        """
        return None, self.reducer.metrics

    def on_validation_end(self, metrics: dict[str, float]) -> None:
        """Remove metrics that are not charted and add fractional `epochs`; raise Diverged if one is
        not finite. The WebUI draws a chart for each reported metric, so constants and duplicates
        are removed. Determined's own `epochs` would be whole ones.
        """
        step = self.history.step
        for name in self.charted_metrics & metrics.keys():
            value = metrics[name]
            if not math.isfinite(value):
                raise Diverged(f"{name} is {value}", key=f"validation at step {step}", cure=CURE)
        # All of them: a resumed run may search by another one.
        self.history.record(metrics)
        self.early.log_end()
        for name in metrics.keys() - self.charted_metrics:
            del metrics[name]
        metrics["epochs"] = self.meter.epochs(step)

    def on_checkpoint_write_end(self, checkpoint_dir: str) -> None:
        """Save the model's config, with its class, and the tokenizer, if the data has one."""
        if self.data.tokenizer is None:
            return
        # As `save_pretrained` would, but without the weights, which the checkpoint has.
        folder = Path(checkpoint_dir) / PRETRAINED
        self.model.config.architectures = [_transformers_class(self.model).__name__]
        self.model.config.save_pretrained(folder)
        self.data.tokenizer.save_pretrained(folder)

    def workers(self) -> int:
        """Return the number of loader processes of this rank."""
        if self.hparams.num_workers is not None:
            return self.hparams.num_workers
        # One core is left for the process that trains.
        cores = cpu_count() // self.context.distributed.local_size
        return min(4, max(0, cores - 1))

    def train_loader(self, rows: Callable[[int], Dataset], order: Order) -> RowLoader:
        """Return an endless loader of this rank's batches (lists of rows) from this start on.

        Args:
            rows: from the most tokens of a row to the data set that packs each share of `order`.
            order: the windows of every step and rank, see Steps.
        """
        return RowLoader(
            rows(self.max_tokens),
            sampler=Steps(order, self.data_rank, self.context.get_initial_batch()),
            num_workers=self.workers(),
            pin_memory=self.context.device.type == "cuda",
        )

    def get_batch_length(self, batch: list[AnyRow]) -> int:
        return sum(len(row["windows"]) for row in batch)

    def train_batch(  # type: ignore[override]  # no tensors
        self, batch: list[AnyRow], epoch_idx: int, batch_idx: int
    ) -> Mapping[str, float]:
        """Run one optimizer step over this rank's rows; `batch_idx` is its number, from 0."""
        step = batch_idx + 1
        seed_step(self.hparams.known_seed, batch_idx, self.data_rank)
        # One backward pass per row, all into the same gradients.
        self.gradients.zero()
        self.add_gradients(batch)

        # Counted on the host, while a GPU still runs the backward pass.
        self.history.step = step
        self.progress.on_step()
        if self.meter.on_a_gpu:
            self.meter.add_flops(map(self.row_flops, batch))

        # From gradients to weights. The trial loop steps the schedule of the rate, afterwards.
        self.scaler.unscale_(self.optimizer)
        norm = self.gradients.clip(self.hparams.max_grad_norm)
        self.finite.update(norm, step)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.meter.norms.append(norm)
        if self.profile is not None:
            self.profile.on_step()
        # The loss stays on the device until a report: a returned tensor would block at every step.
        # In millionths, as the WebUI's axes have two decimals.
        return {"learning_rate_1e6": 1e6 * self.optimizer.param_groups[0]["lr"]}

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of a loss, scaled against fp16's underflow if products are fp16."""
        self.context.backward(self.scaler.scale(loss))


def _transformers_class(model: nn.Module) -> type:
    """Return transformers' class of a model whose own class was made here or by FSDP of it."""
    for parent in type(model).__mro__:
        if parent.__module__.startswith("transformers."):
            return parent
    raise TypeError(f"{type(model).__name__} is not a model of transformers")

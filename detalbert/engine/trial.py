"""`StepTrial`: the base class of the package's trials, one optimizer step over packed rows.

Subclasses accumulate the gradients: encoders run row by row and all-reduce once (packed_trial.py),
language models are sharded (lm/).
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from determined import pytorch
from torch import Tensor, nn
from torch.utils.data import Dataset

from detalbert.determined_internals import set_experiment_config, wrap_model
from detalbert.engine import determinism, optim
from detalbert.engine.early_stopping import EarlyStopping
from detalbert.engine.finite import CURE, FiniteSteps, has_finite_weights
from detalbert.engine.handover import Handover
from detalbert.engine.loaders import RowLoader, default_workers
from detalbert.engine.meter import TrainingMeter
from detalbert.engine.optim import plan_steps
from detalbert.engine.order import Steps
from detalbert.engine.precision import resolve_precision
from detalbert.engine.profiling import WARM_UP, StepProfile
from detalbert.engine.progress import Progress
from detalbert.engine.rows import AnyRow
from detalbert.errors import Diverged, UserError
from detalbert.hub import PRETRAINED
from detalbert.redact import masked
from detalbert.settings.hparams import StepHParams

AnyHParams = TypeVar("AnyHParams", bound=StepHParams)
Given = tuple[Any, Any]  # a trial's (hyperparameters, data)


def read_experiment(
    context: pytorch.PyTorchTrialContext,
    parse: Callable[[dict[str, Any]], Any],
    load: Callable[[dict[str, Any], Any], Any],
) -> Given:
    """Return hyperparameters and data by the experiment config, as Determined creates trials."""
    hparams = parse(context.get_hparams())
    if hparams.seed is None:
        hparams = dataclasses.replace(hparams, seed=context.get_trial_seed())
    return hparams, load(context.get_data_config(), hparams)


class StepTrial(pytorch.PyTorchTrial, pytorch.PyTorchCallback, Generic[AnyHParams, AnyRow]):
    """Base class of trials: one `train_batch` is one optimizer step over packed rows. A trial is
    also a callback: it filters the metrics of a validation, and adds files to each checkpoint.

    Args:
        model: float32.
        examples: training windows per epoch.
        shown: names of the validation metrics that the progress prints.
        charted: names of those that are reported besides the searcher's: one WebUI chart each.
    """

    meter_kind = TrainingMeter
    data: Any  # as the workload's `load` gives it
    gradients: Any  # of all parameters: a FlatGradients, or its like for a sharded model
    scores: Any  # reducer of a validation: its `metrics` and, if it gives answers, the `latest`

    def __init__(
        self,
        context: pytorch.PyTorchTrialContext,
        hparams: AnyHParams,
        model: nn.Module,
        examples: int,
        shown: Sequence[str],
        charted: Iterable[str],
    ) -> None:
        self.context, self.hparams = context, hparams
        set_experiment_config(context, masked(context.get_experiment_config()))
        self.handover = Handover(context, hparams, self)
        self.dtype = resolve_precision(hparams.precision, context.device)
        self.rank, self.slots = context.distributed.rank, context.distributed.size
        # Determined wants the scaler wrapped before the model.
        scaler = torch.amp.GradScaler(context.device.type, enabled=self.dtype is torch.float16)
        self.scaler = context.wrap_scaler(scaler)
        self.model: Any = wrap_model(context, model)
        self.max_tokens = self.prepare_gradients()
        self._prepare_optimizer(examples)
        epoch = examples / hparams.global_batch_size  # steps
        meter = self.meter_kind(epoch, context.device, self.dtype is not torch.float32)
        self.meter = context.wrap_reducer(meter, for_validation=False)
        self.finite = FiniteSteps(context.device)
        first = context.get_initial_batch()
        self.progress = Progress(self.steps, first, self.rank == 0, shown)
        searcher = context.get_experiment_config()["searcher"]
        self.charted, self.meter.step = {*charted, searcher["metric"]}, first
        self.early = EarlyStopping(searcher, hparams.early_stopping, self.rank == 0)
        self.profile = self._prepare_profile()
        # The loaders repeat, deal and skip by themselves, and rows move to the device one by one.
        context.experimental.disable_dataset_reproducibility_checks()
        context.experimental.disable_auto_to_device()

    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        return {
            "handover": self.handover,
            "progress": self.progress,
            "trial": self,  # after the progress, which shows more
            "early_stopping": self.early,
            "profile": self.profile,
        }

    def prepare_gradients(self) -> int:
        """Create `gradients`, of the wrapped model; return the most real tokens of one forward."""
        raise NotImplementedError

    def add_gradients(self, batch: list[AnyRow]) -> None:
        """Accumulate the gradient of the step's loss, the mean over ranks, in every `.grad`."""
        raise NotImplementedError

    def rounding(self) -> dict[str, Any]:
        """Return settings that may change at a restart and then change the rounding of results."""
        raise NotImplementedError

    def row_flops(self, row: AnyRow) -> float | None:
        """Return the FLOPs of one forward and backward of `row` (CPU); None if unknown."""
        raise NotImplementedError

    @property
    def data_rank(self) -> int:
        """Rank whose random numbers this process draws; processes with the same rows share it."""
        return self.rank

    def _prepare_optimizer(self, examples: int) -> None:
        hparams, rate = self.hparams, self.hparams.learning_rate()
        decay, muon = hparams.weight_decay, hparams.optimizer == "muon"
        groups = optim.parameter_groups(self.model, decay, muon)
        self.optimizer: Any = self.context.wrap_optimizer(
            optim.build_optimizer(hparams.optimizer, groups, rate, hparams.beta2)
        )
        self.steps, self.warmup = plan_steps(hparams, examples)
        self.schedule: Any = self.context.wrap_lr_scheduler(
            self._scheduler(),
            step_mode=pytorch.LRScheduler.StepMode.STEP_EVERY_OPTIMIZER_STEP,
        )

    def _scheduler(self) -> Any:
        return optim.build_scheduler(self.optimizer, self.hparams, self.steps, self.warmup)

    def keep_warmup(self, steps: int) -> None:
        """Set the warm-up of wsd to that with which the run began, when it had another length."""
        if self.hparams.schedule == "wsd":
            self.warmup = steps
            self.schedule.lr_lambdas = self._scheduler().lr_lambdas

    def validated(self) -> tuple[Any, dict[str, float]]:
        """Return the last validation's answers (None after a step, or if there are none) and all
        its scores. Rank 0 only.
        """
        return getattr(self.scores, "latest", None), self.scores.metrics

    def on_validation_end(self, metrics: dict[str, Any]) -> None:
        """Remove metrics that are not charted and add fractional `epochs`; raise Diverged if one is
        not finite. The WebUI draws a chart for each reported metric, so constants and duplicates
        are removed. Determined's own `epochs` would be whole ones.
        """
        step = self.meter.step
        for name in self.charted & metrics.keys():
            if not math.isfinite(metrics[name]):
                raise Diverged(f"validation at step {step}: {name} is {metrics[name]}; {CURE}")
        self.early.record(metrics)  # all of them: a resumed run may search by another one
        for name in metrics.keys() - self.charted:
            del metrics[name]
        metrics["epochs"] = self.meter.epochs(step)

    def on_checkpoint_write_end(self, checkpoint_dir: str) -> None:
        """Save the model's config, with its class, and the tokenizer, if the data has one."""
        if self.data.tokenizer is None:
            return
        # Of a class of transformers, or one made of it here or by FSDP.
        kinds = type(self.model).__mro__
        known = next(kind for kind in kinds if kind.__module__.startswith("transformers."))
        self.model.config.architectures = [known.__name__]
        for part in (self.model.config, self.data.tokenizer):
            part.save_pretrained(Path(checkpoint_dir) / PRETRAINED)

    def workers(self) -> int:
        """Return the number of loader processes of this rank."""
        if self.hparams.num_workers is None:
            return default_workers(self.context.distributed.local_size)
        return self.hparams.num_workers

    def train_loader(self, rows: Callable[[int], Dataset], order: Any) -> RowLoader:
        """Return an endless loader of this rank's batches (lists of rows) from this start on.

        `rows(max_tokens)` is the data set that has the batch of each share of `order` (see Steps).
        """
        steps = Steps(order, self.data_rank, self.context.get_initial_batch())
        pinned = self.context.device.type == "cuda"
        return RowLoader(rows(self.max_tokens), steps, self.workers(), pinned)

    def get_batch_length(self, batch: list[AnyRow]) -> int:
        return sum(len(row["windows"]) for row in batch)

    def train_batch(self, batch: list[AnyRow], epoch_idx: int, batch_idx: int) -> dict[str, Any]:  # type: ignore[override]  # no tensors
        """Run one optimizer step over this rank's rows; `batch_idx` is its number, from 0."""
        with self.profile.step():
            determinism.seed_step(self.hparams.known_seed, batch_idx, self.data_rank)
            self.gradients.zero()
            self.add_gradients(batch)
            self.meter.step = self.progress.wait.done = step = batch_idx + 1
            if self.meter.on_a_gpu:
                self.meter.add_flops(map(self.row_flops, batch))
            self.scaler.unscale_(self.optimizer)
            norm = self.gradients.clip(self.hparams.max_grad_norm)
            self.meter.norms.append(norm)
            self.optimizer.keep = keep = self.finite.update(norm, step)
            if keep is not None:  # a step whose gradient is not finite changes nothing
                self.gradients.zero_unless(keep)
            self.context.step_optimizer(self.optimizer, auto_zero_grads=False, scaler=self.scaler)
            self.scaler.update()
        # The loss stays on the device until a report: a returned tensor would block at every step.
        # In millionths, as the WebUI's axes have two decimals.
        return {"learning_rate_1e6": 1e6 * self.optimizer.param_groups[0]["lr"]}

    def check_weights(self, step: int) -> None:
        """Raise Diverged on all ranks if a weight is not finite on any. Collective."""
        if not all(self.context.distributed.allgather(has_finite_weights(self.model))):
            raise Diverged(f"step {step}: a weight is not finite; {CURE}")

    def backward(self, loss: Tensor) -> None:
        self.context.backward(self.scaler.scale(loss))

    def _prepare_profile(self) -> StepProfile:
        wanted = self.hparams.profile_steps
        if wanted and WARM_UP + wanted > self.steps:
            said = f"{wanted} steps after {WARM_UP} of warm-up are more than the run's {self.steps}"
            raise UserError(f"hyperparameters.profile_steps: {said}; lower it")
        left = self.steps - self.context.get_initial_batch()
        folder = self.context.get_tensorboard_path()
        return StepProfile(wanted * (self.rank == 0), left, folder, self.context.device)

"""Trial loop of this package: Determined's, with a schedule, and without code from a checkpoint.

Local runs and trials on a cluster, their restarts, forks and warm starts all load through
`Controller.load`.
"""

import time
from pathlib import Path

from determined import pytorch

from detalbert.determined_internals import TrialLoop
from detalbert.engine import safe_load
from detalbert.engine.trial import StepTrial
from detalbert.errors import UserError, first_line
from detalbert.training import local, spot
from detalbert.training.schedule import Schedule
from detalbert.training.workload import Training


class Controller(TrialLoop):
    """The trial loop as `Trainer.fit` creates it, on a cluster or locally; `run()` trains from
    `checkpoint`, or from the start.
    """

    def __init__(
        self,
        training: Training,
        trial: StepTrial,
        context: pytorch.PyTorchTrialContext,
        schedule: Schedule,
        checkpoint: str | None,
        on_cluster: bool,
    ) -> None:
        config = training.config
        super().__init__(
            schedule,
            trial_inst=trial,
            context=context,
            max_length=pytorch.Batch(trial.steps),
            smaller_is_better=bool(config["searcher"]["smaller_is_better"]),
            searcher_metric_name=config["searcher"]["metric"],
            steps_completed=schedule.done,
            latest_checkpoint=checkpoint,
            local_training=not on_cluster,
            profiling_enabled=on_cluster and bool((config.get("profiling") or {}).get("enabled")),
            global_batch_size=training.hparams.global_batch_size,
            checkpoint_policy=config.get("checkpoint_policy") or "best",
            step_zero_validation=bool(config.get("perform_initial_validation")),
        )
        self.stalls: list[float] = []  # seconds that training waited for each checkpoint

    def run(self) -> None:
        """Train; one rank of each machine watches for EC2's notices if the config says so."""
        watch = self.trial.hparams.spot_notice and self.context.distributed.local_rank == 0
        with spot.watching(watch, self.schedule.stopping.request, self.schedule.request_checkpoint):
            super().run()

    def save(self, exiting: bool) -> None:
        began = time.monotonic()
        assert self.state is not None
        self.trial.check_weights(self.state.batches_trained)
        self.store(exiting)
        self.stalls.append(time.monotonic() - began)

    def store(self, exiting: bool) -> None:
        """Write a checkpoint of finite weights."""
        super().save(exiting)

    def load(self, folder: Path) -> None:
        safe_load.check_pickles(folder)
        try:
            super().load(folder)
        except (RuntimeError, LookupError, ValueError, TypeError, AttributeError) as error:
            raise UserError(f"{folder}: does not fit this model: {first_line(error)}") from None

    def copy_code(self, path: Path, on_cluster: bool) -> None:
        """Save this package's modules. Determined would copy the whole working directory,
        recursively without end if the checkpoint is inside it.
        """
        if on_cluster:
            super().copy_code(path, on_cluster)
        else:
            local.copy_modules(path)

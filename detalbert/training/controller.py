"""Determined's trial loop, created here so that it rejects code in a checkpoint.

`determined.pytorch.Trainer.fit` creates a `_PyTorchTrialController` (private; tested against
0.38.1) that unpickles what it restores. Local runs and trials on a cluster, their restarts, forks
and warm starts all load through `Controller._load`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from determined import pytorch

from detalbert.engine import safe_load
from detalbert.errors import UserError, first_line


class Controller(pytorch._PyTorchTrialController):
    """The trial loop as `Trainer.fit` creates it, on a cluster or locally."""

    trial: Any  # a StepTrial

    def __init__(
        self,
        trial: Any,
        context: pytorch.PyTorchTrialContext,
        searcher: Mapping[str, Any],
        steps_completed: int,
        checkpoint: str | None,
        local_training: bool,
        profiling_enabled: bool = False,
        **loop: Any,
    ) -> None:
        """Create the loop; `run()` trains.

        Args:
            searcher: has `metric` and `smaller_is_better`, as `searcher:` of a config on a cluster.
            steps_completed: steps before this start.
            checkpoint: checkpoint to resume from, if any.
            loop: the other arguments of `Trainer.fit`.
        """
        super().__init__(
            trial_inst=trial,
            context=context,
            max_length=pytorch.Batch(trial.steps),
            smaller_is_better=bool(searcher["smaller_is_better"]),
            searcher_metric_name=searcher["metric"],
            steps_completed=steps_completed,
            latest_checkpoint=checkpoint,
            local_training=local_training,
            profiling_enabled=profiling_enabled,
            test_mode=False,
            global_batch_size=trial.hparams.global_batch_size,
            **loop,
        )

    def _checkpoint(self, already_exiting: bool) -> None:
        assert self.state is not None
        self.trial.check_weights(self.state.batches_trained)
        super()._checkpoint(already_exiting)

    def _load(self, load_path: Path) -> None:
        safe_load.check_pickles(load_path)
        try:
            super()._load(load_path)
        except (RuntimeError, LookupError, ValueError, TypeError, AttributeError) as error:
            raise UserError(f"{load_path}: does not fit this model: {first_line(error)}") from None

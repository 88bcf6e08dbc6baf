"""Sections of a config: parsers without torch, for the checker, the planner and a task's hook."""

from pydantic import Field

from detalbert.settings.hparams import StepHParams
from detalbert.settings.metric import Metric
from detalbert.settings.sections import Parsers, Section, Whole, strict_dataclass


@strict_dataclass
class ParityConfig(Section):
    """Keys of `data:`."""

    parity: Whole = Field(512, gt=0)  # training windows


METRICS = (Metric("loss", charted=True, logged=True, smaller_is_better=True),)

# StepHParams are what every workload has: model, batch, schedule, optimizer, periods.
PARSERS = Parsers(ParityConfig, StepHParams, METRICS)

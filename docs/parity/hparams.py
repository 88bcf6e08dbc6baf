"""Sections of a config: parsers without torch, for the checker, the planner and a task's hook."""

from dataclasses import dataclass
from functools import partial

from detalbert.settings.hparams import StepHParams
from detalbert.settings.sections import Parsers, Section, parse_section, setting


@dataclass(frozen=True)
class ParityConfig(Section):
    """Keys of `data:`."""

    parity: int = setting(512, gt=0)  # training windows


PARSERS = Parsers(
    data=partial(parse_section, ParityConfig, "data"),
    # What every workload has: model, batch, schedule, optimizer, periods.
    hyperparameters=partial(parse_section, StepHParams, "hyperparameters"),
)

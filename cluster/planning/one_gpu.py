"""Whether an experiment fits one GPU, and how many tokens a forward pass may have on it.

It is for a card of one's own: no price, no pool, and of the card its memory alone. That is too
little to say how long a run takes; a step of the run itself says it within a minute.
"""

from collections.abc import Iterator
from typing import NamedTuple

from cluster.estimates.job import Job
from detalbert.engine.memory import OVERHEAD, Memory
from detalbert.errors import UserError
from detalbert.training.sizing import Slots

GIB = 2**30


class Fit(NamedTuple):
    """An experiment on one GPU."""

    parameters: int
    window: int  # tokens of a full one
    asked: int  # tokens of the config's forward pass; one window for `auto`
    memory: Memory  # of a card with bf16 and a flash kernel: Ampere and later
    older: Memory  # of a card before

    def largest(self, memory: Memory, gigabytes: float) -> int:
        """Return the tokens of the largest forward pass; 0 if not one window fits."""
        tokens = memory.tokens(gigabytes)
        return tokens if tokens >= self.window else 0

    def fits(self, gigabytes: float) -> bool:
        """Return whether the config as it is fits a card of Ampere or later."""
        return self.memory.tokens(gigabytes) >= self.asked


def fit_one_gpu(job: Job) -> Fit:
    """Return what an experiment needs of one GPU. Raises UserError if its model is not known."""
    hparams = job.hparams
    if job.model is None:
        raise UserError(
            f"the sizes of {hparams.model!r} are not known without a download",
            key="hyperparameters.model",
            cure="give a folder with its config.json, or model_config",
        )
    budget = hparams.max_tokens_per_forward
    demand = job.workload.sizing.demand
    modern = Slots(number=1, per_machine=1, has_bf16=True)
    return Fit(
        parameters=job.model.sizes.parameters,
        window=hparams.max_seq_length,
        asked=hparams.max_seq_length if budget == "auto" else budget,
        memory=demand(job.model, hparams, modern).memory,
        older=demand(job.model, hparams, modern._replace(has_bf16=False)).memory,
    )


def describe_fit(fit: Fit, gigabytes: float) -> Iterator[str]:
    """Yield the lines of the terminal."""
    states = fit.memory.states / GIB
    yield f"model            {fit.parameters / 1e6:,.1f} M parameters"
    yield f"its states       {states:.1f} GiB: weights, gradients, two moments"
    yield f"CUDA             {OVERHEAD / GIB:.1f} GiB: context, libraries, fragmentation"
    total = fit.memory.at(fit.asked) / GIB
    peak = total - states - OVERHEAD / GIB
    yield f"a step           {peak:.1f} GiB at its peak: {fit.asked:,} tokens in a forward"
    verdict = "fits" if fit.fits(gigabytes) else "does not fit"
    yield f"in all           {total:.1f} GiB (modelled): {verdict} {gigabytes:g} GB"
    for name, memory in (("", fit.memory), (", before Ampere", fit.older)):
        tokens = fit.largest(memory, gigabytes)
        windows = tokens // fit.window
        text = "not one window fits"
        if tokens:
            text = f"{tokens:,} tokens, {windows:,} windows of {fit.window}"
        yield f"largest forward  {text}{name}"
    if not fit.fits(gigabytes):
        yield _cure(fit, gigabytes)


def _cure(fit: Fit, gigabytes: float) -> str:
    """Return what to change so that the experiment fits."""
    tokens = fit.largest(fit.memory, gigabytes)
    if tokens:
        whole_windows = tokens // fit.window * fit.window
        return f"set              hyperparameters.max_tokens_per_forward={whole_windows}"
    return "take             a smaller model or shorter windows (docs/one-gpu.md)"

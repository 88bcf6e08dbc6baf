"""Steps of a trial at several token budgets: speed, peak memory and a profile of each budget.

python -m benchmarks step --budgets 4096 8192 --windows 192 --json FILE

One process, one compilation: code is compiled for rows of any length, so the trial changes its
budget. The result is yielded again after each measurement, so that a stopped sweep keeps what it
had.
"""

import contextlib
import gc
import tempfile
from argparse import Namespace
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from benchmarks import measure
from benchmarks.measure import Config, Result
from benchmarks.step import (
    count_flops,
    measure_both,
    open_trial,
    report_step,
    step_tokens,
    train_steps,
    write_inputs,
)
from benchmarks.step_profile import profile_step
from detalbert.engine.trial import StepTrial
from detalbert.errors import UserError
from detalbert.training.sizing import Model, Slots
from workloads import choose


def sweep(options: Namespace) -> Iterator[Result]:
    """Measure both sides at the first budget, as `step` does, then this package at all of them."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        config, settings = write_inputs(options, folder, gpu=torch.cuda.is_available())
        settings |= {"windows": options.windows, "steps_per_turn": 1}
        steps = options.repeats + 1
        config["hyperparameters"] |= {
            "global_batch_size": options.windows,
            # Small: of a language model the losses of both sides are compared in every step.
            "base_batch_size": options.windows,
            "base_learning_rate": 1e-4,
            "max_tokens_per_forward": options.budgets[0],
            "max_steps": steps * (2 * len(options.budgets) + 1),
        }
        trial = stack.enter_context(open_compiled(config, settings, folder))
        measured = measure_both(trial, settings, steps=steps)
        result = report_step("step", settings, measured)
        result["budgets"] = []
        yield result

        for tokens in options.budgets:
            batches = take_batches(trial, tokens, steps)
            figures = {"max_tokens_per_forward": tokens}
            figures |= measure_budget(trial, batches, peak_flops=settings["peak_flops"]["value"])
            figures["planned_bytes"] = planned_bytes(trial, config, tokens)
            result["budgets"].append(figures)
            yield result
            # Before the next budget: a step that ran out of memory leaves FSDP unusable.
            if "out_of_memory" not in figures:
                figures["profile"] = profile_step(train_steps(trial, batches))
                yield result


@contextlib.contextmanager
def open_compiled(config: Config, settings: Result, folder: Path) -> Iterator[StepTrial[Any, Any]]:
    """Yield the trial; if its layers do not compile though the config demands it, uncompiled."""
    with contextlib.ExitStack() as stack:
        hyperparameters = config["hyperparameters"]
        try:
            trial = stack.enter_context(open_trial(config, settings["workload"], folder))
        except UserError as error:
            if not hyperparameters.get("compile"):
                raise
            settings["not_compiled"] = str(error)
            hyperparameters["compile"] = False
            trial = stack.enter_context(open_trial(config, settings["workload"], folder))
        settings["compiled"] = bool(trial.numeric_settings()["compile"])
        yield trial


def take_batches(trial: StepTrial[Any, Any], tokens: int, steps: int) -> list[Any]:
    """Set the budget; return the batches of the first steps, the same windows at each budget."""
    trial.keep_max_tokens(tokens)
    return list(islice(trial.build_training_data_loader(), steps))


def measure_budget(trial: StepTrial[Any, Any], batches: list[Any], peak_flops: float) -> Result:
    """Return rates, MFU and peak memory of a step per batch, the first left out; on a GPU that has
    too little memory, that.
    """
    pending = train_steps(trial, batches)
    free_memory()
    try:
        turns = measure.interleave({"step": lambda: next(pending)}, repeats=len(batches))["step"]
    except torch.cuda.OutOfMemoryError:
        return {"out_of_memory": True}

    def rates(amounts: Iterable[float]) -> Result:
        """Return median and spread of a figure per second; the first turn is left out."""
        pairs = zip(amounts, turns, strict=True)
        return measure.spread_of([amount / seconds for amount, seconds in pairs][1:])

    result: Result = {
        "first_step_seconds": turns[0],
        "windows_per_second": rates(trial.get_batch_length(batch) for batch in batches),
        "tokens_per_second": rates(step_tokens([batch]) for batch in batches),
        "mfu": rates(count_flops(trial, batch) / peak_flops for batch in batches),
        "forwards_per_step": len(batches[-1]),
    }
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        result["peak_bytes"] = torch.cuda.max_memory_allocated()
        result["used_bytes"] = total - free  # of the device: what torch holds, CUDA's context
    return result


def free_memory() -> None:
    """Return what earlier measurements left to the GPU, and count its peak anew."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def planned_bytes(trial: StepTrial[Any, Any], config: Config, tokens: int) -> float | None:
    """Return the planner's estimate for one GPU; None for a model whose memory it does not know."""
    sizing = choose(config).sizing
    sizes = sizing.count_sizes(trial.model.config)
    if sizes is None:
        return None
    # The estimate that cluster.plan and cluster.check print.
    demand = sizing.demand(
        Model(config=trial.model.config, sizes=sizes),
        trial.hparams,
        Slots(number=1, per_machine=1, has_bf16=trial.dtype is torch.bfloat16),
    )
    return demand.memory.at(tokens)

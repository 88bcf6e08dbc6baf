"""Fine-tune an encoder on SQuAD, or pretrain a model: the one entry point, here and on a cluster.

python train.py                                          # configs/local.yaml, two cores, minutes
python train.py --config configs/single.yaml --output-dir runs/single
torchrun --nproc_per_node 8 train.py --config configs/distributed8.yaml
python train.py --config configs/pretrain_local.yaml     # its data has `text`: it pretrains
python train.py --config configs/lm_local.yaml           # `documents`: a language model
det experiment create configs/distributed64.yaml .       # the config's entrypoint runs this file
"""

import os

# Read when torch's OpenMP (libgomp) loads. Threads that spin long while they wait ruin a run that
# shares its cores: beside two busy processes on two cores, 5 windows/s instead of 50. Sleeping at
# once costs a third of the speed on idle cores; this many turns costs nothing there.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

from detalbert.log import fail, start_logging
from detalbert.processes import STOP_SIGNALS, end_on_signals, end_with_parent

if __name__ == "__main__":
    end_on_signals(" before the first step; run the same command to start or resume")
# torchrun waits for its ranks; killed, it would leave them behind, training.
if "TORCHELASTIC_RUN_ID" in os.environ:
    end_with_parent(os.getppid())

import argparse
import contextlib
import logging
import shlex
import signal
import sys
from pathlib import Path
from typing import cast

log = logging.getLogger("detalbert.train")
HERE = Path(__file__).resolve().parent


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("train.py", description=__doc__, formatter_class=style)
    add = parser.add_argument
    config = "experiment config (default: configs/local.yaml)"
    add("--config", type=Path, default=HERE / "configs" / "local.yaml", help=config)
    output = "folder of a local run, or s3://, gs://, az:// of its copy (default: runs/local)"
    add("--output-dir", default="runs/local", metavar="DIR", help=output)
    key = "config key to set, e.g. hyperparameters.epochs=3 (repeatable)"
    add("--set", action="append", default=[], metavar="KEY.PATH=VALUE", help=key)
    draw = "draw number N of a random search: a value for each search range of the config"
    add("--draw", type=int, metavar="N", help=draw)
    resume = "auto (default): resume from the newest checkpoint of the output directory, if any"
    add("--resume", default="auto", metavar="auto|never|CHECKPOINT", help=resume)
    return parser.parse_args(argv)


if __name__ == "__main__":
    parse_arguments(None)  # --help and mistakes need none of the imports below
    start_logging()
    if os.environ.get("RANK", "0") == "0":
        log.info("loading data and model")  # the imports alone take seconds

import determined
import torch
from determined import core, pytorch

from detalbert import hub
from detalbert.determined_internals import experiment_config
from detalbert.engine import determinism
from detalbert.errors import UserError, as_raised
from detalbert.settings import experiment
from detalbert.training import display, folder, master, preflight
from detalbert.training.checkpoints import check_same_run
from detalbert.training.controller import loop_of
from detalbert.training.length import choose_checkpoint
from detalbert.training.local import lost_rank, process_group, together, trial_context
from detalbert.training.manifest import read_manifest
from detalbert.training.metrics import RunMetrics
from detalbert.training.output import Output
from detalbert.training.schedule import LocalStops, MasterStops, restored_signals, say_scheduler
from detalbert.training.start import (
    leave_broken_metrics,
    leave_other_checkpoints,
    select_checkpoint,
)
from detalbert.training.timeline import list_checkpoints
from detalbert.training.workload import Training
from workloads import choose


def leave(status: int) -> None:
    """Exit with `status` even if communication threads are stuck.

    After a lost rank, threads of gloo and NCCL may wait for it, or free a tensor while the
    interpreter exits: the process would hang, or die of SIGABRT instead of returning `status`.
    """
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    if status and torch.distributed.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def main(argv: list[str] | None = None) -> int:
    """Run; return the exit status (docs/layout.md has the table of all commands)."""
    args = parse_arguments(argv)
    start_logging()
    display.quiet_libraries()
    determinism.choose_exact_kernels()
    with restored_signals():
        try:
            info = determined.get_cluster_info()
            if info is not None and info.task_type == "TRIAL":
                run_on_cluster(info)
                return 0
            return run_locally(args)
        except Exception as error:
            if (fault := as_raised(error) or lost_rank(error)) is None:
                raise
            if fault.on_all_ranks and os.environ.get("RANK", "0") != "0":
                return fault.status
            return fail("train.py", fault)


def run_locally(args: argparse.Namespace) -> int:
    """Train on this machine, as a single process or as one of torchrun's ranks; return the exit
    status: of a stopped run 128 + the signal's number on rank 0, whose end torchrun awaits.
    """
    config = experiment.load(args.config, args.set)
    experiment.check_sections(config)
    workload = choose(config, read=True)
    ranges, seed = config["hyperparameters"], experiment.trial_seed(config)
    values = experiment.single_values(ranges, seed, args.draw)
    if args.draw is not None and values == ranges:
        raise UserError(f"--draw {args.draw}: no hyperparameter has a search range; leave it out")
    hparams = workload.read(config, values)
    output = Output(args.output_dir)
    with contextlib.ExitStack() as stack:
        distributed = stack.enter_context(process_group())
        chief, leads = distributed.rank == 0, distributed.local_rank == 0
        if chief:
            say_scheduler()
        claim, resume = folder.claim_folder(output.folder), args.resume
        together(distributed, lambda: stack.enter_context(claim), chief)
        together(distributed, output.fetch, leads)
        found = together(distributed, lambda: select_checkpoint(resume, output), chief)
        if checkpoint := distributed.broadcast(found):
            hub.commits.update(read_manifest(checkpoint).get("commits", {}))
        parts = workload, config, hparams, seed
        training: Training = together(distributed, lambda: Training.load(*parts))
        chosen = together(distributed, lambda: begin(output, training, checkpoint, resume), chief)
        if checkpoint := distributed.broadcast(chosen):
            together(distributed, lambda: output.fill(checkpoint), leads)
        return train_locally(training, distributed, output, checkpoint)


def begin(output: Output, training: Training, checkpoint: Path | None, resume: str) -> Path | None:
    """Prepare the output folder for a start; return the checkpoint to resume from. Rank 0 only."""
    if checkpoint:
        check_same_run(checkpoint, training.identity(), training.defaults(), training.config)
        checkpoint = choose_checkpoint(checkpoint, training, output)
        leave_other_checkpoints(checkpoint, training.identity(), output)
    if resume == "never":
        if output.kept:
            raise UserError(f"--resume never: {output.address} has a run; give another one")
        folder.set_aside(output.folder)
    leave_broken_metrics(output)
    folder.write_config(output.folder, training.config)
    output.sync()  # a bucket that refuses does so now
    return checkpoint


def train_locally(
    training: Training,
    distributed: core.DistributedContext,
    output: Output,
    checkpoint: Path | None,
) -> int:
    """Run the trial loop from `checkpoint` (or from the start) to the end or to a stop; return the
    exit status.
    """
    chief, config = distributed.rank == 0, training.config
    metrics = RunMetrics(output.folder, config["searcher"])
    metrics.stored = output.sync
    metrics.fetch = output.fill
    metrics.remote = output.kept
    done = read_manifest(checkpoint)["steps"] if checkpoint else 0
    if checkpoint and chief:
        metrics.restore(checkpoint)
    stops = LocalStops(distributed)
    facts = config, done, training.identity()
    resumed = str(checkpoint) if checkpoint else None
    with trial_context(distributed, metrics, stops, *facts) as context:
        metrics.loop = loop = loop_of(training)(training, context, stops, resumed, False)
        parameters = sum(p.numel() for p in loop.trial.model.parameters())
        if chief and done < loop.trial.steps:
            preflight.check_checkpoints(output.folder, parameters)

        def begin_training() -> None:
            stops.take_signals()  # till then a signal ends the run: nothing is lost
            if chief and done < loop.trial.steps and not loop.trial.early.reached:
                metrics.begin()

        loop.begin = begin_training
        loop.run()
        assert loop.state is not None
        done = loop.state.batches_trained
    if not chief:
        return 0
    metrics.finish()
    output.sync()
    conclude(training, metrics, output, done)
    complete = done == training.hparams.max_steps or loop.trial.early.reached
    return stops.status if stops.reason and not complete else 0


def conclude(training: Training, metrics: RunMetrics, output: Output, done: int) -> None:
    """Log how the run ended after `done` steps, and its best scores. Rank 0 only."""
    if done < cast(int, training.hparams.max_steps) and not metrics.loop.trial.early.reached:
        log.info("stopped after step %d; run the same command again to go on", done)
        return
    if best := metrics.best():
        checkpoints = dict(list_checkpoints(output.folder / "checkpoints"))
        for step in metrics.best_steps(1, among=checkpoints):
            if output.address:  # a start on another machine may have written it
                output.fill(checkpoints[step])
        metrics.loop.trial.progress.say_best(best)
    predictions = "predictions, " * (metrics.path / "predictions.json").is_file()
    log.info("%smetrics and checkpoints are in %s", predictions, metrics.path)
    run = shlex.quote(str(metrics.path))
    log.info("charts: tensorboard --logdir %s", run)
    if training.workload.use:
        log.info("next: %s", training.workload.use.format(run))


def run_on_cluster(info: determined.ClusterInfo) -> None:
    """Train as a Determined trial, with config, hyperparameters and checkpoint from the master."""
    end_on_signals("; the trial resumes from its last checkpoint")
    if os.environ.get("RANK", "0") == "0":
        master.set_status("loading")
    config = experiment_config(info)
    workload = choose(config, read=True)
    hparams = workload.read(config, info.trial.hparams)
    if info.latest_checkpoint:
        hub.commits.update(master.kept_commits())
    if os.environ.get("LOCAL_RANK", "0") == "0":
        workload.check(config, hparams, info.gpu_uuids)
    training = Training.load(workload, config, hparams, info.trial.trial_seed)
    with pytorch.init(hparams=training.config["hyperparameters"]) as context:
        preflight.check_collectives(context.device)
        stops = MasterStops(context, searched=config["searcher"]["name"] != "single")
        loop = loop_of(training)(training, context, stops, info.latest_checkpoint, True)
        trial, chief = loop.trial, context.distributed.rank == 0
        if chief:
            master.keep_resolved(display.resolved(training, trial))
        loop.run()
        done = trial.progress.done == trial.steps or trial.early.reached
        if chief:
            master.set_status("done" if done else "stopped")
        if chief and not done:
            log.info("stopped after step %d of %d", trial.progress.done, trial.steps)
    # Outside the block, whose end waits for the thread that reports validations to the master.
    if chief and (best := master.best_validation()):
        trial.progress.say_best(best)


if __name__ == "__main__":
    leave(main())

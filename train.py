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

from detalbert.command import Parser, existing_file, explain_missing, refuse_first

if __name__ == "__main__":
    explain_missing("train.py")

from detalbert.errors import as_raised
from detalbert.log import fail, start_logging
from detalbert.processes import STOP_SIGNALS, end_on_signals, end_with_parent
from detalbert.settings import experiment
from detalbert.settings.values import Config
from workloads import check_sources, choose, parsers

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

log = logging.getLogger("detalbert.train")
HERE = Path(__file__).resolve().parent


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = Parser("train.py", description=__doc__)
    parser.add_argument(
        "--config",
        type=existing_file,
        default=HERE / "configs" / "local.yaml",
        help="experiment config (default: configs/local.yaml)",
    )
    parser.add_argument(
        "--output-dir",
        default="runs/local",
        metavar="DIR",
        help="folder of a local run (default: runs/local)",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY.PATH=VALUE",
        help="config key to set, e.g. hyperparameters.epochs=3 (repeatable)",
    )
    parser.add_argument(
        "--resume",
        default="auto",
        metavar="auto|never|CHECKPOINT",
        help="auto (default): resume from the newest checkpoint of the output directory, if any",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="log data, model, batch and output, and start nothing",
    )
    return parser.parse_args(argv)


def read_own_config(args: argparse.Namespace) -> tuple[Config, Config]:
    """Return the config of a local run and its hyperparameters. Raises UserError, with all problems
    of the config.
    """
    config = experiment.load(args.config, overrides=args.set)
    return config, experiment.check(config, find_parsers=parsers)


def check_first() -> None:
    """Raise UserError for a mistake in the command line or in its config."""
    config, _ = read_own_config(parse_arguments())
    check_sources(config)


if __name__ == "__main__":
    start_logging()
    # In a task the startup hook has checked the config.
    is_task = "DET_EXPERIMENT_CONFIG" in os.environ
    refuse_first("train.py", parse_arguments if is_task else check_first)
    if os.environ.get("RANK", "0") == "0":
        log.info("loading data and model")  # the imports alone take seconds

import determined
import torch
from determined import core, pytorch

from detalbert import hub
from detalbert.determined_internals import experiment_config
from detalbert.engine import determinism
from detalbert.engine.trial import StepTrial
from detalbert.files import writing
from detalbert.run_page.run import REPORT, count_parameters, describe_run
from detalbert.training import display, folder, master, preflight
from detalbert.training.checkpoints import check_same_run, find_checkpoint
from detalbert.training.controller import Controller, loop_of
from detalbert.training.dry_run import dry_run
from detalbert.training.local import Ranks, lost_rank, process_group, trial_context
from detalbert.training.manifest import read_manifest
from detalbert.training.metrics import RunMetrics
from detalbert.training.schedule import LocalStops, MasterStops, restored_signals, say_scheduler
from detalbert.training.start import leave_broken_metrics, leave_other_checkpoints
from detalbert.training.workload import Training


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
    start_logging()
    display.quiet_libraries()
    determinism.choose_exact_kernels()
    with restored_signals():
        try:
            args = parse_arguments(argv)
            info = determined.get_cluster_info()
            if info is not None and info.task_type == "TRIAL":
                run_on_cluster(info)
                return 0
            return run_locally(args)
        except Exception as error:
            user_error = as_raised(error) or lost_rank(error)
            if user_error is None:
                raise
            if user_error.on_all_ranks and os.environ.get("RANK", "0") != "0":
                return user_error.status  # rank 0 prints it
            return fail("train.py", user_error)


def run_locally(args: argparse.Namespace) -> int:
    """Train on this machine, as a single process or as one of torchrun's ranks; return the exit
    status: of a stopped run 128 + the signal's number on rank 0, whose end torchrun awaits.
    """
    # Mistakes in the config are found before any rank waits for another.
    config, values = read_own_config(args)
    workload = choose(config, read=True)
    seed = experiment.trial_seed(config)
    hparams = workload.read(config, values)
    output = folder.output_folder(args.output_dir)
    if os.environ.get("LOCAL_RANK", "0") == "0":
        preflight.check_local_gpus()
    with contextlib.ExitStack() as stack:
        distributed = stack.enter_context(process_group())
        ranks = Ranks(distributed)
        if ranks.is_chief:
            say_scheduler()
        if not args.dry_run:
            ranks.on_chief(stack.enter_context, folder.claim_folder(output))
        # Rank 0 alone looks at the folder, and tells the others.
        checkpoint = ranks.on_chief(find_checkpoint, args.resume, output)
        # Before anything is read from the hub: the commits that the run began with.
        if checkpoint is not None:
            hub.commits.update(read_manifest(checkpoint).get("commits", {}))

        # Only a run that is the same as before may go on; its folder is made ready for it.
        training = ranks.on_all(Training.load, workload, config, hparams, seed)
        checkpoint = ranks.on_chief(find_start, training, checkpoint)
        if args.dry_run:
            dry_run(training, distributed, output=output, checkpoint=checkpoint)
            return 0
        ranks.on_chief(prepare_output, output, training, checkpoint, args.resume)
        return train_locally(training, distributed, output=output, checkpoint=checkpoint)


def find_start(training: Training, checkpoint: Path | None) -> Path | None:
    """Return the checkpoint to resume from, which is of the same run. Rank 0 only."""
    if checkpoint is None:
        return None
    check_same_run(
        checkpoint,
        run=training.identity(),
        defaults=training.defaults(),
        config=training.config,
    )
    return checkpoint


def prepare_output(output: Path, training: Training, checkpoint: Path | None, resume: str) -> None:
    """Prepare the output folder for a start from `checkpoint`. Rank 0 only."""
    if checkpoint is not None:
        leave_other_checkpoints(checkpoint, run=training.identity(), output=output)
    # Starting over keeps what is there, under another name.
    if resume == "never":
        folder.set_aside(output)
    leave_broken_metrics(output)
    folder.write_config(output, config=training.config)


def train_locally(
    training: Training,
    distributed: core.DistributedContext,
    output: Path,
    checkpoint: Path | None,
) -> int:
    """Run the trial loop from `checkpoint` (or from the start) to the end or to a stop; return the
    exit status.
    """
    is_chief = distributed.rank == 0
    steps_done = 0 if checkpoint is None else read_manifest(checkpoint)["steps"]
    metrics = RunMetrics(output, searcher=training.config["searcher"])
    if checkpoint is not None and is_chief:
        metrics.restore(checkpoint)

    # The loop creates the trial, in a context that reports to `metrics`.
    stops = LocalStops(distributed)
    with trial_context(
        distributed,
        metrics,
        stops,
        config=training.config,
        steps_completed=steps_done,
        run=training.identity(),
    ) as context:
        loop = loop_of(training)(
            training,
            context,
            stops,
            checkpoint=None if checkpoint is None else str(checkpoint),
            on_cluster=False,
        )
        metrics.follow(loop.trial, stalls=loop.stalls)
        writes = is_chief and steps_done < loop.trial.steps
        if writes:
            preflight.check_checkpoints(output, parameters=count_parameters(loop.trial))

        def begin_training() -> None:
            stops.take_signals()  # till now a signal ended the run: nothing was lost
            if writes and not loop.trial.early.reached:
                metrics.begin()

        loop.begin = begin_training
        loop.run()
    return finish(training, loop, metrics, stops=stops) if is_chief else 0


def finish(training: Training, loop: Controller, metrics: RunMetrics, stops: LocalStops) -> int:
    """Write the end of this start, and log how the run stands; return the exit status. Rank 0."""
    metrics.finish()
    if loop.is_complete:
        conclude(training, loop.trial, metrics)
        return 0
    step = loop.trial.history.step
    log.info("stopped after step %d; run the same command again to resume", step)
    return stops.status if stops.reason else 0


def conclude(training: Training, trial: StepTrial, metrics: RunMetrics) -> None:
    """Log the best scores of a run that is complete, and where its files are. Rank 0 only."""
    best = metrics.best()
    if best is not None:
        trial.progress.say_best(best)
    contents = "metrics and checkpoints"
    if (metrics.path / "predictions.json").is_file():
        contents = f"predictions, {contents}"
    log.info("%s are in %s", contents, metrics.path)
    path = shlex.quote(str(metrics.path))
    commands = {use: text.format(path) for use, text in training.workload.commands.items()}
    if best is not None:
        answers = metrics.best_answers()
        outcomes = None
        if answers is not None and training.workload.outcomes is not None:
            outcomes = training.workload.outcomes(trial, answers)
        run = describe_run(
            trial,
            training.workload.parsers.metrics,
            best=best,
            outcomes=outcomes,
            commands=commands,
            folder=metrics.path.name,
        )
        # One file for a person, of what the others have for programs.
        from detalbert.run_page.page import write_report  # with matplotlib, which takes a second

        with writing(metrics.path / REPORT, cure=folder.RESUME):
            write_report(run, metrics.path)
        log.info("report: %s", metrics.path / REPORT)
    log.info("charts: tensorboard --logdir %s", path)
    for command in list(commands.values())[:1]:
        log.info("next: %s", command)


def run_on_cluster(info: determined.ClusterInfo) -> None:
    """Train as a Determined trial, with config, hyperparameters and checkpoint from the master."""
    end_on_signals("; the trial resumes from its last checkpoint")
    if os.environ.get("RANK", "0") == "0":
        master.set_status("loading")
    config = experiment_config(info)
    workload = choose(config, read=True)
    hparams = workload.read(config, info.trial.hparams)
    # A restart reads the commits of the hub that the first start read.
    if info.latest_checkpoint:
        hub.commits.update(master.kept_commits())
    if os.environ.get("LOCAL_RANK", "0") == "0":
        data = workload.parsers.data(config["data"])
        preflight.check(data.cache_dir, info.gpu_uuids)
    training = Training.load(workload, config=config, hparams=hparams, seed=info.trial.trial_seed)
    with pytorch.init(hparams=training.config["hyperparameters"]) as context:
        preflight.check_collectives(context.device)
        stops = MasterStops(context, searched=config["searcher"]["name"] != "single")
        loop = loop_of(training)(
            training, context, stops, checkpoint=info.latest_checkpoint, on_cluster=True
        )
        trial = loop.trial
        is_chief = context.distributed.rank == 0
        if is_chief:
            master.keep_resolved(display.resolved(training, trial))
            storage = preflight.checkpoint_folder(config.get("checkpoint_storage") or {})
            preflight.check_checkpoints(storage, parameters=count_parameters(trial))
        loop.run()
        if is_chief:
            master.set_status("done" if loop.is_complete else "stopped")
        if is_chief and not loop.is_complete:
            log.info("stopped after step %d of %d", trial.history.step, trial.steps)
    # Outside the block, whose end waits for the thread that reports validations to the master.
    if is_chief:
        best = master.best_validation()
        if best is not None:
            trial.progress.say_best(best)


if __name__ == "__main__":
    leave(main())

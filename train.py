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
from detalbert.log import fail, quiet_libraries, rank, start_logging
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
import signal
import sys
from pathlib import Path

log = logging.getLogger("detalbert.train")


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = Parser("train.py", description=__doc__)
    parser.add_argument(
        "--config",
        type=existing_file,
        default=Path(__file__).with_name("configs") / "local.yaml",
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
    refuse_first(
        "train.py",
        parse_arguments if "DET_EXPERIMENT_CONFIG" in os.environ else check_first,
    )
    if rank() == 0:
        log.info("loading data and model")  # the imports alone take seconds

import determined
import torch
from determined import core, pytorch

from detalbert import hub
from detalbert.engine import determinism
from detalbert.engine.determined_internals import experiment_config
from detalbert.engine.history import best_first
from detalbert.files import check_own
from detalbert.training import display, folder, master, preflight
from detalbert.training.checkpoints import check_same_run, find_checkpoint
from detalbert.training.controller import loop_of
from detalbert.training.local import Ranks, lost_rank, process_group, trial_context
from detalbert.training.manifest import read_manifest
from detalbert.training.metrics import RunMetrics
from detalbert.training.schedule import LocalStops, MasterStops, restored_signals
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
    """Run; return the exit status (cluster/restarts.md has the table)."""
    start_logging()
    quiet_libraries()
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
            return fail("train.py", user_error)


def run_locally(args: argparse.Namespace) -> int:
    """Train on this machine, as a single process or as one of torchrun's ranks; return the exit
    status: of a stopped run 128 + the signal's number on rank 0, whose end torchrun awaits.
    """
    # Mistakes in the config are found before any rank waits for another.
    config, values = read_own_config(args)
    workload = choose(config, read=True)
    # A cluster derives each trial's seed from this key, with another result: two runs of one file
    # are equal there, and equal here, but not across.
    seed = config.get("reproducibility", {}).get("experiment_seed", 42)
    hparams = workload.read(config, values)
    output = folder.output_folder(args.output_dir)
    if os.environ.get("LOCAL_RANK", "0") == "0":
        preflight.check_local_gpus()
    with contextlib.ExitStack() as stack:
        distributed = stack.enter_context(process_group())
        ranks = Ranks(distributed)
        if not args.dry_run:
            ranks.on_chief(stack.enter_context, folder.claim_folder(output))
        # Rank 0 alone looks at the folder, and tells the others.
        ranks.on_chief(check_own, output, folder.FILES, folder.MOVE)
        checkpoint = ranks.on_chief(find_checkpoint, args.resume, output)
        # Before anything is read from the hub: the commits that the run began with.
        if checkpoint is not None:
            hub.commits.update(read_manifest(checkpoint)["commits"])

        # Only a run that is the same as before may go on.
        training = ranks.on_all(Training.load, workload, config, hparams, seed)
        if checkpoint is not None:
            ranks.on_chief(check_same_run, checkpoint, run=training.identity())
        if not args.dry_run:
            # Starting over keeps what is there, under another name.
            if args.resume == "never":
                ranks.on_chief(folder.set_aside, output)
            ranks.on_chief(folder.write_config, output, training.config)
        return train_locally(training, distributed, output, checkpoint, dry_run=args.dry_run)


def train_locally(
    training: Training,
    distributed: core.DistributedContext,
    output: Path,
    checkpoint: Path | None,
    dry_run: bool,
) -> int:
    """Run the trial loop from `checkpoint` (or from the start) to the end or to a stop; return the
    exit status. `dry_run`: log what is resolved, and end before the loop.
    """
    is_chief = distributed.rank == 0
    steps_done = 0 if checkpoint is None else read_manifest(checkpoint)["steps"]
    metrics = RunMetrics(output, searcher=training.config["searcher"], done=steps_done)
    # The loop creates the trial, in a context that reports to `metrics`.
    stops = LocalStops(distributed)
    with trial_context(
        distributed,
        metrics,
        stops,
        config=training.config,
        steps_completed=steps_done,
        run=training.identity,
    ) as context:
        preflight.check_device(context.device)
        loop = loop_of(training)(
            training,
            context,
            stops,
            checkpoint=None if checkpoint is None else str(checkpoint),
            on_cluster=False,
        )
        trial = loop.trial
        if dry_run:
            trial.progress.say(f"{'output':14}{output}")
            trial.progress.say("nothing was started")
            return 0
        metrics.trial = trial
        metrics.stalls = loop.stalls
        if is_chief and steps_done < trial.steps:
            preflight.check_checkpoints(output, parameters=trial.model.num_parameters())

        def begin_training() -> None:
            stops.take_signals()  # till now a signal ended the run: nothing was lost
            if is_chief and checkpoint is not None:
                metrics.restore_predictions(checkpoint.parent)

        loop.begin = begin_training
        loop.run()
    if not is_chief:
        return 0
    metrics.finish()
    if loop.is_complete:
        display.conclude(training, trial, metrics)
        return 0
    log.info("stopped after step %d; run the same command again to resume", trial.history.step)
    return stops.status if stops.reason else 0


def run_on_cluster(info: determined.ClusterInfo) -> None:
    """Train as a Determined trial, with config, hyperparameters and checkpoint from the master."""
    end_on_signals("; the trial resumes from its last checkpoint")
    if rank() == 0:
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
        preflight.check_device(context.device)
        preflight.check_collectives(context.device)
        stops = MasterStops(context, searched=config["searcher"]["name"] != "single")
        loop = loop_of(training)(
            training, context, stops, checkpoint=info.latest_checkpoint, on_cluster=True
        )
        trial = loop.trial
        is_chief = context.distributed.rank == 0
        if is_chief:
            master.keep_resolved(display.resolved(training, trial))
            preflight.check_checkpoints(
                preflight.checkpoint_folder(config.get("checkpoint_storage") or {}),
                parameters=trial.model.num_parameters(),
            )
        loop.run()
        if is_chief:
            master.set_status("done" if loop.is_complete else "stopped")
        if not loop.is_complete:
            trial.progress.say(f"stopped after step {trial.history.step} of {trial.steps}")
        validations = [validation.flat() for validation in trial.history.validations]
        for best in best_first(validations, config["searcher"])[:1]:
            trial.progress.say_best(best)


if __name__ == "__main__":
    leave(main())

"""Fine-tune an encoder on SQuAD, or pretrain one: the one entry point, on a laptop and a cluster.

python train.py                                          # configs/local.yaml, two cores, minutes
python train.py --config configs/single.yaml --output-dir runs/single
torchrun --nproc_per_node 8 train.py --config configs/distributed8.yaml
python train.py --config configs/pretrain_local.yaml     # its data has `text`: it pretrains
det experiment create configs/distributed64.yaml .       # the config's entrypoint runs this file
"""

import os

# Read when torch's OpenMP (libgomp) loads. Threads that spin long while they wait ruin a run that
# shares its cores: beside two busy processes on two cores, 5 examples/s instead of 50. Sleeping at
# once costs a third of the speed on idle cores; this many turns costs nothing there.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
# Read when cuBLAS starts: without it the same product may be rounded in another order next time.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import argparse
import contextlib
import dataclasses
import functools
import sys
from pathlib import Path
from typing import Any

import determined
import torch
from determined import core, pytorch

from detalbert.engine import determinism
from detalbert.engine.optim import plan_steps
from detalbert.errors import UserError
from detalbert.settings.experiment import (
    apply_overrides,
    check_sections,
    load_config,
    single_values,
)
from detalbert.settings.hparams import StepHParams
from detalbert.training import preflight, resume, spot
from detalbert.training.checkpoints import LocalCheckpoints
from detalbert.training.display import describe, quiet_libraries, summarize
from detalbert.training.folder import RunFolder
from detalbert.training.local import HERE, LocalController, process_group, trial_context
from detalbert.training.stopping import EveryOrStop, StopRequest
from detalbert.training.workload import Workload
from workloads import choose


def leave(status: int) -> None:
    """End the process with `status`, whatever the network's threads are doing.

    After a lost rank gloo's and NCCL's threads may still wait for it, or let go of a tensor while
    the interpreter ends: the process would hang, or die of SIGABRT, which is no `status`.
    """
    if status and torch.distributed.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def main(argv: list[str] | None = None) -> int:
    """Run; returns the exit status: 0 done, 2 a mistake of the user's (one line says which)."""
    args = parse_arguments(argv)
    quiet_libraries()
    determinism.choose_exact_kernels()
    try:
        info = determined.get_cluster_info()
        if info is not None and info.task_type == "TRIAL":
            run_on_cluster(info)
        else:
            run_locally(args)
    except UserError as error:
        if os.environ.get("LOCAL_RANK", "0") == "0":
            print(f"train.py: {error.kind}: {error}", file=sys.stderr)
        return 2
    return 0


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="train.py", description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, default=HERE / "configs" / "local.yaml")
    parser.add_argument("--output-dir", type=Path, default=Path("runs/local"))
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY.PATH=VALUE", help="change the config"
    )
    parser.add_argument(
        "--resume",
        default="auto",
        metavar="auto|never|CHECKPOINT",
        help="auto: go on from the newest checkpoint of the output directory, if any",
    )
    return parser.parse_args(argv)


def run_locally(args: argparse.Namespace) -> None:
    """Train on this machine, as one process or as one of torchrun's."""
    config = load_config(args.config)
    apply_overrides(config, args.set)
    check_sections(config)
    workload = choose(config)
    check_metric(config, workload)
    hparams = workload.parse(single_values(config["hyperparameters"]))
    folder = RunFolder(args.output_dir, config["searcher"], hparams.global_batch_size)
    with contextlib.ExitStack() as stack:
        distributed = stack.enter_context(process_group())
        chief = distributed.rank == 0
        if chief:
            folder.create()
            stack.enter_context(folder.claimed())
            stack.callback(folder.close)
        data = workload.load(config["data"], hparams)
        config = resolve(config, hparams, data)
        run = resume.identity(workload.hparams(**config["hyperparameters"]), data.fingerprints())
        checkpoint = None
        if chief:
            checkpoint = prepare(folder, args.resume, config, run)
        checkpoint = distributed.broadcast(checkpoint)
        train_locally(workload, distributed, folder, config, data, run, checkpoint)


def prepare(
    folder: RunFolder, resume_from: str, config: dict[str, Any], run: dict[str, Any]
) -> str | None:
    """The chief's part before training: the checkpoint to go on from, and `config.yaml`.

    Args: run: what must not change over a restart, see `resume.identity`.
    """
    checkpoint = None
    if resume_from == "never":
        folder.set_aside()
    else:
        checkpoint = resume.find_checkpoint(resume_from, folder.path, run)
    if checkpoint is not None:
        manifest = resume.read_manifest(checkpoint)
        folder.restore(checkpoint, manifest["validations"])
        finished = manifest["steps"] == config["hyperparameters"]["max_steps"]
        print(
            f"going on from step {manifest['steps']} ({checkpoint})"
            + (": the run is complete, --resume never starts over" if finished else ""),
            flush=True,
        )
    folder.write_config(config)
    return checkpoint and str(checkpoint)


def train_locally(
    workload: Workload,
    distributed: core.DistributedContext,
    folder: RunFolder,
    config: dict[str, Any],
    data: Any,
    run: dict[str, Any],
    checkpoint: str | None,
) -> None:
    """Drive the trial loop from `checkpoint` (or from nothing) to the end or to a stop."""
    chief = distributed.rank == 0
    done = resume.read_manifest(Path(checkpoint))["steps"] if checkpoint else 0
    checkpoints = LocalCheckpoints(distributed, folder, run, config.get("checkpoint_storage") or {})
    stop = StopRequest(distributed)
    reports = folder if chief else None
    with trial_context(distributed, checkpoints, reports, stop, config, done) as context:
        trial = workload.trial(context, data)
        folder.answers = trial.predictions
        if chief:
            print(describe(trial), flush=True)
        controller = LocalController(
            trial_inst=trial,
            context=context,
            max_length=pytorch.Batch(trial.steps),
            smaller_is_better=folder.sign < 0,
            searcher_metric_name=folder.metric,
            steps_completed=done,
            latest_checkpoint=checkpoint,
            local_training=True,
            test_mode=False,
            global_batch_size=trial.hparams.global_batch_size,
            profiling_enabled=False,
            **fit_arguments(config, trial.hparams, stop),
        )
        watch = trial.hparams.spot_notice and distributed.local_rank == 0
        with stop.on_signals(), spot.watching(watch, stop.request):
            controller.run()
        done = controller.state.batches_trained
    if chief:
        conclude(workload, folder, stop, done, trial.steps)


def conclude(
    workload: Workload, folder: RunFolder, stop: StopRequest, done: int, steps: int
) -> None:
    """The chief's part after `done` of `steps` steps: say how the run ended, and how well."""
    if done < steps:
        print(
            f"stopped by {stop.reason} after step {done}; checkpoint written, "
            "run the same command again to go on",
            flush=True,
        )
        return
    if folder.windows:  # this process trained: its last checkpoint's seconds belong in there
        folder.write_metrics()
    print(summarize(folder.best(), workload.shown))
    print(f"{workload.leaves} are in {folder.path}", flush=True)


def run_on_cluster(info: determined.ClusterInfo) -> None:
    """Train as a Determined trial: everything comes from the master."""
    config = dict(info.trial._config)
    workload = choose(config)
    check_metric(config, workload)
    hparams = workload.parse(info.trial.hparams)
    if os.environ.get("LOCAL_RANK", "0") == "0":
        workload.check(config, hparams, info.gpu_uuids)
    data = workload.load(config["data"], hparams)
    config = resolve(config, hparams, data)
    with pytorch.init(hparams=config["hyperparameters"]) as context:
        preflight.check_collectives(context.device)
        trial = workload.trial(context, data)
        if context.distributed.rank == 0:
            print(describe(trial), flush=True)
        preempt = context._core.preempt  # private: init() hands out no core context
        watch = trial.hparams.spot_notice and context.distributed.local_rank == 0
        with spot.watching(watch, spot.preempt_allocation):
            pytorch.Trainer(trial, context).fit(
                max_length=pytorch.Batch(trial.steps),
                latest_checkpoint=info.latest_checkpoint,
                profiling_enabled=bool((config.get("profiling") or {}).get("enabled")),
                **fit_arguments(config, trial.hparams, preempt),
            )


def check_metric(config: dict[str, Any], workload: Workload) -> None:
    """Refuse a `searcher.metric` that no validation gives, before hours of training."""
    metric = config["searcher"].setdefault("metric", workload.metric)
    known = ["loss", *workload.metrics]
    if metric not in known:
        raise UserError(
            f"searcher.metric: validation gives no {metric!r}; choose one of {', '.join(known)}"
        )


def resolve(config: dict[str, Any], hparams: StepHParams, data: Any) -> dict[str, Any]:
    """`config` with every hyperparameter spelled out, the number of steps and periods too."""
    windows = data.summary().windows
    steps, _ = plan_steps(hparams, windows)
    epoch = max(1, windows // hparams.global_batch_size)
    hparams = dataclasses.replace(
        hparams,
        max_steps=steps,
        checkpoint_period=hparams.checkpoint_period or epoch,
        validation_period=hparams.validation_period or epoch,
    )
    return {**config, "hyperparameters": dataclasses.asdict(hparams)}


def fit_arguments(
    config: dict[str, Any], hparams: StepHParams, preempt: core.PreemptContext
) -> dict[str, Any]:
    """What Determined's trainer takes from neither the config nor the trial by itself."""
    should_stop = functools.partial(preempt.should_preempt, auto_ack=False)
    return {
        "checkpoint_period": pytorch.Batch(hparams.checkpoint_period),
        "validation_period": pytorch.Batch(hparams.validation_period),
        "reporting_period": pytorch.Batch(EveryOrStop(hparams.reporting_period, should_stop)),
        "checkpoint_policy": config.get("checkpoint_policy") or "best",
        "step_zero_validation": bool(config.get("perform_initial_validation")),
    }


if __name__ == "__main__":
    leave(main())

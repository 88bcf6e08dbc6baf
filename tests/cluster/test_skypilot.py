"""cluster/skypilot.yaml: by the planner, by the parsers of its commands, and by SkyPilot itself."""

import subprocess
from typing import Any

import pytest
import yaml
from torch.distributed.run import get_args_parser

import train
from cluster.configs.fleet import image_of, slots_of
from cluster.facts.machines import Gpu
from cluster.facts.prices import load_prices
from cluster.facts.rates import Rates
from cluster.plan import any_cluster
from cluster.planning.options import Request, plan_options
from tests.cluster.planted import experiment
from tests.conftest import ROOT

FILE = ROOT / "cluster" / "skypilot.yaml"
TASK = yaml.safe_load(FILE.read_text())
PLANNED = TASK["envs"]["CONFIG"].removeprefix("configs/")
RANK = {"NODE_RANK": "1", "NUM_NODES": "2", "NUM_GPUS_PER_NODE": "8"}
RANK |= {"NODE_IPS": "10.0.0.7\n10.0.0.9"}


def canonical(gpu: Gpu) -> str:
    """SkyPilot's name: of two memories the larger one is in it."""
    return "A100-80GB" if gpu[:2] == ("A100", 80) else gpu.name


def test_its_gpus_are_those_that_the_planner_finds_fit() -> None:
    """With the config as it is: a GPU that needs smaller forwards is left out."""
    config = experiment(PLANNED)
    prices = {n: p for n, p in load_prices().items() if p.slots == slots_of(config)}
    found = plan_options(config, any_cluster(prices), Request(Rates()))
    found = [o for o in found if o.pool.spot and o.machines == 1 and not o.why_not]
    fit = {canonical(o.pool.gpu) for o in found if "max_tokens_per_forward" not in o.keys}
    assert len(fit) > 5
    assert TASK["resources"]["accelerators"] == dict.fromkeys(fit, slots_of(config))
    assert TASK["resources"]["image_id"] == f"docker:{image_of(config, found[0].pool)}"


def run(part: str, **envs: str) -> list[list[str]]:
    """Run a part of the file with a `python3` that prints its arguments; return what it got."""
    stub = 'python3() { printf \'%s\\0\' "$@"; echo; }; bash() { python3 "$@"; }\n'
    given = {k: v for k, v in TASK["envs"].items() if v is not None} | envs
    env = given | {f"SKYPILOT_{name}": value for name, value in RANK.items()}
    done = subprocess.run(
        ["bash", "-uc", stub + TASK[part]], env=env, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    return [line.split("\0")[:-1] for line in done.stdout.splitlines()]


def test_its_commands_are_those_that_torchrun_and_train_py_take(python: str) -> None:
    (words,) = run("run", OUTPUT="s3://my bucket/x", SET="--set hyperparameters.epochs=3")
    assert words[:2] == ["-m", "detalbert.torchrun"]
    asked = get_args_parser().parse_args(words[2:])
    where = asked.nnodes, asked.node_rank, asked.nproc_per_node, asked.master_addr
    assert where == ("2", 1, "8", "10.0.0.7") and (ROOT / asked.training_script).is_file()
    args = train.parse_arguments(asked.training_script_args)
    assert args.set == ["hyperparameters.epochs=3"] and (ROOT / args.config).is_file()
    assert "s3://my bucket/x" in words
    assert [line[-1] for line in run("setup")] == ["determined", "startup-hook.sh"]


def test_skypilot_loads_it_and_restarts_what_a_restart_helps(
    python: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its own loader, schema and rule of recovery, without network."""
    monkeypatch.setenv("HOME", str(tmp_path))
    sky = pytest.importorskip("sky")
    from sky.backends import CloudVmRayBackend
    from sky.jobs.recovery_strategy import StrategyExecutor
    from sky.utils import dag_utils, gpu_names

    with pytest.raises(ValueError, match="OUTPUT"):
        sky.Task.from_yaml(str(FILE))
    monkeypatch.chdir(ROOT)
    config = yaml.safe_load(FILE.read_text())
    with sky.Dag() as dag:
        task = sky.Task.from_yaml_config(config, env_overrides=[("OUTPUT", "s3://b/x")])
    dag.add(task)
    gpus = {name for each in task.resources for name in each.accelerators}
    assert gpus == TASK["resources"]["accelerators"].keys() <= {*gpu_names.CANONICAL_GPU_NAMES}
    assert all(each.use_spot for each in task.resources)
    dag_utils.fill_default_config_in_dag_for_job_launch(dag)
    job: Any = "c", CloudVmRayBackend(), task, 1, 0, None, set(), None, None
    restarts = StrategyExecutor.make(*job).should_restart_on_failure
    # Of several machines the first one's status, and 137 for those that SkyPilot ends then.
    for codes, again in {(143,): 1, (4,): 1, (143, 137): 1, (2,): 0, (2, 137): 0, (1,): 0}.items():
        assert restarts([*codes]) is bool(again), codes

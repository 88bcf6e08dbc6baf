"""cluster/skypilot.yaml: by the parsers of its commands, and by SkyPilot itself."""

import pytest
import yaml

from cluster.machines import FAMILIES
from tests.cluster.planted import experiment
from tests.conftest import ROOT

FILE = ROOT / "cluster" / "skypilot.yaml"
TASK = yaml.safe_load(FILE.read_text())


def test_its_gpus_and_image_are_those_of_its_config():
    """One machine has the config's slots, of GPUs that hold its forward pass: 24 GB or more."""
    config = experiment(TASK["envs"]["CONFIG"].removeprefix("configs/"))
    gpus = {gpu.name for gpu in FAMILIES.values() if gpu.gigabytes >= 24} | {"A100-80GB"}
    assert gpus >= TASK["resources"]["accelerators"].keys()
    slots = config["resources"]["slots_per_trial"]
    assert set(TASK["resources"]["accelerators"].values()) == {slots}
    assert TASK["resources"]["image_id"] == f"docker:{config['environment']['image']['cuda']}"


# Exit codes of all machines, and whether another try may help: of several machines the first
# one's status, and 137 for those that SkyPilot ends then.
RESTARTS = {
    (143,): True,
    (4,): True,
    (143, 137): True,
    (2,): False,
    (2, 137): False,
    (1,): False,
}


def test_skypilot_loads_it_and_restarts_what_a_restart_helps(python, tmp_path, monkeypatch):
    """By its own loader, schema and rule of recovery, without network."""
    monkeypatch.setenv("HOME", str(tmp_path))
    sky = pytest.importorskip("sky")
    from sky.backends import CloudVmRayBackend
    from sky.jobs.recovery_strategy import StrategyExecutor
    from sky.utils import dag_utils, gpu_names

    with pytest.raises(ValueError, match="BUCKET"):
        sky.Task.from_yaml(str(FILE))
    monkeypatch.chdir(ROOT)
    config = yaml.safe_load(FILE.read_text())
    with sky.Dag() as dag:
        task = sky.Task.from_yaml_config(
            config, env_overrides=[("BUCKET", "s3://b"), ("OUTPUT", "x")]
        )
    dag.add(task)

    gpus = set[str]()
    for resources in task.resources:
        assert resources.use_spot
        gpus.update(resources.accelerators)
    assert gpus == TASK["resources"]["accelerators"].keys()
    assert gpus <= {*gpu_names.CANONICAL_GPU_NAMES}

    dag_utils.fill_default_config_in_dag_for_job_launch(dag)
    executor = StrategyExecutor.make("c", CloudVmRayBackend(), task, 1, 0, None, set(), None, None)
    for codes, helps in RESTARTS.items():
        assert executor.should_restart_on_failure([*codes]) is helps, codes

"""cluster/skypilot.yaml asks for the GPUs and the image of the config that it trains."""

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
    slots = set(TASK["resources"]["accelerators"].values())
    assert slots == {config["resources"]["slots_per_trial"]}
    assert TASK["resources"]["image_id"] == f"docker:{config['environment']['image']['cuda']}"

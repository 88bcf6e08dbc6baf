"""The machines of an experiment: how many start, one to spare, and templates merged into it."""

from typing import Any

import pytest

from cluster.configs.expconf import check_experiment
from cluster.configs.fleet import check_fleet, describe_start, image_of, machines_at_start
from cluster.configs.masterconf import Cluster, Pool, cluster_of
from cluster.configs.merge import merge
from cluster.configs.values import Finding
from cluster.facts.machines import FAMILIES, no_code
from cluster.facts.prices import load_prices

TASKS = {"image": "image:1"}
EXCLUDES = [{"name": "a", "pattern": "x", "action": "exclude_node"}]


def pool(most: int = 9, **fields: Any) -> Pool:
    """Return a pool of p3.16xlarge on spot; `most` is the number of its machines."""
    p3 = Pool("p", 8, most, FAMILIES["p3"], spot=True, instance="p3.16xlarge", tasks=TASKS)
    return p3._replace(**fields)


def problems(config: dict[str, Any], machines: Pool, launch_error: bool = True) -> list[Finding]:
    """Return what is found of a trial of 64 slots, if the config says no other number."""
    config = {"resources": {"slots_per_trial": 64}, **config}
    cluster = Cluster({"p": machines}, "p", launch_error=launch_error)
    # That P3 is retired is found as well.
    return [
        finding
        for finding in check_fleet(config, cluster)
        if finding.key != "resources.resource_pool"
    ]


@pytest.mark.parametrize(
    ("most", "excludes", "launch_error", "faults"),
    [(8, True, True, 1), (9, True, True, 0), (8, True, False, 0), (8, False, True, 0)],
)
def test_a_machine_to_spare(most, excludes, launch_error, faults):
    """Once one of exactly as many machines is excluded, the trial ends at the next failure."""
    policies = EXCLUDES if excludes else [{"name": "CUDA OOM"}]

    findings = problems({"log_policies": policies}, pool(most), launch_error=launch_error)

    assert [finding.key for finding in findings] == ["log_policies"] * faults
    for finding in findings:
        assert "max_instances: 9, or set launch_error: false" in finding.detail


def test_machines_of_ones_own():
    older = [{"pattern": "x", "action": {"type": "exclude_node"}}]
    own = pool(8, instance="", gpu=None, own=True)
    (warning,) = problems({"log_policies": older}, own)
    assert warning.warning
    assert "add one, or set" in warning.detail

    (finding,) = problems({}, own._replace(max_agents=7, slots=56))
    assert "at most 56; lower it or add machines" in finding.detail


def test_more_machines_than_needed():
    (warning,) = problems({}, pool(64))
    assert warning.warning
    assert "up to 15 machines for 8" in warning.detail

    one_machine = {"resources": {"slots_per_trial": 8}}
    assert problems({}, pool(9)) == []
    assert problems(one_machine, pool(64)) == []


PODS = {"type": "kubernetes", "max_slots_per_pod": 4}
OWN_PODS = {"kubernetes": {"max_slots_per_pod": 8}}


@pytest.mark.parametrize(
    ("name", "slots", "single", "key"),
    [
        ("p", 4, True, None),
        ("p", 6, False, "resources.slots_per_trial"),
        ("p", 8, False, None),
        ("p", 8, True, "resources.is_single_node"),
        ("own", 8, True, None),  # a pool's own number of slots counts
        ("own", 12, False, "resources.slots_per_trial"),
    ],
)
def test_slots_that_fit_the_pods_of_kubernetes(name, slots, single, key):
    """As `ValidateResources` of kubernetesrm/resource_pool.go has it."""
    pools = [{"pool_name": "p"}, {"pool_name": "own", "task_container_defaults": OWN_PODS}]
    cluster = cluster_of({"resource_manager": PODS, "resource_pools": pools})
    resources = {"resource_pool": name, "slots_per_trial": slots, "is_single_node": single}
    config = {"resources": resources, "environment": {"image": {"cpu": "c", "cuda": "g"}}}
    findings = check_fleet(config, cluster)
    assert [finding.key for finding in findings] == ([key] if key else [])
    assert image_of(config, cluster.pools[name]) == "g"


PARTITIONS = {"gpuq": {"task_container_defaults": {"image": "of-gpuq"}}}


@pytest.mark.parametrize("manager", ["slurm", "pbs"])
@pytest.mark.parametrize("pools", [None, [], [{"pool_name": "wide", "provider": {"type": "hpc"}}]])
def test_partitions_are_pools_that_no_config_names(manager, pools):
    """As `hasSlurmPartition` of dispatcherrm has it; it was "the master has no pool 'gpuq'"."""
    settings = {"type": manager, "partition_overrides": PARTITIONS}
    master = {"resource_manager": settings, "resource_pools": pools}
    master["task_container_defaults"] = {"image": "of-all"}
    cluster = cluster_of(master)
    images = {"GPUQ": "of-gpuq", "wide": "of-all", None: "of-all"}
    for name, image in images.items():
        config = {"resources": {"resource_pool": name, "slots_per_trial": 16}}
        assert list(check_fleet(config, cluster)) == []
        assert image_of(config, cluster.pool_of(config)) == image

    settings["default_compute_resource_pool"] = "batch"
    pool = cluster_of(master).pool_of({})
    assert pool is not None
    assert (pool.name, pool.own) == ("batch", True)


def test_pools_of_the_other_managers_are_pools():
    other = {"resource_manager": PODS, "resource_pools": [{"pool_name": "pods"}]}
    cluster = cluster_of({"additional_resource_managers": [other]})
    assert cluster.pools.keys() == {"default", "pods"}
    assert cluster.pools["pods"].slots_per_agent == 4


def test_an_image_is_asked_of_this_package_alone():
    training = {"entrypoint": "python3 train.py", "hyperparameters": {"model": "albert-base-v2"}}
    prediction = {"entrypoint": "python3 predict.py --model a --data b"}
    for config in (training, prediction):
        (finding,) = problems(config, pool(tasks={}))
        assert finding.key == "environment.image"

    other_training = {"entrypoint": "python3 train.py", "hyperparameters": {"lr": 0.1}}
    other_prediction = {"entrypoint": "python3 predict.py --checkpoint a"}
    for config in (other_training, other_prediction):
        assert problems(config, pool(tasks={})) == []


@pytest.mark.parametrize(
    "entrypoint, is_fault",
    [
        ("python3 predict.py --model a --data b", True),
        ("python3 predict.py --checkpoint a", False),
        ("python3 train.py", False),
    ],
)
def test_a_launcher_is_asked_of_this_package_alone(entrypoint, is_fault):
    """Another script of that name may start its processes itself, as 0.38.1 lets it."""
    config = {"entrypoint": entrypoint, "hyperparameters": {"lr": 0.1}, **WIDE}
    of_entrypoint = [finding for finding in check_experiment(config) if finding.key == "entrypoint"]
    assert of_entrypoint
    assert all(finding.warning is not is_fault for finding in of_entrypoint)


WIDE = {"resources": {"slots_per_trial": 64}}


def test_machines_at_the_start():
    narrow = {"resources": {"slots_per_trial": 16}}
    searcher = {"name": "adaptive_asha", "max_trials": 20, "max_concurrent_trials": 6}
    search = {"resources": {"slots_per_trial": 4}, "searcher": searcher}

    assert machines_at_start(WIDE, pool(64)) == (8, 15)
    assert machines_at_start(narrow, pool()) == (2, 3)
    assert machines_at_start(search, pool()) == (3, 3)  # two trials a machine
    search["resources"]["slots_per_trial"] = 5
    assert machines_at_start(search, pool()) == (6, 6)  # one of eight slots


@pytest.mark.parametrize(
    "config, machines, words",
    [
        (WIDE, pool(), "8 to 9 p3.16xlarge (spot) at the start, $58.75 to $66.10 an hour"),
        ({}, pool(spot=False), "(on demand) at the start, $24.48 an hour"),
        ({}, pool(instance="x9.large"), "no price in cluster/facts/prices.yaml"),
        (WIDE, pool(slots_per_agent=None, instance=""), "pool p: your own machines"),
    ],
)
def test_the_price_of_the_start(config, machines, words):
    price = load_prices().get(machines.instance)
    assert describe_start(config, machines, price).endswith(words)


def test_templates():
    mounts = [
        {"host_path": "/a", "container_path": "x"},
        {"host_path": "/b", "container_path": "x"},
        {"host_path": "/b", "container_path": "y"},
    ]
    config = {
        "name": "n",
        "environment": {"environment_variables": ["A=1"]},
        "bind_mounts": mounts[:1],
        "checkpoint_storage": {"save_trial_best": 2},
        "hyperparameters": {"lr": {"type": "const", "val": 1}},
    }
    template = {
        "name": "other",
        "environment": {"image": "i", "environment_variables": ["B=1"]},
        "bind_mounts": mounts[1:],
        "log_policies": [{"name": "p"}],
        "checkpoint_storage": {"type": "s3", "bucket": "b", "save_trial_best": 1},
        "hyperparameters": {"lr": {"type": "int", "minval": 1, "maxval": 2}, "more": 1},
    }
    assert merge(config, template) == {
        "name": "n",
        "environment": {"image": "i", "environment_variables": ["B=1", "A=1"]},
        "bind_mounts": [mounts[0], mounts[2]],
        "log_policies": [{"name": "p"}],
        "checkpoint_storage": {"type": "s3", "bucket": "b", "save_trial_best": 2},
        "hyperparameters": {"lr": {"type": "const", "val": 1}, "more": 1},
    }
    other = merge({"checkpoint_storage": {"type": "gcs"}}, template)
    assert other["checkpoint_storage"] == {"type": "gcs", "save_trial_best": 1}


def test_the_image_of_a_pool_and_slots():
    pools = [{"pool_name": "a"}, {"pool_name": "b", "task_container_defaults": {"image": "own"}}]
    config = {"resource_pools": pools, "task_container_defaults": {"image": "all"}}
    cluster = cluster_of({**config, "launch_error": False})
    assert cluster.pools["a"].tasks["image"] == "all"
    assert cluster.pools["b"].tasks["image"] == "own"
    assert not cluster.launch_error
    assert cluster.default == "default"

    job = {"environment": {"image": {"cpu": "c", "cuda": "g"}}}
    assert image_of(job, pool()) == "g"
    assert image_of(job, pool(slots_per_agent=0, gpu=None)) == "c"


IMAGE = "pytorch/pytorch:{}-cudnn9-devel"
# torch's builds by CUDA version: machines that they have code for, and machines that they have not.
BUILDS = {
    "2.12.0-cuda12.6": ("p3 g4dn p4d g5 g6e p5 p5en", "p2 p6-b200 p6-b300 g7 g7e"),
    "2.12.0-cuda12.8": ("g4dn p4d g6 p5e p6-b200 p6-b300 g7 g7e", "p2 p3 p3dn"),
    "2.11.1-cuda13.0": ("g4dn p5 p6-b300 g7", "p3"),
    "2.10.0-cuda12.8": ("p3 p6-b200", ""),  # older builds are not in the table
    "2.12.0-cuda14.0": ("p3 p5", ""),  # nor later ones
}


@pytest.mark.parametrize("build", BUILDS)
def test_a_build_of_torch_has_code_for_some_gpus(build):
    image = IMAGE.format(build)
    with_code, without_code = BUILDS[build]
    for family in with_code.split():
        assert no_code(image, FAMILIES[family]) is None, family
    for family in without_code.split():
        gpu = FAMILIES[family]
        problem = no_code(image, gpu)
        assert problem is not None, family
        assert f"no code for a {gpu.name}; take " in problem


def test_an_image_that_is_not_known_is_not_judged():
    assert no_code(None, FAMILIES["p5"]) is None
    assert no_code("own:1", FAMILIES["p2"]) is None


def test_a_pool_of_gcp_is_named_by_its_machine_and_its_gpus_if_known():
    kind = {"gpu_type": "nvidia-l4", "gpu_num": 8, "machine_type": "g2-standard-96"}
    names = {"nvidia-l4": "g2-standard-96 with 8 L4", "x": "g2-standard-96"}
    for gpu_type, name in names.items():
        provider = {"type": "gcp", "instance_type": {**kind, "gpu_type": gpu_type}}
        cluster = cluster_of({"resource_pools": [{"pool_name": "p", "provider": provider}]})
        assert cluster.pools["p"].instance == name

"""What the configs say of their tasks: image, variables, and policies about lines of the log."""

import re

from tests.cluster.planted import experiment
from tests.conftest import ROOT

CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))


def test_every_config_names_one_image_that_these_gpus_and_drivers_run():
    """CUDA 12.6: newer builds have no code for a V100, CUDA 13 does not run on driver 535."""
    for path in CONFIGS:
        environment = experiment(path.name)["environment"]
        assert set(environment["image"]) == {"cpu", "cuda"}, path.name
        for image in environment["image"].values():
            torch = re.fullmatch(r"pytorch/pytorch:(.*)-cuda12\.6-cudnn9-devel", image)[1]
            major, minor, *_ = torch.split(".")
            assert (int(major), int(minor)) >= (2, 10)
            assert f"ARG BASE={image}\n" in (ROOT / "cluster" / "Dockerfile").read_text()
        first, second, *_ = environment["environment_variables"]
        assert first == "PIP_BREAK_SYSTEM_PACKAGES=1", path.name
        assert second == "PIP_ROOT_USER_ACTION=ignore", path.name
    for path in (ROOT / "cluster").iterdir():  # `image.cuda=` changes nothing on CPU slots
        assert path.is_dir() or b"image.cuda=" not in path.read_bytes(), path.name


def policies_of(name):
    return {policy["name"]: policy for policy in experiment(name)["log_policies"]}


POLICIES = policies_of("distributed64.yaml")


def actions(log):
    """Return what the log policies of a spot config do about the lines of a log."""
    taken = set()
    for policy in POLICIES.values():
        if any(re.search(policy["pattern"], line) for line in log.splitlines()):
            taken.add(policy["action"])
    return taken


def test_log_policies_are_the_same_everywhere_but_for_the_notice():
    for path in CONFIGS:
        reads = experiment(path.name)["hyperparameters"].get("spot_notice", False)
        expected = {k: v for k, v in POLICIES.items() if reads or k != "Spot"}
        if path.name == "predict.yaml":
            own = expected["Input"]["pattern"].replace("train", "predict")
            expected["Input"] = {**expected["Input"], "pattern": own}
        assert policies_of(path.name) == expected, path.name
    # The WebUI's table shows the first four letters. Determined has policies of its own under the
    # first two names, which ours replace.
    shown = ["CUDA", "Inpu", "Hook", "Stor", "ECC", "GPU", "Spot"]
    assert [name[:4].strip() for name in POLICIES] == shown
    assert {"CUDA OOM", "ECC Error"} < POLICIES.keys()


FAILED = "ERROR: [8] determined: Checkpoint storage validation failed: "
DENIED = "Failed to upload /tmp/a to b/c: An error occurred (AccessDenied) when calling the Put"
CLOUD = "POST https://storage.googleapis.com/upload: "
DONE = {
    "cancel_retries": [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "[rank=0] train.py: error: data.epoch: unknown key",
        "startup-hook.sh: error: torch>=2.6 is needed",
        FAILED + DENIED,
        f"{FAILED}403 {CLOUD}a does not have storage.objects.create",
        f"{FAILED}404 {CLOUD}The specified bucket does not exist.",
        f"{FAILED}[Errno 13] Permission denied: '/determined_shared_fs/3e7c'",
        f"{FAILED}[Errno 30] Read-only file system: '/determined_shared_fs/3e7c'",
    ],
    "exclude_node": [
        "CUDA error: uncorrectable ECC error encountered",
        "uncorrectable NVLink error detected during the execution",
        "GPU is lost.  Reboot the system to recover this GPU",
    ],
    "": [
        # Another try may find the network up.
        "[rank=0] train.py: unavailable: train-v2.0.json: not here, and fetching",
        "+ source startup-hook.sh",
        # All healthy machines print this when one is reclaimed.
        "NCCL error: remote process exited or there was a network error",
        "KeyError: train_py error",
        DENIED,  # of another access, which the trial reports itself
        f"{FAILED}An error occurred (SlowDown) when calling the PutObject operation",
    ],
}


def test_log_policies_do_what_they_say():
    for action, lines in DONE.items():
        for line in lines:
            assert actions(line) == ({action} if action else set()), line

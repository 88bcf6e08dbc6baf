"""The checker against what a real 0.38.1 master answered: refused or harmful is exit status 2, and
the line names the key that is wrong."""

import copy
import json
import re
from typing import Any

import pytest

from cluster import check
from cluster.configs.values import Finding
from tests.cluster.planted import checked

# Where the two disagree, and why that is right or cannot be otherwise.
ACCEPTED = {  # the master takes them and the recording calls them clean; the checker does not
    "upstream/searcher/partially-filled searcher is allowed and merges correctly": "metric 'sae' "
    "is none of this package's: the trial would end at its first checkpoint",
    "valid/without-data": "train.py has nothing to train on and ends",
}
AT_CREATION = {  # recorded with validateOnly alone; experiment.go:856 refuses the UUID 'asdf' later
    "upstream/searcher/random searcher defaults",
    "upstream/searcher-random/random searcher defaults",
    "upstream/searcher/random searcher (valid)",
    "upstream/searcher-random/random searcher (valid)",
    "upstream/searcher/grid searcher (valid)",
    "upstream/searcher-grid/grid searcher (valid)",
}
# Rules that went: the master refuses at creation, and --ask says so before.
OF_THE_MASTER = [
    "upstream/profiling/a<=b compareProperties (invalid)",
    "upstream/profiling/profiling is invalid when begin < end",
    "upstream/checkpoint-storage/a_is_subdir_of_b (invalid, relative, unnormalized)",
    "upstream/checkpoint-storage/a_is_subdir_of_b (invalid, absolute, unnormalized)",
    "upstream/shared-fs/a_is_subdir_of_b (invalid, relative, unnormalized)",
    "upstream/shared-fs/a_is_subdir_of_b (invalid, absolute, unnormalized)",
    "checkpoint_storage/shared-fs-outside",
    "log_policies/name-twice",
    "hyperparameters/double-reversed",
    "master/min-more-than-max",
    "master/tasks-log-policy-name-twice",
]
MISSED = {
    **dict.fromkeys(OF_THE_MASTER, "the master says so"),
    "resources/max-slots-below-trial": "a trial waits, and the WebUI says for what",
    "bind_mounts/twice-the-same-target": "Docker says so",
    "master/storage-path-outside": "the master refuses every experiment with it",
    "master/tasks-network-mode-typo": "Docker says so",
    "searcher/source-trial-nonexistent": "only the master knows which trials there are",
    "workspace/nonexistent": "only the master knows its workspaces",
    "integrations/webhook-id-nonexistent": "only the master knows its webhooks",
    "resources/slots-odd-of-machines": "needs the pool: found with --master and with --ask",
    "resources/single-node-too-wide": "needs the pool: found with --master and with --ask",
    "master/authz-rbac-open-source": "upstream's own samples have it: a warning",
    "master/initial-password-missing": "upstream's own samples have none: a warning",
    "master/tasks-image-gpu-legacy": "the master does take gpu as cuda here: its log shows it",
    "master/tls": "whether the files are there is known on the master's machine alone",
}
SLOTS = "resource_pools[0].provider.instance_slots"
ELSEWHERE = {  # changed is one key, wrong then is another
    "searcher/grid-without-count": "hyperparameters.lr_scale.count",
    "workspace/without-project": "project",
    "workspace/project-alone": "workspace",
    "master/instance-type-typo": SLOTS,
    "master/instance-type-azure": SLOTS,
    "master/default-aux-pool-missing": "resource_manager.default_aux_resource_pool",
}


@pytest.fixture(scope="module")
def answers(shared) -> dict[str, Any]:
    return json.loads((shared / "golden" / "determined-answers.json").read_text())


def text_of(case: dict[str, Any], bases: dict[str, Any]) -> str:
    """The file of a recorded case; JSON is YAML, and quotes what Go would read otherwise."""
    if "text" in case:
        return case["text"]
    config = copy.deepcopy(case["config"] if "config" in case else bases[case["base"]])
    for path in case.get("unset", []):
        node: Any = config
        for key in path[:-1]:
            node = node[key]
        del node[path[-1]]
    for path, value in case.get("set", []):
        node = config
        for key in path[:-1]:
            node = node.setdefault(key, {}) if isinstance(node, dict) else node[key]
        node[path[-1]] = value
    return json.dumps(config)


def is_named(case: dict[str, Any], faults: list[Finding]) -> bool:
    """Whether a fault is at the key that a recorded case changes, or above or below it."""
    paths = [path for path, _ in case.get("set", [])] + case.get("unset", [])
    if len(paths) != 1:
        return True
    (path,) = paths
    changed = keys(ELSEWHERE.get(case["id"], ".".join(map(str, path))))
    for fault in faults:
        key = keys(fault.key)
        shared = min(len(key), len(changed))
        if key[:shared] == changed[:shared]:
            return True
    return False


def keys(path: str) -> list[str]:
    return re.findall(r"[^.\[\]]+", path)


@pytest.mark.slow
@pytest.mark.parametrize("part", ["experiment_cases", "master_cases"])
def test_the_real_masters_answers(part, answers, tmp_path, monkeypatch):
    monkeypatch.setattr(check, "read_upload", lambda folder: (set(), None))
    monkeypatch.setattr(check, "check_data", lambda *arguments: iter(()))
    wrong = {}
    for case in answers[part]:
        path = tmp_path / "config.yaml"
        path.write_text(text_of(case, answers["bases"]), encoding="utf-8")
        problems = checked(path) if part == "experiment_cases" else checked(master=path)
        faults = [finding for finding in problems if not finding.warning]
        bad = not case["accepted"] or "accepted_but" in case or case["id"] in AT_CREATION
        assert not any("\n" in str(fault) for fault in faults), faults
        if bool(faults) != bad:
            wrong[case["id"]] = faults or case.get("message") or case.get("accepted_but")
        elif bad:
            assert is_named(case, faults), (case["id"], faults)
    listed = {name for name in ACCEPTED | MISSED if name.startswith("master/") == (part[0] == "m")}
    assert set(wrong) == listed, wrong
    assert len(wrong) <= 0.05 * len(answers[part])

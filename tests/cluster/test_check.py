"""`python -m cluster.check`: clean on what ships, and every planted mistake named."""

import copy
import functools
import json
import pathlib
import re
from typing import Any

import pytest
import torch
import yaml
from transformers import AlbertConfig, AlbertForQuestionAnswering

from cluster import check, estimates, machines, masterconf
from cluster.schema import PLACEHOLDER, Finding
from tests.conftest import ROOT

MASTERS = sorted((ROOT / "cluster").glob("master-*.yaml"))
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
V100_SPOT = "aws-spot-p3-16xlarge"


@functools.lru_cache
def parsed(path: pathlib.Path) -> dict[str, Any]:
    return yaml.safe_load(PLACEHOLDER.sub("filled-in", path.read_text()))


def filled(path: pathlib.Path) -> dict[str, Any]:
    """A config with every placeholder filled in, to be changed at will."""
    return copy.deepcopy(parsed(path))


def master(name: str = "master-aws-spot.yaml") -> dict[str, Any]:
    return filled(ROOT / "cluster" / name)


def experiment(name: str) -> dict[str, Any]:
    return filled(ROOT / "configs" / name)


def put(config: dict[str, Any], path: str, value: Any) -> None:
    """Set `a.b[0].c`; a value of None takes the key out."""
    *parents, last = re.findall(r"[^.\[\]]+", path)
    node: Any = config
    for name in parents:
        node = node[int(name)] if name.isdigit() else node[name]
    if value is None:
        del node[last]
    else:
        node[int(last) if isinstance(node, list) else last] = value


def findings(
    tmp_path: pathlib.Path,
    config: dict[str, Any] | None = None,
    cluster: dict[str, Any] | None = None,
) -> list[Finding]:
    """What the checker says of configs as files of their own, the package as model folder."""
    paths = {}
    for name, content in (("job.yaml", config), ("master.yaml", cluster)):
        if content is not None:
            paths[name] = tmp_path / name
            paths[name].write_text(yaml.safe_dump(content))
    jobs = [paths["job.yaml"]] if config is not None else []
    return list(check.check_all(jobs, paths.get("master.yaml"), ROOT))


def test_what_ships_is_clean(capsys: pytest.CaptureFixture, tmp_path: pathlib.Path) -> None:
    (tmp_path / "master.yaml").write_text(yaml.safe_dump(master()))
    arguments = [str(path) for path in CONFIGS]
    arguments += ["--master", str(tmp_path / "master.yaml"), "--context", str(ROOT)]
    assert check.main(arguments) == 0, capsys.readouterr().out
    assert "nothing to mend" in capsys.readouterr().out


@pytest.mark.parametrize("path", MASTERS, ids=[path.name for path in MASTERS])
def test_master_is_refused_until_filled_in(path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    left = list(check.check_all([], path, ROOT))
    text = re.sub(r"#.*", "", path.read_text())
    assert left and len(left) == len(PLACEHOLDER.findall(text))
    assert all("is not filled in" in finding.problem for finding in left)
    assert findings(tmp_path, cluster=filled(path)) == []
    # A master config given in an experiment's place is known for what it is.
    assert list(check.check_all([path], None, ROOT)) == left


def test_template_is_refused_until_filled_in() -> None:
    template = yaml.safe_load((ROOT / "cluster" / "template-site.yaml").read_text())
    keys = {finding.key for finding in check.placeholders("t", "", template)}
    assert keys == {"environment.image.cuda", "bind_mounts[0].host_path"}


# (config, key to set, value, the finding's key, words of its text)
JOB_MISTAKES = [
    ("single", "hyperparameter", {}, "hyperparameter", "did you mean 'hyperparameters'?"),
    ("single", "resources.slot_per_trial", 1, "resources.slot_per_trial", "'slots_per_trial'"),
    ("single", "hyperparameters.learning_rat", 1e-5, "hyperparameters.learning_rat", "did you"),
    ("single", "data.cache", "x", "data.cache", "did you mean 'cache_dir'?"),
    ("single", "max_restarts", "five", "max_restarts", "a whole number of at least 0, got 'five'"),
    ("single", "hyperparameters.epochs", "two", "hyperparameters.epochs", "expected a number"),
    ("single", "max_restarts", -1, "max_restarts", "less than 0"),
    ("single", "name", None, "name", "missing"),
    ("single", "searcher.max_length", {"batches": 9}, "searcher.max_length", "deprecated"),
    ("single", "min_checkpoint_period", {"batches": 9}, "min_checkpoint_period", "checkpoint_per"),
    ("single", "resources.agent_label", "x", "resources.agent_label", "use resource_pool"),
    ("single", "environment", {"image": {"gpu": "x"}}, "environment.image.gpu", "use cuda"),
    ("single", "searcher.name", "adaptive", "searcher.name", "did you mean 'adaptive_asha'?"),
    ("single", "searcher.metric", "f2", "searcher.metric", "validation gives no 'f2'"),
    ("single", "searcher.smaller_is_better", True, "searcher.smaller_is_better", "keep the worst"),
    ("single", "log_policies[0].action", {"type": "cancel_retries"}, "log_policies[0].action", ""),
    ("single", "log_policies[1].name", "CUDA OOM", "log_policies", "twice"),
    ("single", "bind_mounts", [{"host_path": "<<where>>", "container_path": "x"}],
     "bind_mounts[0].host_path", "placeholder <<where>>"),
    ("single", "hyperparameters.optimizer", {"type": "categorical", "vals": ["radam"]},
     "hyperparameters.optimizer", "searcher.name single"),
    ("distributed8", "resources.slots_per_trial", 60, "resources.slots_per_trial", "56 or 64"),
    ("distributed8", "resources.slots_per_trial", 96, "resources.slots_per_trial", "at most 64"),
    ("distributed8", "resources.resource_pool", "aws-spot-p3",
     "resources.resource_pool", f"did you mean '{V100_SPOT}'"),
    ("distributed8", "resources.resource_pool", "aux-cpu", "resources.resource_pool", "no slots"),
    ("distributed8", "hyperparameters.global_batch_size", 50, "hyperparameters.global_batch_size",
     "use 56"),
    ("distributed8", "hyperparameters.precision", "bf16", "hyperparameters.precision", "no bf16"),
    ("distributed8", "hyperparameters.max_tokens_per_forward", 4096,
     "hyperparameters.max_tokens_per_forward", "do not fit 16 GB of a V100"),
    ("distributed8", "hyperparameters.model", "albert-xxlarge-v2 ", "", None),
    ("distributed64", "hyperparameters.checkpoint_period", 1000,
     "hyperparameters.checkpoint_period", "46 minutes of 64 slots"),
    ("distributed64", "hyperparameters.checkpoint_period", None,
     "hyperparameters.checkpoint_period", "516 steps (an epoch, the default)"),
    ("distributed64", "hyperparameters.spot_notice", False,
     "hyperparameters.spot_notice", "unread"),
    ("lr_search", "searcher.max_time", 2000, "searcher.max_time", "max_steps = 1024"),
    ("lr_search", "searcher.time_metric", "epochs", "searcher.time_metric", "batches"),
    ("lr_search", "searcher.max_trials", None, "searcher.max_trials", "missing"),
    ("lr_search", "hyperparameters.lr_scale.maxval", 0.5, "hyperparameters.lr_scale.minval",
     "not below maxval"),
    ("lr_search", "hyperparameters.global_batch_size.vals", [48, 100],
     "hyperparameters.global_batch_size", "100 windows cannot be dealt evenly to 8"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "key", "value", "where", "words"), JOB_MISTAKES)
def test_mistake_in_an_experiment_is_named(
    name: str, key: str, value: Any, where: str, words: str | None, tmp_path: pathlib.Path
) -> None:
    config = experiment(f"{name}.yaml")
    put(config, key, value)
    found = findings(tmp_path, config, master())
    if words is None:  # a hub name that is not known: nothing is downloaded, nothing claimed
        assert found == []
        return
    named = [finding for finding in found if finding.key == where]
    assert len(named) == 1 and words in named[0].problem, found
    assert named[0].file.endswith("job.yaml")
    assert str(named[0]).count("\n") == 0


POOL = "resource_pools[0].provider"
MASTER_MISTAKES = [
    ("master-aws-modern.yaml", "resource_pools[2].provider.instance_slots", None,
     "resource_pools[2].provider.instance_slots", "no p5.48xlarge: set instance_slots"),
    ("master-aws-modern.yaml", "resource_pools[2].provider.instance_slots", 4,
     "resource_pools[2].provider.instance_slots", "a p5.48xlarge has 8"),
    ("master-aws-spot.yaml", f"{POOL}.spot_max_price", 7.5, f"{POOL}.spot_max_price", "quote it"),
    ("master-aws-spot.yaml", f"{POOL}.spot_max_price", "$7.50", f"{POOL}.spot_max_price", "digits"),
    ("master-aws-spot.yaml", f"{POOL}.ssh_key_name", None, f"{POOL}.ssh_key_name", "missing"),
    ("master-aws-spot.yaml", f"{POOL}.type", None, f"{POOL}.type", "missing"),
    ("master-aws-spot.yaml", f"{POOL}.instance_type", "p3.16xlage", f"{POOL}.instance_slots",
     "did you mean 'p3.16xlarge'?"),
    ("master-aws-spot.yaml", f"{POOL}.max_instance", 3, f"{POOL}.max_instance", "'max_instances'"),
    ("master-aws-spot.yaml", f"{POOL}.spot", "yes", f"{POOL}.spot", "true or false"),
    ("master-aws-spot.yaml", f"{POOL}.root_volume_size", 50, f"{POOL}.root_volume_size", "100"),
    ("master-aws-spot.yaml", f"{POOL}.min_instances", 99, f"{POOL}.min_instances", "more than"),
    ("master-aws-spot.yaml", "resource_pools[1].pool_name", V100_SPOT, "resource_pools", "two"),
    ("master-aws-spot.yaml", "resource_pools[0].agent_reattach_enabled", True,
     "resource_pools[0].agent_reattach_enabled", "deprecated"),
    ("master-aws-spot.yaml", "resource_manager.default_aux_resource_pool", "aux",
     "resource_manager.default_aux_resource_pool", "did you mean 'aux-cpu'?"),
    ("master-aws-spot.yaml", "resource_manager.scheduler.type", "prority",
     "resource_manager.scheduler.type", "did you mean 'priority'?"),
    ("master-aws-spot.yaml", "resource_pool", [], "resource_pool", "'resource_pools'"),
    ("master-local.yaml", "checkpoint_storage.bucket", "b", "checkpoint_storage.bucket", "unknown"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "key", "value", "where", "words"), MASTER_MISTAKES)
def test_mistake_in_a_master_config_is_named(
    name: str, key: str, value: Any, where: str, words: str, tmp_path: pathlib.Path
) -> None:
    config = master(name)
    put(config, key, value)
    named = [finding for finding in findings(tmp_path, cluster=config) if finding.key == where]
    assert len(named) == 1 and words in named[0].problem


@pytest.mark.parametrize(
    ("instance", "precision", "words"),
    [
        ("m5.large", "fp16", "fp16 needs a GPU"),
        ("p2.8xlarge", "fp16", "no tensor cores for fp16"),
        ("p2.8xlarge", "fp32", None),
        ("g4dn.12xlarge", "bf16", "a T4 has no bf16"),
        ("g5.12xlarge", "bf16", None),
        ("g5.12xlarge", "fp8", "A10G has no fp8"),
        ("m5.large", "fp8", "fp8 needs a GPU"),
        ("m5.large", "auto", None),
    ],
)
def test_precision_against_the_gpu_of_the_pool(
    instance: str, precision: str, words: str | None, tmp_path: pathlib.Path
) -> None:
    cluster, config = master(), experiment("smoke.yaml")
    put(cluster, f"{POOL}.instance_type", instance)
    put(cluster, f"{POOL}.cpu_slots_allowed", True)
    put(config, "resources.resource_pool", V100_SPOT)
    put(config, "hyperparameters.precision", precision)
    found = findings(tmp_path, config, cluster)
    assert [finding.key for finding in found] == ["hyperparameters.precision"] * bool(words)
    assert not words or words in found[0].problem


def test_context_that_is_too_large(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    assert check.CONTEXT_LIMIT == 95 * 2**20
    (tmp_path / "weights.bin").write_bytes(bytes(3000))
    monkeypatch.setattr(check, "CONTEXT_LIMIT", 2000)
    assert ".detignore" in next(check.check_context(tmp_path)).problem
    (tmp_path / ".detignore").write_text("*.bin\n")
    assert list(check.check_context(tmp_path)) == []


def test_exit_status_and_json(capsys: pytest.CaptureFixture, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text((ROOT / "configs" / "smoke.yaml").read_text().replace("labels:", "lables:"))
    arguments = [str(path), "--context", str(ROOT)]
    assert check.main(arguments) == 2
    line = capsys.readouterr().out.splitlines()
    assert line == [f"{path}: lables: unknown key; did you mean 'labels'?"]
    assert check.main([*arguments, "--json"]) == 2
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert finding == {
        "file": str(path),
        "key": "lables",
        "problem": "unknown key; did you mean 'labels'?",
    }
    assert check.main([str(tmp_path / "none.yaml"), "--context", str(tmp_path)]) == 2
    assert "cannot read it" in capsys.readouterr().out


def test_slot_map_and_pools() -> None:
    slots = machines.DETERMINED_SLOTS
    assert (slots["p3.16xlarge"], slots["p4d.24xlarge"], slots["m5.large"]) == (8, 8, 0)
    assert not {"p5.48xlarge", "g6e.48xlarge", "g6e.xlarge"} & set(slots)
    assert not set(slots) & set(machines.EC2_GPUS)
    pools = masterconf.pools(master())
    spot = pools[V100_SPOT]
    assert (spot.slots_per_agent, spot.max_agents, spot.spot) == (8, 64, True)
    assert (spot.gpu.gigabytes, spot.gpu.has_bf16) == (16, False)
    assert (pools["aws-p3-16xlarge"].spot, pools["aux-cpu"].slots_per_agent) == (False, 0)
    modern = masterconf.pools(master("master-aws-modern.yaml"))
    assert modern["aws-p5-48xlarge"].slots_per_agent == 8


def test_shapes_count_the_parameters_of_the_library() -> None:
    for size, config in estimates.KNOWN_CONFIGS.items():
        if "xlarge" in size:
            continue  # the same formula; building them takes seconds
        with torch.device("meta"):
            model = AlbertForQuestionAnswering(AlbertConfig(**config))
        exact = sum(p.numel() for p in model.parameters())
        shape = estimates.model_shape({"model": size}, ROOT)
        assert shape.parameters == pytest.approx(exact, rel=1e-3)
    tiny = estimates.model_shape({"model": "embedded/albert-tiny"}, ROOT)
    assert (tiny.hidden_size, tiny.num_hidden_layers) == (128, 4)
    assert estimates.model_shape({"model": "bert-base-uncased"}, ROOT) is None


def test_estimates_of_the_published_runs() -> None:
    shape = estimates.model_shape({"model": "albert/albert-xxlarge-v2"}, ROOT)
    v100, h100 = machines.FAMILIES["p3"], machines.FAMILIES["p5"]
    # Published: 92.75 windows a second on 64 V100, so 2.76 s for 256.
    assert estimates.seconds_per_step(shape, v100, 64, 256, 384) == pytest.approx(2.76, abs=0.01)
    assert 1024 < estimates.largest_token_budget(shape, v100, 64, half=True) < 4096
    assert estimates.largest_token_budget(shape, v100, 1, half=False) < 4096
    assert estimates.largest_token_budget(shape, h100, 8, half=True) > 8192


def paths(node: Any, prefix: str = "") -> list[str]:
    """Every key of a config, as `put` takes them."""
    if isinstance(node, dict):
        inner = [(f"{prefix}.{key}" if prefix else str(key), value) for key, value in node.items()]
    elif isinstance(node, list):
        inner = [(f"{prefix}[{number}]", value) for number, value in enumerate(node)]
    else:
        return []
    return [path for key, value in inner for path in (key, *paths(value, key))]


@pytest.mark.parametrize("odd", [[], {}, "odd", -1, 2.5, True, [1], {"type": "log"}, [{}]], ids=str)
def test_no_value_anywhere_breaks_the_checker(odd: Any) -> None:
    """Whatever stands at a key, the answer is findings and not a traceback."""
    pools = masterconf.pools(master())
    for name in ("lr_search.yaml", "distributed64.yaml"):
        for path in paths(experiment(name)):
            config = experiment(name)
            put(config, path, odd)
            list(check.check_one("job.yaml", config, pools, "aws-p3-16xlarge", ROOT))
    for path in paths(master()):
        config = master()
        put(config, path, odd)
        list(masterconf.check_master("master.yaml", config))
        masterconf.pools(config)

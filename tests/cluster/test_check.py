"""`python -m cluster.check`: clean on what ships, its exit status, mistakes that are planted, and
what cannot break it."""

import copy
import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster import check
from cluster.configs import masterconf
from cluster.configs.fleet import machines_at_start
from cluster.configs.schema import PLACEHOLDER
from cluster.configs.values import Finding
from detalbert.errors import UserError
from detalbert.settings.schema import as_a_master_reads
from detalbert.training.metrics import RunMetrics
from tests.cluster.planted import checked, experiment, filled, findings, master, put
from tests.conftest import ROOT
from workloads import choose

MASTERS = sorted((ROOT / "cluster").glob("master-*.yaml"))
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))


@pytest.mark.slow
@pytest.mark.parametrize("path", MASTERS, ids=[path.name for path in MASTERS])
def test_every_config_is_clean_on_every_master(path, tmp_path):
    """A config that names a pool takes the widest one of a master that has none of that name,
    unless its model was laid out for the GPUs of its own, or its head asks for larger ones."""
    cluster = filled(path)
    machines = {}
    for pool in cluster["resource_pools"]:
        provider = pool.get("provider", {})
        machines[pool["pool_name"]] = provider.get("max_instances", 0)
    widest = max(machines, key=machines.__getitem__)
    problems = []
    for config in CONFIGS:
        content = filled(config)
        resources = content.setdefault("resources", {})
        if resources.get("resource_pool", widest) not in machines:
            if "layout" in content["hyperparameters"] or config.name == "modern8.yaml":
                continue
            resources["resource_pool"] = widest
        for finding in findings(tmp_path, content, cluster):
            needs_more = "24 GB or more" in config.read_text() and "16 GB of a V100" in str(finding)
            if not needs_more:
                problems.append(f"{config.name}: {finding}")
    assert problems == []


def test_every_pool_that_a_config_names_is_there():
    pools = set()
    for path in MASTERS:
        pools |= {pool["pool_name"] for pool in filled(path)["resource_pools"]}
    for path in CONFIGS:
        resources = yaml.safe_load(path.read_text())["resources"]
        assert resources.get("resource_pool") in {None, *pools}, path


def errors(found: Iterable[Finding]) -> list[Finding]:
    """Return the findings that are no warnings."""
    return [finding for finding in found if not finding.warning]


def test_what_ships_is_refused_until_filled_in(tmp_path):
    for path in MASTERS:
        unfilled = errors(checked(master=path))
        text = re.sub(r"#.*", "", path.read_text())
        assert unfilled
        assert len(unfilled) == len(PLACEHOLDER.findall(text))
        assert all("is not filled in" in finding.detail for finding in unfilled)
        assert findings(tmp_path, cluster=filled(path)) == []
        # A master config given in an experiment's place is known for what it is.
        assert errors(checked(path)) == unfilled
    template = yaml.safe_load((ROOT / "cluster" / "template-site.yaml").read_text())
    keys = {finding.key for finding in check.placeholders(template)}
    assert "bind_mounts[0].host_path" in keys


def test_configs_that_name_a_place_of_yours_are_refused_until_it_is_filled_in():
    unfilled = errors(checked(*CONFIGS))

    assert {Path(finding.file).stem for finding in unfilled} == {
        "finetune_pretrained",
        "lm_125m",
        "lm_13b",
        "lm_1b",
        "pretrain_base",
        "pretrain_large",
        "pretrain_mlm",
        "questions",
    }
    places = {
        "placeholder my-bucket",
        "placeholder my-pretrained-checkpoint",
        "placeholder my-questions",
    }
    assert {finding.detail.split(" is ")[0] for finding in unfilled} == places


def test_a_retired_type_is_warned_of_in_a_master_and_in_its_experiments(tmp_path):
    path = tmp_path / "master.yaml"
    path.write_text(json.dumps(master()))
    warnings = checked(ROOT / "configs" / "distributed64.yaml", master=path)

    assert [finding.key for finding in warnings] == [
        "resource_pools[0].provider.instance_type",
        "resource_pools[1].provider.instance_type",
        "resources.resource_pool",
    ]
    problem = "AWS launches no p3.16xlarge since 25 May 2026; take another type"
    for finding in warnings:
        assert finding.warning
        assert finding.detail.endswith(problem)

    path.write_text(json.dumps(master("master-aws-modern.yaml")))
    assert checked(ROOT / "configs" / "modern64.yaml", master=path) == []


def test_set_changes_every_experiment_as_it_is_submitted(capsys, tmp_path):
    path = tmp_path / "master.yaml"
    path.write_text(json.dumps(master("master-aws-modern.yaml")))
    job = str(ROOT / "configs" / "modern8.yaml")
    arguments = [job, "--master", str(path), "--context", str(tmp_path)]

    assert check.main(arguments) == 0
    assert "1 p5.48xlarge (on demand)" in capsys.readouterr().out

    spot = ["--set", "resources.resource_pool=aws-spot-p5-48xlarge"]
    assert check.main([*arguments, *spot]) == 0
    assert "1 p5.48xlarge (spot)" in capsys.readouterr().out
    assert check.main([*arguments, *spot, "--set", "hyperparameters.spot_notice=false"]) == 2
    assert f"{job}: hyperparameters.spot_notice: pool" in capsys.readouterr().out

    assert check.main([*arguments, "--set", "nothing"]) == 2
    line = "cluster.check: error: --set nothing: expected key.path=value\n"
    assert capsys.readouterr().err == line


def test_exit_status_and_json(capsys, tmp_path):
    path = tmp_path / "job.yaml"
    smoke = (ROOT / "configs" / "smoke.yaml").read_text()
    path.write_text(smoke.replace("labels:", "lables:"))
    arguments = [str(path), "--context", str(ROOT)]

    assert check.main(arguments) == 2
    line, left_out = capsys.readouterr().out.splitlines()
    assert line == f"{path}: lables: unknown key; did you mean 'labels'?"
    assert left_out.startswith("not checked: whether images, ")

    assert check.main([*arguments, "--json"]) == 2
    answer = json.loads(capsys.readouterr().out)
    problem = "unknown key; did you mean 'labels'?"
    assert answer["findings"] == [{"file": str(path), "key": "lables", "problem": problem}]
    assert answer["warnings"] == []
    assert answer["plans"] == []
    assert len(answer["not_checked"]) > 2

    path.write_text(smoke + "records_per_epoch: 5\n")
    assert check.main(arguments) == 0
    out = capsys.readouterr().out
    assert f"{path}: records_per_epoch: warning: deprecated" in out
    assert "nothing to fix" in out

    assert check.main([str(tmp_path / "none.yaml"), "--context", str(tmp_path)]) == 2
    assert "none.yaml: no such file" in capsys.readouterr().err


def test_an_empty_mapping_is_checked_too(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text("{}")
    assert {"entrypoint", "searcher"} <= {finding.key for finding in checked(path)}
    assert {finding.key for finding in checked(master=path)} == {
        "checkpoint_storage",
        "security.initial_user_password",
    }


def test_template_and_master_fill_in(capsys, tmp_path):
    """What the check is told of: image, pool, machines at the start and their price an hour."""
    job = tmp_path / "job.yaml"
    cluster = tmp_path / "master.yaml"
    template = tmp_path / "template.yaml"
    config = experiment("distributed64.yaml")
    config.pop("environment", None)
    job.write_text(yaml.safe_dump(config))
    master_config = master()
    master_config["resource_pools"][0]["provider"] |= {"max_instances": 9, "region": "us-east-1"}
    master_config.get("task_container_defaults", {}).pop("image", None)
    cluster.write_text(yaml.safe_dump(master_config))
    arguments = [str(job), "--master", str(cluster), "--context", str(tmp_path)]

    assert check.main(arguments) == 2
    assert f"{job}: environment.image: neither the experiment nor" in capsys.readouterr().out

    template.write_text("environment: {image: {cuda: registry/a:1}}\n")
    assert check.main([*arguments, "--template", str(template)]) == 0
    plan = "pool aws-spot-p3-16xlarge: 8 to 9 p3.16xlarge (spot) at the start"
    out = capsys.readouterr().out
    assert f"{job}: image registry/a:1; {plan}, $58.75 to $66.10 an hour" in out


def paths(node: object, prefix: str = "") -> list[str]:
    """Return every key of a config, as `put` takes them."""
    values: dict[str, object] = {}
    if isinstance(node, dict):
        dotted = f"{prefix}." if prefix else ""
        values = {f"{dotted}{key}": value for key, value in node.items()}
    elif isinstance(node, list):
        values = {f"{prefix}[{number}]": value for number, value in enumerate(node)}
    keys = []
    for key, value in values.items():
        keys += [key, *paths(value, key)]
    return keys


ODD: list[Any] = [[], {}, "odd", -1, {"type": "log"}, [{}]]
MORE = [pytest.param(value, marks=pytest.mark.soak) for value in (2.5, True, [1])]


@pytest.mark.slow
@pytest.mark.parametrize("odd", [*ODD, *MORE], ids=str)
def test_no_value_anywhere_breaks_the_checker(odd):
    """Whatever stands at a key, the answer is findings and not a traceback."""
    cluster = masterconf.cluster_of(master())
    pool = cluster.pools["aws-p3-16xlarge"]
    search = experiment("lr_search.yaml")
    del search["hyperparameters"]["global_batch_size"]["vals"][1:-1]  # each takes its time
    for job in (search, experiment("distributed64.yaml")):
        for path in paths(job):
            config = copy.deepcopy(job)
            put(config, path, odd)
            list(check.check_one(config, cluster, ROOT))
            machines_at_start(config, pool)
    for path in paths(master()):
        config = master()
        put(config, path, odd)
        list(masterconf.check_master(config))
        masterconf.cluster_of(config)


@pytest.mark.parametrize(
    ("name", "metric", "smaller"),
    [
        ("lm_local", "loss", True),
        ("lm_local", "perplexity", True),
        ("lm_local", "bits_per_byte", True),
        ("lm_local", "accuracy", False),
        ("pretrain_local", "mlm_loss", True),
        ("single", "loss", True),
        ("single", "f1", False),
    ],
)
def test_which_way_a_metric_is_better(name, metric, smaller, tmp_path):
    """One answer for the check, for a run whose config names no direction (the master's default),
    and for its best."""
    config = experiment(f"{name}.yaml")
    config["searcher"] |= {"metric": metric, "smaller_is_better": smaller}
    assert findings(tmp_path, config) == []

    config["searcher"]["smaller_is_better"] = not smaller
    (finding,) = findings(tmp_path, config)
    advice = f"would keep the worst {metric}; set smaller_is_better: {str(smaller).lower()}"
    assert finding.key == "searcher.smaller_is_better"
    assert finding.detail == advice

    del config["searcher"]["smaller_is_better"]
    config = as_a_master_reads(config)
    values = {**config["hyperparameters"], "model": None, "model_config": {}}
    if not smaller:
        with pytest.raises(UserError) as error:
            choose(config).read(config, values)
        assert str(error.value) == f"{finding.key}: {advice}"
    metrics = RunMetrics(tmp_path, {"metric": metric, "smaller_is_better": smaller})
    metrics.validations = [{"steps": step, metric: float(step)} for step in (1, 2)]
    first, second = metrics.validations
    assert metrics.best() == (first if smaller else second)


def test_without_re2_the_pip_command_is_said(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "re2", None)
    assert check.main([str(ROOT / "configs" / "single.yaml")]) == 2
    problem = "re2 is not installed; run pip install -r cluster/requirements.txt"
    assert capsys.readouterr().err == f"cluster.check: error: {problem}\n"


PRINTED = yaml.safe_load((ROOT / "tests" / "cluster" / "printed_masters.yaml").read_text())


@pytest.mark.parametrize("name", PRINTED)
def test_what_a_master_prints_of_its_own_config_is_not_refused(name, tmp_path):
    config = PRINTED["default"] | PRINTED[name]
    assert errors(findings(tmp_path, cluster=config)) == []


def test_values_of_the_helm_chart_are_known_for_what_they_are():
    path = ROOT / "cluster" / "kubernetes-values.yaml"
    for problems in (checked(master=path), checked(path)):
        (finding,) = [finding for finding in problems if "placeholder" not in finding.detail]
        assert finding.key == "file"
        assert finding.detail.startswith("this is a values.yaml of the Helm chart, not a master")


def test_a_part_of_the_helm_values_is_enough(tmp_path):
    """Such as a site's file that replaces some of them."""
    values = {"db": {"hostAddress": "h"}, "resourcePools": [{"pool_name": "default"}]}
    (finding,) = findings(tmp_path, cluster=values)
    assert finding.detail.startswith("this is a values.yaml of the Helm chart, not a master")


def test_an_unknown_key_hides_no_mistake(tmp_path):
    """Nor does one mistake hide another."""
    config = experiment("smoke.yaml")
    config["hyperparameters"] |= {"my_own": 1, "epochs": "two", "seed": -1}
    config["data"] |= {"max_train_examples": 0, "cache_di": "x"}

    warnings = {finding.key: finding.warning for finding in findings(tmp_path, config)}

    assert warnings == {
        "hyperparameters.my_own": True,
        "hyperparameters.epochs": False,
        "hyperparameters.seed": False,
        "data.max_train_examples": False,
        "data.cache_di": False,
    }


CASES = yaml.safe_load((ROOT / "tests" / "cluster" / "mistakes.yaml").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['in']}: {case['set']}"[:60])
def test_a_planted_mistake_is_named(case, tmp_path):
    of_master = case["in"].startswith("master-")
    name = f"{case['in']}.yaml"
    config = master(name) if of_master else experiment(name)
    for key, value in case["set"].items():
        put(config, key, value)
    cluster = config if of_master else master(f"{case.get('with', 'master-aws-spot')}.yaml")
    if "type" in case:
        put(cluster, "resource_pools[0].provider.instance_type", case["type"])
        put(cluster, "resource_pools[0].provider.cpu_slots_allowed", True)

    problems = findings(tmp_path, None if of_master else config, cluster)

    if case["says"] is None:
        assert problems == []
        return
    named = [finding for finding in problems if finding.key == case["key"]]
    assert len(named) == 1, problems
    (finding,) = named
    assert case["says"] in finding.detail, problems
    assert finding.file.endswith("master.yaml" if of_master else "job.yaml")
    assert "\n" not in str(finding)

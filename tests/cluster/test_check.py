"""`python -m cluster.check`: clean on what ships, its exit status, mistakes that are planted, and
what cannot break it."""

import copy
import json
import re
import sys
from typing import Any

import pytest
import yaml

from cluster import check
from cluster.configs import masterconf, uploads
from cluster.configs.fleet import machines_at_start
from cluster.configs.schema import PLACEHOLDER
from detalbert.training.metrics import RunMetrics
from tests.cluster.planted import checked, experiment, filled, findings, master, put
from tests.conftest import ROOT
from workloads import choose

MASTERS = sorted((ROOT / "cluster").glob("master-*.yaml"))
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))


@pytest.mark.parametrize("path", MASTERS, ids=[path.name for path in MASTERS])
def test_every_config_is_clean_on_every_master(path, tmp_path):
    """A config that names a pool takes the widest one of a master that has none of that name,
    unless its model was laid out for the GPUs of its own."""
    cluster = filled(path)
    pools = {pool["pool_name"]: pool for pool in cluster["resource_pools"]}
    widest = max(pools, key=lambda name: pools[name].get("provider", {}).get("max_instances", 0))
    problems = []
    for config in CONFIGS:
        content = filled(config)
        resources = content.setdefault("resources", {})
        if resources.get("resource_pool", widest) not in pools:
            if "layout" in content["hyperparameters"] or config.name == "modern8.yaml":
                continue
            resources["resource_pool"] = widest
        found = findings(tmp_path, content, cluster)
        problems += [f"{config.name}: {finding}" for finding in found]
    assert problems == []


def test_every_pool_that_a_config_names_is_there():
    there = {pool["pool_name"] for path in MASTERS for pool in filled(path)["resource_pools"]}
    wanted = [yaml.safe_load(path.read_text())["resources"] for path in CONFIGS]
    assert {one["resource_pool"] for one in wanted if "resource_pool" in one} <= there


def test_what_ships_is_refused_until_filled_in(tmp_path):
    for path in MASTERS:
        left = [one for one in checked(master=path) if not one.warning]
        text = re.sub(r"#.*", "", path.read_text())
        assert left and len(left) == len(PLACEHOLDER.findall(text))
        assert all("is not filled in" in finding.detail for finding in left)
        assert findings(tmp_path, cluster=filled(path)) == []
        # A master config given in an experiment's place is known for what it is.
        assert [one for one in checked(path) if not one.warning] == left
    template = yaml.safe_load((ROOT / "cluster" / "template-site.yaml").read_text())
    keys = {finding.key for finding in check.placeholders(template)}
    assert "bind_mounts[0].host_path" in keys


def test_configs_that_name_a_place_of_yours_are_refused_until_it_is_filled_in():
    left = [one for one in checked(*CONFIGS) if not one.warning]
    named = "finetune_pretrained lm_125m lm_13b lm_1b pretrain_base pretrain_large pretrain_mlm"
    assert {one.file.rpartition("/")[2] for one in left} == {f"{x}.yaml" for x in named.split()}
    places = {"placeholder my-bucket", "placeholder my-pretrained-checkpoint"}
    assert {one.detail.split(" is ")[0] for one in left} == places


def test_a_retired_type_is_warned_of_in_a_master_and_in_its_experiments(tmp_path):
    path = tmp_path / "master.yaml"
    path.write_text(json.dumps(master()))
    found = checked(ROOT / "configs" / "distributed64.yaml", master=path)
    said = "AWS launches no p3.16xlarge since 25 May 2026; take another type"
    keys = [f"resource_pools[{n}].provider.instance_type" for n in (0, 1)]
    assert [one.key for one in found] == [*keys, "resources.resource_pool"]
    assert all(one.detail.endswith(said) and one.warning for one in found)
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
    said = "cluster.check: error: --set nothing: expected key.path=value\n"
    assert capsys.readouterr().err == said


def test_context_that_is_too_large(monkeypatch, tmp_path):
    assert uploads.CONTEXT_LIMIT == 95 * 2**20
    (tmp_path / "weights.bin").write_bytes(bytes(3000))
    monkeypatch.setattr(uploads, "CONTEXT_LIMIT", 2000)
    names, finding = uploads.read_upload(tmp_path)
    assert names == set() and ".detignore" in finding.detail
    (tmp_path / ".detignore").write_text("*.bin\n")
    assert uploads.read_upload(tmp_path) == (set(), None)


SOURCES = {
    "own.csv": None,
    "sub/*.csv": None,
    "sub": None,
    "generated": None,
    "squad_v2": None,
    "train-v2.0.json": None,
    "s3://bucket/mine.csv": None,
    "/mnt/mine.csv": None,
    "data/mine.csv": "is not uploaded: .detignore leaves it out; move it, to questions/mine.csv",
    "gone.csv": "gone.csv: no such file in ",
    "./gone.jsonl.gz": "no such file in ",
}


@pytest.mark.parametrize("source", SOURCES)
def test_data_that_a_container_will_not_have(source, tmp_path):
    for name in ("own.csv", "sub/a.csv", "data/mine.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("question,context\n")
    (tmp_path / ".detignore").write_text("/data/\n")
    names, _ = uploads.read_upload(tmp_path)
    for data in ({"train": source}, {"text": [{"source": source, "weight": 1}]}):
        config = {"entrypoint": "python3 train.py", "data": data}
        problems = [finding.detail for finding in uploads.check_data(config, names, tmp_path)]
        problem = SOURCES[source]
        assert len(problems) == (problem is not None)
        assert problem is None or problem in problems[0]


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("albert-base-v2", None),
        ("org/name@refs/pr/1", None),
        ("own", None),
        ("./own/", None),
        ("runs/local", "runs/local is not uploaded: .detignore leaves it out; move it"),
        ("./gone", "./gone: no such file in "),
        ("a/b/gone", "a/b/gone: no such file in "),
        ("/mnt/model", None),
        ("mounted/model", None),
    ],
)
def test_models_and_tokenizers_that_a_container_will_not_have(address, problem, tmp_path):
    for name in ("own/config.json", "runs/local/config.json", "mounted/model/config.json"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("{}")
    (tmp_path / ".detignore").write_text("/runs/\n/mounted/\n")
    names, _ = uploads.read_upload(tmp_path)
    mounts = [{"host_path": "/mnt", "container_path": "mounted"}]
    for key, config in {
        "hyperparameters.model": {"hyperparameters": {"model": address}},
        "data.tokenizer": {"data": {"tokenizer": address, "text": "s3://bucket/text"}},
    }.items():
        config |= {"entrypoint": "python3 train.py", "bind_mounts": mounts}
        found = list(uploads.check_data(config, names, tmp_path))
        assert [finding.key for finding in found] == ([key] if problem else [])
        assert all(finding.detail.startswith(problem) for finding in found)


def test_files_that_a_prediction_names(tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "model.safetensors").write_text("")
    (tmp_path / "own.csv").write_text("question,context\n")
    (tmp_path / ".detignore").write_text("/runs/\n")
    names, _ = uploads.read_upload(tmp_path)
    for words, keys in (
        ("--model model:a:1 --data own.csv", []),
        ("--model=trial:7 --data=dev-v2.0.json", []),
        ("--model runs --data 'gone.csv'", ["entrypoint", "entrypoint"]),
    ):
        config = {"entrypoint": f"python3 predict.py {words}"}
        found = uploads.check_data(config, names, tmp_path)
        assert [finding.key for finding in found] == keys


def test_exit_status_and_json(capsys, tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text((ROOT / "configs" / "smoke.yaml").read_text().replace("labels:", "lables:"))
    arguments = [str(path), "--context", str(ROOT)]
    assert check.main(arguments) == 2
    line, left_out = capsys.readouterr().out.splitlines()
    assert line == f"{path}: lables: unknown key; did you mean 'labels'?"
    assert left_out.startswith("not checked: whether images, ")
    assert check.main([*arguments, "--json"]) == 2
    said = json.loads(capsys.readouterr().out)
    problem = "unknown key; did you mean 'labels'?"
    assert said["findings"] == [{"file": str(path), "key": "lables", "problem": problem}]
    assert said["warnings"] == said["plans"] == [] and len(said["not_checked"]) > 2
    path.write_text((ROOT / "configs" / "smoke.yaml").read_text() + "records_per_epoch: 5\n")
    assert check.main(arguments) == 0
    out = capsys.readouterr().out
    assert f"{path}: records_per_epoch: warning: deprecated" in out and "nothing to fix" in out
    assert check.main([str(tmp_path / "none.yaml"), "--context", str(tmp_path)]) == 2
    assert "cannot read it" in capsys.readouterr().out


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
    job, cluster, template = (tmp_path / f"{name}.yaml" for name in ("job", "master", "template"))
    config = experiment("distributed64.yaml")
    config.pop("environment", None)
    job.write_text(yaml.safe_dump(config))
    changed = master()
    changed["resource_pools"][0]["provider"] |= {"max_instances": 9, "region": "us-east-1"}
    changed.get("task_container_defaults", {}).pop("image", None)
    cluster.write_text(yaml.safe_dump(changed))
    arguments = [str(job), "--master", str(cluster), "--context", str(tmp_path)]
    assert check.main(arguments) == 2
    assert f"{job}: environment.image: neither the experiment nor" in capsys.readouterr().out
    template.write_text("environment: {image: {cuda: registry/a:1}}\n")
    assert check.main([*arguments, "--template", str(template)]) == 0
    plan = "pool aws-spot-p3-16xlarge: 8 to 9 p3.16xlarge (spot) at the start"
    out = capsys.readouterr().out
    assert f"{job}: image registry/a:1; {plan}, $58.75 to $66.10 an hour" in out


def paths(node: Any, prefix: str = "") -> list[str]:
    """Every key of a config, as `put` takes them."""
    if isinstance(node, dict):
        inner = [(f"{prefix}.{key}" if prefix else str(key), value) for key, value in node.items()]
    elif isinstance(node, list):
        inner = [(f"{prefix}[{number}]", value) for number, value in enumerate(node)]
    else:
        return []
    return [path for key, value in inner for path in (key, *paths(value, key))]


ODD: list[Any] = [[], {}, "odd", -1, {"type": "log"}, [{}]]
MORE = [pytest.param(value, marks=pytest.mark.soak) for value in (2.5, True, [1])]


@pytest.mark.parametrize("odd", [*ODD, *MORE], ids=str)
def test_no_value_anywhere_breaks_the_checker(odd):
    """Whatever stands at a key, the answer is findings and not a traceback."""
    pools, search = masterconf.cluster_of(master()), experiment("lr_search.yaml")
    del search["hyperparameters"]["global_batch_size"]["vals"][1:-1]  # each takes its time
    for job in (search, experiment("distributed64.yaml")):
        for path in paths(job):
            config = copy.deepcopy(job)
            put(config, path, odd)
            list(check.check_one(config, pools, ROOT))
            machines_at_start(config, pools.pools["aws-p3-16xlarge"])
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
    """One answer for the check, for a run whose config names no direction, and for its best."""
    config = experiment(f"{name}.yaml")
    config["searcher"] |= {"metric": metric, "smaller_is_better": smaller}
    assert findings(tmp_path, config) == []
    config["searcher"]["smaller_is_better"] = not smaller
    (finding,) = findings(tmp_path, config)
    advice = f"would keep the worst {metric}; set smaller_is_better: {str(smaller).lower()}"
    assert finding.key == "searcher.smaller_is_better" and finding.detail == advice
    del config["searcher"]["smaller_is_better"]
    choose(config).read(config, config["hyperparameters"])
    metrics = RunMetrics(tmp_path, config["searcher"])
    metrics.validations = [{"steps": step, metric: float(step)} for step in (1, 2)]
    assert metrics.best() == metrics.validations[0 if smaller else 1]


def test_without_re2_the_pip_command_is_said(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "re2", None)
    assert check.main([str(ROOT / "configs" / "single.yaml")]) == 2
    said = (
        "cluster.check: error: re2 is not installed; run pip install -r cluster/requirements.txt\n"
    )
    assert capsys.readouterr().err == said


PRINTED = yaml.safe_load((ROOT / "tests" / "cluster" / "printed_masters.yaml").read_text())


@pytest.mark.parametrize("name", PRINTED)
def test_what_a_master_prints_of_its_own_config_is_not_refused(name, tmp_path):
    config = PRINTED["default"] | PRINTED[name]
    assert [one for one in findings(tmp_path, cluster=config) if not one.warning] == []


def test_values_of_the_helm_chart_are_known_for_what_they_are():
    path = ROOT / "cluster" / "kubernetes-values.yaml"
    for found in (checked(master=path), checked(path)):
        others = [one for one in found if "placeholder" not in one.detail]
        assert [one.key for one in others] == ["file"]
        assert others[0].detail.startswith("this is a values.yaml of the Helm chart, not a master")


def test_an_unknown_key_hides_no_mistake(tmp_path):
    """Nor does one mistake hide another."""
    config = experiment("smoke.yaml")
    config["hyperparameters"] |= {"my_own": 1, "epochs": "two", "seed": -1}
    config["data"] |= {"max_train_examples": 0, "cache_di": "x"}
    kinds = {finding.key: finding.warning for finding in findings(tmp_path, config)}
    wrong = ["hyperparameters.epochs", "hyperparameters.seed", "data.max_train_examples"]
    assert kinds == dict.fromkeys([*wrong, "data.cache_di"], False) | {
        "hyperparameters.my_own": True
    }


CASES = yaml.safe_load((ROOT / "tests" / "cluster" / "mistakes.yaml").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['in']}: {case['set']}"[:60])
def test_a_planted_mistake_is_named(case, tmp_path):
    of_master = case["in"].startswith("master-")
    config = (master if of_master else experiment)(f"{case['in']}.yaml")
    for where, value in case["set"].items():
        put(config, where, value)
    cluster = config if of_master else master(f"{case.get('with', 'master-aws-spot')}.yaml")
    if "type" in case:
        put(cluster, "resource_pools[0].provider.instance_type", case["type"])
        put(cluster, "resource_pools[0].provider.cpu_slots_allowed", True)
    found = findings(tmp_path, None if of_master else config, cluster)
    if case["says"] is None:
        assert found == []
        return
    named = [finding for finding in found if finding.key == case["key"]]
    assert len(named) == 1 and case["says"] in named[0].detail, found
    assert named[0].file.endswith("master.yaml" if of_master else "job.yaml")
    assert str(named[0]).count("\n") == 0

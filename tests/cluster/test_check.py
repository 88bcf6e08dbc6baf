"""`python -m cluster.check`: clean on what ships, its exit status, mistakes that are planted, and
what cannot break it."""

import copy
import json
import re
import subprocess

import pytest
import yaml

from cluster import check
from cluster.pools import configured_pools
from cluster.rules import ADVICE, PLACEHOLDER
from tests.cluster.planted import experiment, filled, master, problems, put
from tests.conftest import ROOT
from tests.test_escapes import is_harmless

MASTERS = sorted((ROOT / "cluster").glob("master-*.yaml"))
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
CASES = yaml.safe_load((ROOT / "tests" / "cluster" / "mistakes.yaml").read_text())
PRINTED = yaml.safe_load((ROOT / "tests" / "cluster" / "printed_masters.yaml").read_text())


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_is_clean_on_the_masters_that_have_its_pool(path):
    """Until its places are filled in, these are all that is found."""
    text = re.sub(r"#.*", "", path.read_text())
    unfilled = problems(yaml.safe_load(text))
    assert len(unfilled) == len(PLACEHOLDER.findall(text))
    assert all(problem.startswith("placeholder ") for problem in unfilled.values())

    config = filled(path)
    assert problems(config) == {}
    pool = config["resources"].get("resource_pool")
    clusters = [filled(path) for path in MASTERS]
    homes = [cluster for cluster in clusters if pool in configured_pools(cluster, "master.yaml")]
    assert homes or pool is None
    for cluster in homes:
        assert problems(config, cluster) == {}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['in']}: {case['set']}"[:60])
def test_a_planted_mistake_is_named(case):
    config = experiment(f"{case['in']}.yaml")
    for key, value in case["set"].items():
        put(config, key, value)
    cluster = master(f"{case['with']}.yaml") if "with" in case else None
    if "type" in case:
        put(cluster, "resource_pools[0].provider.instance_type", case["type"])
        put(cluster, "resource_pools[0].provider.cpu_slots_allowed", True)

    found = problems(config, cluster)

    if case["says"] is None:
        assert found == {}
    else:
        assert case["says"] in found[case["key"]], found


def test_a_files_name_breaks_no_line(capsys, tmp_path):
    path = tmp_path / "a\x1b[31m\nb\u202e.yaml"
    path.write_text("name: 5\n")
    assert check.main([str(path)]) == 2
    out, _ = capsys.readouterr()
    assert is_harmless(out)
    *lines, not_checked = out.splitlines()
    assert all("a\\x1b[31m b\\u202e.yaml: " in line for line in lines)
    assert not_checked.startswith("not checked: ")
    assert lines


def test_exit_status_lines_and_json(capsys, tmp_path):
    path = tmp_path / "job.yaml"
    smoke = (ROOT / "configs" / "smoke.yaml").read_text()
    own = smoke.replace("hyperparameters:", "hyperparameters:\n  my_own: 5")
    path.write_text(own.replace("labels:", "lables:"))
    arguments = [str(path), "--context", str(ROOT)]

    assert check.main(arguments) == 2
    problem, note, not_checked = capsys.readouterr().out.splitlines()
    assert problem == f"{path}: lables: unknown key; did you mean 'labels'?"
    assert note == f"{path}: hyperparameters.my_own: note: not a key of this package"
    assert "machines: no pools are known (--master FILE or --ask)" in not_checked

    assert check.main([*arguments, "--json"]) == 2
    answer = json.loads(capsys.readouterr().out)
    problem, note = answer["lines"]
    assert problem == {
        "file": str(path),
        "key": "lables",
        "problem": "unknown key; did you mean 'labels'?",
        "is_note": False,
    }
    assert note["key"] == "hyperparameters.my_own"
    assert note["is_note"]
    assert len(answer["not_checked"]) > 2

    path.write_text(own)
    assert check.main(arguments) == 0
    assert "nothing to fix in 1 file" in capsys.readouterr().out

    path.write_text("name: [")
    assert check.main(arguments) == 2
    assert capsys.readouterr().out.startswith(f"{path}: file: ")


def test_it_begins_soon(real_python):
    """Neither torch nor pandas nor Determined's client without need."""
    words = [real_python, "-X", "importtime", "-m", "cluster.check", "configs/single.yaml"]
    words += ["--master", "cluster/master-aws-modern.yaml"]
    run = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0
    imported = {line.split("|")[-1].strip() for line in run.stderr.splitlines()}
    assert "pydantic" in imported
    assert imported.isdisjoint({"torch", "transformers", "pandas", "determined"})


@pytest.mark.parametrize("name", PRINTED)
def test_pools_of_what_a_master_prints_of_its_own_config(name):
    """Its keys are all there, many of them null; a config that fits runs on its default pool."""
    config = PRINTED["default"] | PRINTED[name]
    pools = configured_pools(config, "master.yaml")
    assert pools
    smoke = experiment("smoke.yaml")
    smoke["resources"]["resource_pool"] = next(iter(pools))
    assert problems(smoke, config).keys() <= {"resources.resource_pool"}  # one may have no slots


def paths(node, prefix=""):
    """Return every key of a config, as `put` takes them."""
    values = {}
    if isinstance(node, dict):
        dotted = f"{prefix}." if prefix else ""
        values = {f"{dotted}{key}": value for key, value in node.items()}
    elif isinstance(node, list):
        values = {f"{prefix}[{number}]": value for number, value in enumerate(node)}
    keys = []
    for key, value in values.items():
        keys += [key, *paths(value, key)]
    return keys


ODD = [[], {}, "odd", -1, {"type": "log"}, [{}], 2.5, True, [1], {1: 2}]


@pytest.mark.slow
@pytest.mark.parametrize("odd", ODD, ids=str)
def test_no_value_anywhere_breaks_the_checker(odd):
    """Whatever stands at a key, the answer is problems and not a traceback."""
    pools = configured_pools(master(), "master.yaml")
    for name in ("lr_search.yaml", "distributed64.yaml"):
        _, problems = check.check_experiment(experiment(name), ROOT, pools)
        assert problems == []
        for path in paths(experiment(name)):
            config = copy.deepcopy(experiment(name))
            put(config, path, odd)
            read, _ = check.check_experiment(config, ROOT, pools)
            for rule in ADVICE:
                list(rule(read))


def test_an_unknown_key_hides_no_mistake(tmp_path, capsys):
    """Nor does one mistake hide another; a key that a modified train.py may read is a note."""
    config = experiment("smoke.yaml")
    config["hyperparameters"] |= {"my_own": 1, "epochs": "two", "seed": -1}
    config["data"] |= {"max_train_examples": 0, "cache_di": "x"}
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps(config))

    assert check.main([str(path), "--context", str(ROOT), "--json"]) == 2
    lines = json.loads(capsys.readouterr().out)["lines"]
    assert {line["key"]: line["is_note"] for line in lines} == {
        "hyperparameters.epochs": False,
        "hyperparameters.seed": False,
        "data.max_train_examples": False,
        "data.cache_di": False,
        "hyperparameters.my_own": True,
    }

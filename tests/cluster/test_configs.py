"""Every config in configs/: the published arithmetic. That all else is right says test_check."""

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import jsonschema
import pytest

from cluster.configs import rules
from cluster.configs.schema import SCHEMAS, check
from cluster.estimates.job import samples
from cluster.facts.published import WINDOWS
from detalbert.engine.optim import plan_steps
from detalbert.engine.order import TrainOrder
from detalbert.settings import schema
from detalbert.settings.hparams import HParams, parse_hparams
from pretrain.hparams import parse_pretrain_hparams
from tests.cluster.planted import experiment
from tests.conftest import ROOT

Schema: TypeAlias = dict[str, Any]


def load_schema(kind: str) -> Schema:
    return schema.load_schema(SCHEMAS[kind])


def hparams_of(name: str) -> HParams:
    return parse_hparams(experiment(name)["hyperparameters"])


@pytest.mark.parametrize(
    ("name", "slots", "batch", "rate", "steps", "warmup"),
    [
        ("single.yaml", 1, 48, 5e-5, 5509, 551),
        ("distributed8.yaml", 8, 48, 5e-5, 5509, 551),
        ("distributed64.yaml", 64, 256, 2e-4, 1033, 103),
        ("modern8.yaml", 8, 256, 2e-4, 1033, 103),
        ("modern64.yaml", 64, 256, 2e-4, 1033, 103),
    ],
)
def test_published_arithmetic(name, slots, batch, rate, steps, warmup):
    hparams = hparams_of(name)
    assert experiment(name)["resources"]["slots_per_trial"] == slots
    assert hparams.global_batch_size == batch
    assert hparams.epochs == 2
    assert hparams.learning_rate() == pytest.approx(rate, rel=1e-12)
    assert plan_steps(hparams, WINDOWS) == (steps, warmup)

    # The header of the file has the same figures.
    header, _, _ = (ROOT / "configs" / name).read_text().partition("\nname:")
    rate_text = f"{rate:.1e}".replace("e-0", "e-")
    for figure in (f"{steps:,}", str(warmup), str(batch), rate_text):
        assert figure in header, f"{figure} is not in the header of {name}"
    assert "Published" in header
    assert f"det experiment create configs/{name} ." in header


@pytest.mark.parametrize("size, slots", [("base", 8), ("large", 64)])
def test_published_arithmetic_of_pretraining(size, slots):
    config = experiment(f"pretrain_{size}.yaml")
    hparams = parse_pretrain_hparams(config["hyperparameters"])
    assert plan_steps(hparams, 10**6) == (125_000, 3_125)
    assert hparams.learning_rate() == pytest.approx(0.00176, rel=1e-12)
    assert hparams.global_batch_size == 4096
    assert hparams.max_seq_length == 512
    assert hparams.optimizer == "lamb"
    assert hparams.size == size
    assert config["resources"]["slots_per_trial"] == slots


def test_arithmetic_of_the_study_and_of_fine_tuning_its_models():
    study = parse_pretrain_hparams(experiment("pretrain_mlm.yaml")["hyperparameters"])
    assert not study.sentence_order
    assert study.global_batch_size * study.max_steps == 640_000

    fine_tuning = hparams_of("finetune_pretrained.yaml")
    assert plan_steps(fine_tuning, WINDOWS) == (8144, 814)
    assert fine_tuning.global_batch_size == 48
    assert fine_tuning.learning_rate() == pytest.approx(3e-5)


def test_64_slots_differ_from_8_in_what_the_study_changed():
    small = experiment("distributed8.yaml")
    large = experiment("distributed64.yaml")

    changed = set()
    for section in ("hyperparameters", "resources", "data", "searcher"):
        for key in small[section].keys() | large[section].keys():
            if small[section].get(key) != large[section].get(key):
                changed.add(key)

    hparams = {"global_batch_size", "lr_scale", "optimizer", "checkpoint_period", "spot_notice"}
    assert changed == hparams | {"slots_per_trial", "resource_pool"}
    assert large["hyperparameters"]["optimizer"] == "radam"


def test_the_smoke_config_runs_on_any_number_of_slots_up_to_16():
    smoke = hparams_of("smoke.yaml")
    for slots in (1, 2, 4, 8, 16):
        TrainOrder([192] * 64, smoke.global_batch_size, slots, seed=0)
    assert experiment("smoke.yaml")["data"]["train"] == "generated"
    assert (ROOT / smoke.model / "config.json").is_file()


def test_the_search_counts_in_the_steps_that_a_trial_trains():
    config = experiment("lr_search.yaml")
    searcher = config["searcher"]
    hyperparameters = config["hyperparameters"]
    assert searcher["max_time"] == hyperparameters["max_steps"]
    for power in range(searcher["max_rungs"]):
        rung = searcher["max_time"] // int(searcher["divisor"]) ** power
        assert rung % hyperparameters["validation_period"] == 0
    parsed = [parse_hparams(values) for values in samples(hyperparameters)]
    assert {256, 384, 512} < {hparams.global_batch_size for hparams in parsed}
    assert len(parsed) == 10
    assert hyperparameters["lr_scale"]["minval"] < 0.75 < hyperparameters["lr_scale"]["maxval"]


def resolved(node: Schema, schemas: Schema) -> Schema:
    """Return what a reference stands for, in our schema or between Determined's files."""
    reference = node.get("optionalRef") or node.get("$ref") or ""
    name = reference.rpartition("/")[2]
    return resolved(schemas[name], schemas) if name else node


class Described(NamedTuple):
    """A mapping that our schema and Determined's both describe."""

    where: str  # its dotted key, and in brackets its kind
    ours: set[str]  # keys
    determineds: set[str]


def walk(ours: Schema, theirs: Schema, schemas: Schema, where: str = "") -> Iterator[Described]:
    """Yield every mapping that both schemas describe, from `where` on."""
    ours = resolved(ours, load_schema("experiment")["definitions"])
    theirs = resolved(theirs, schemas)
    if isinstance(ours.get("items"), dict) and "items" in theirs:
        yield from walk(ours["items"], theirs["items"], schemas, where + "[]")
    elif any("then" in branch for branch in ours.get("allOf", [])):
        yield from walk_kinds(ours, theirs, schemas, where)
    elif ours.get("additionalProperties") is False and "properties" in theirs:
        yield Described(where, set(ours["properties"]), set(theirs["properties"]))
        for key, inner in ours["properties"].items():
            described = theirs["properties"].get(key)
            if isinstance(described, dict):
                yield from walk(inner, described, schemas, f"{where}.{key}")


def walk_kinds(ours: Schema, theirs: Schema, schemas: Schema, where: str) -> Iterator[Described]:
    """Yield each kind of a mapping whose keys depend on its `name` or `type`."""
    tag = "name" if "name" in ours["properties"] else "type"
    kinds = {}
    for branch in ours["allOf"]:
        condition = branch.get("if", {}).get("properties", {})
        if tag in condition:
            kinds[condition[tag]["const"]] = branch["then"]
    union = (theirs.get("then") or theirs)["union"]
    for item in union["items"]:
        kind = item["unionKey"].rpartition("=")[2]
        if kind in kinds:
            keys = set(kinds[kind]["propertyNames"]["enum"])
            properties = resolved(item, schemas)["properties"]
            yield Described(f"{where}({kind})", keys, set(properties))


def test_the_checkers_keys_are_determineds(shared):
    schemas = {}
    for path in (shared / "determined-schemas").glob("*.json"):
        schemas[path.name] = json.loads(path.read_text())
    experiment_schema = load_schema("experiment")

    places = set()
    for described in walk(experiment_schema, schemas["experiment.json"], schemas):
        where = described.where
        places.add(where)
        extra = {"stop_once", "max_length"} if where.startswith(".searcher") else set()
        extra |= {"prefer_gpu_topology"} if where == ".resources" else set()
        assert described.ours - extra == described.determineds - extra, where
    assert {"", ".resources", ".searcher(adaptive_asha)", ".checkpoint_storage(s3)"} < places

    for branch in experiment_schema["definitions"]["range"]["allOf"]:
        kind = branch["if"]["properties"]["type"]["const"]
        range_schema = schemas[f"hyperparameter-{kind}.json"]
        keys = branch["then"]
        assert set(keys["propertyNames"]["enum"]) == set(range_schema["properties"])
        assert {*keys["required"], "type"} == set(range_schema["required"])


def parts(node: object) -> Iterator[Schema]:
    """Yield every mapping in a schema."""
    children: list[object] = []
    if isinstance(node, dict):
        yield node
        children = list(node.values())
    elif isinstance(node, list):
        children = node
    for child in children:
        yield from parts(child)


@pytest.mark.parametrize("kind", ["experiment", "master"])
def test_the_schemas_themselves(kind):
    """They are JSON Schemas, and what jsonschema would say in words of its own has ours."""
    jsonschema.Draft7Validator.check_schema(load_schema(kind))
    for part in parts(load_schema(kind)):
        if "x-rule" in part:
            assert callable(getattr(rules, part["x-rule"]))
        if "$ref" in part:
            file, _, name = part["$ref"].partition("#/definitions/")
            path = SCHEMAS[kind].parent / file if file else SCHEMAS[kind]
            assert path.is_file()
            assert name in load_schema(path.stem)["definitions"]


# Schedules and durations, as the master's Go libraries parse them.


def schedule_problems(text: str) -> list[str]:
    problems = check({"retention_policy": {"schedule": text}}, kind="master")
    return [finding.detail for finding in problems if finding.key == "retention_policy.schedule"]


def test_schedules():
    good = ["60m", "0 5 * * *", "*/5 * * * *", "@daily", "@every 1h", "0 5 * * MON-FRI"]
    good += ["TZ=UTC 0 5 1,15 jan *", "0-30/10 ? * * 0", "05 5 * * *"]
    for text in good:
        assert schedule_problems(text) == [], text

    for text in ("daily", "0 5 * *", "@every 1d"):  # fields are the master's to judge
        assert schedule_problems(text), text


def test_durations():
    fits = re.compile(load_schema("master")["definitions"]["duration"]["pattern"]).search
    good = ["20m", "1h30m", "1.5h", ".5m", "1.s", "+3s", "0", "-5m", "1500ms", "2h45m0s", "1µs"]
    assert [text for text in good if not fits(text)] == []
    bad = ["", "10", "1d", "20 minutes", "0.5 h", "m", "-", "1e3s", ".s"]
    assert [text for text in bad if fits(text)] == []


def test_every_config_names_its_schema_to_editors():
    kinds = {
        "configs/*.yaml": "experiment",
        "cluster/template-*.yaml": "experiment",
        "cluster/master-*.yaml": "master",
    }
    for pattern, kind in kinds.items():
        for path in ROOT.glob(pattern):
            first, *_ = path.read_text().splitlines()
            name = first.removeprefix("# yaml-language-server: $schema=")
            assert (path.parent / name).resolve() == SCHEMAS[kind]

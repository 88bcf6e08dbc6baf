"""Every config in configs/: the published arithmetic. That all else is right says test_check."""

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from cluster.configs.schema import SCHEMAS, check
from cluster.estimates.job import samples
from cluster.facts.published import WINDOWS
from detalbert.engine.optim import plan_steps
from detalbert.engine.order import TrainOrder
from detalbert.settings import rules, schema
from detalbert.settings.experiment import single_values
from detalbert.settings.hparams import HParams, parse_hparams
from pretrain.hparams import parse_pretrain_hparams
from tests.cluster.planted import experiment
from tests.conftest import ROOT


def load_schema(kind: str) -> dict[str, Any]:
    return schema.load_schema(SCHEMAS[kind])


def hparams_of(name: str) -> HParams:
    return parse_hparams(single_values(experiment(name)["hyperparameters"]))


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
    assert (hparams.global_batch_size, hparams.epochs) == (batch, 2)
    assert hparams.learning_rate() == pytest.approx(rate, rel=1e-12)
    assert plan_steps(hparams, WINDOWS) == (steps, warmup)
    header = (ROOT / "configs" / name).read_text().split("\nname:")[0]
    for figure in (f"{steps:,}", str(warmup), str(batch), f"{rate:.1e}".replace("e-0", "e-")):
        assert figure in header, f"{figure} is not in the header of {name}"
    assert "Published" in header and f"det experiment create configs/{name} ." in header


def test_published_arithmetic_of_pretraining():
    for size, slots in (("base", 8), ("large", 64)):
        config = experiment(f"pretrain_{size}.yaml")
        hparams = parse_pretrain_hparams(config["hyperparameters"])
        assert plan_steps(hparams, 10**6) == (125_000, 3_125)
        assert hparams.learning_rate() == pytest.approx(0.00176, rel=1e-12)
        assert (hparams.global_batch_size, hparams.max_seq_length) == (4096, 512)
        assert (hparams.optimizer, hparams.size) == ("lamb", size)
        assert config["resources"]["slots_per_trial"] == slots
    study = parse_pretrain_hparams(experiment("pretrain_mlm.yaml")["hyperparameters"])
    assert not study.sentence_order and study.global_batch_size * study.max_steps == 640_000
    fine_tuning = hparams_of("finetune_pretrained.yaml")
    assert plan_steps(fine_tuning, WINDOWS) == (8144, 814)
    assert fine_tuning.global_batch_size == 48
    assert fine_tuning.learning_rate() == pytest.approx(3e-5)


def test_64_slots_differ_from_8_in_what_the_study_changed():
    eight, sixtyfour = experiment("distributed8.yaml"), experiment("distributed64.yaml")
    changed = {
        key
        for section in ("hyperparameters", "resources", "data", "searcher")
        for key in {**eight[section], **sixtyfour[section]}
        if eight[section].get(key) != sixtyfour[section].get(key)
    }
    hparams = {"global_batch_size", "lr_scale", "optimizer", "checkpoint_period", "spot_notice"}
    assert changed == hparams | {"slots_per_trial", "resource_pool"}
    assert sixtyfour["hyperparameters"]["optimizer"] == "radam"


def test_smoke_and_search():
    """One on any number of slots up to 16, one counted in the steps that a trial trains."""
    smoke = hparams_of("smoke.yaml")
    for slots in (1, 2, 4, 8, 16):
        TrainOrder([192] * 64, smoke.global_batch_size, slots, seed=0)
    assert experiment("smoke.yaml")["data"]["train"] == "generated"
    assert (ROOT / smoke.model / "config.json").is_file()
    config = experiment("lr_search.yaml")
    searcher, hyperparameters = config["searcher"], config["hyperparameters"]
    assert searcher["max_time"] == hyperparameters["max_steps"]
    for power in range(searcher["max_rungs"]):
        rung = searcher["max_time"] // int(searcher["divisor"]) ** power
        assert rung % hyperparameters["validation_period"] == 0
    parsed = [parse_hparams(values) for values in samples(hyperparameters)]
    assert {256, 384, 512} < {hparams.global_batch_size for hparams in parsed}
    assert len(parsed) == 10
    assert hyperparameters["lr_scale"]["minval"] < 0.75 < hyperparameters["lr_scale"]["maxval"]


def resolved(node: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    """What a reference stands for, in our schema or between Determined's files."""
    name = (node.get("optionalRef") or node.get("$ref") or "").rsplit("/", 1)[-1]
    return resolved(schemas[name], schemas) if name else node


def walk(ours: Any, theirs: Any, schemas: dict[str, Any], where: str):
    """Yields (where, our keys, Determined's keys) for every mapping that both describe."""
    ours = resolved(ours, load_schema("experiment")["definitions"])
    theirs = resolved(theirs, schemas)
    if isinstance(ours.get("items"), dict) and "items" in theirs:
        yield from walk(ours["items"], theirs["items"], schemas, where + "[]")
    elif any("then" in branch for branch in ours.get("allOf", [])):
        by = "name" if "name" in ours["properties"] else "type"
        kinds = {
            each["if"]["properties"][by]["const"]: each["then"]
            for each in ours["allOf"]
            if by in each.get("if", {}).get("properties", {})
        }
        for item in (theirs.get("then") or theirs)["union"]["items"]:
            kind = item["unionKey"].rsplit("=", 1)[-1]
            if kind in kinds:
                keys = set(kinds[kind]["propertyNames"]["enum"])
                item = resolved(item, schemas)
                yield f"{where}({kind})", keys, set(item["properties"])
    elif ours.get("additionalProperties") is False and "properties" in theirs:
        yield where, set(ours["properties"]), set(theirs["properties"])
        for key, inner in ours["properties"].items():
            if isinstance(theirs["properties"].get(key), dict):
                yield from walk(inner, theirs["properties"][key], schemas, f"{where}.{key}")


def test_the_checkers_keys_are_determineds(shared):
    files = (shared / "determined-schemas").glob("*.json")
    schemas = {path.name: json.loads(path.read_text()) for path in files}
    ours, seen = load_schema("experiment"), set()
    for where, keys, theirs in walk(ours, schemas["experiment.json"], schemas, ""):
        seen.add(where)
        extra = {"stop_once", "max_length"} if where.startswith(".searcher") else set()
        assert keys - extra == theirs - extra, where
    assert {"", ".resources", ".searcher(adaptive_asha)", ".checkpoint_storage(s3)"} < seen
    for branch in ours["definitions"]["range"]["allOf"]:
        theirs = schemas[f"hyperparameter-{branch['if']['properties']['type']['const']}.json"]
        assert set(branch["then"]["propertyNames"]["enum"]) == set(theirs["properties"])
        assert {*branch["then"]["required"], "type"} == set(theirs["required"])


def parts(node: Any) -> Iterator[dict[str, Any]]:
    """Every mapping in a schema."""
    if isinstance(node, dict):
        yield node
        node = list(node.values())
    for inner in node if isinstance(node, list) else ():
        yield from parts(inner)


@pytest.mark.parametrize("kind", ["experiment", "master"])
def test_the_schemas_themselves(kind):
    """They are JSON Schemas, and what jsonschema would say in words of its own has ours."""
    jsonschema.Draft7Validator.check_schema(load_schema(kind))
    for part in parts(load_schema(kind)):
        if "x-rule" in part:
            name = part["x-rule"] if isinstance(part["x-rule"], str) else part["x-rule"][0]
            assert callable(getattr(rules, name))
        if "$ref" in part:
            file, _, name = part["$ref"].partition("#/definitions/")
            path = SCHEMAS[kind].parent / file if file else SCHEMAS[kind]
            assert name in load_schema(path.stem)["definitions"] and path.is_file()


# Schedules and durations, as the master's Go libraries parse them.


def said_of_schedule(text: str) -> list[str]:
    found = check({"retention_policy": {"schedule": text}}, "master")
    return [finding.detail for finding in found if finding.key == "retention_policy.schedule"]


def test_schedules():
    good = ["60m", "0 5 * * *", "*/5 * * * *", "@daily", "@every 1h", "0 5 * * MON-FRI"]
    for text in [*good, "TZ=UTC 0 5 1,15 jan *", "0-30/10 ? * * 0", "05 5 * * *"]:
        assert said_of_schedule(text) == [], text
    bad = ["daily", "61 * * * *", "0 5 * * 7", "0 5 * *", "@every 1d", "5-1 * * * *", "*/0 * * * *"]
    for text in [*bad, "0 5 0 * *", "0 5 * 13 *", "- * * * *"]:
        assert said_of_schedule(text), text


def test_durations():
    fits = re.compile(load_schema("master")["definitions"]["duration"]["pattern"]).search
    good = ["20m", "1h30m", "1.5h", ".5m", "1.s", "+3s", "0", "-5m", "1500ms", "2h45m0s", "1µs"]
    assert [text for text in good if not fits(text)] == []
    bad = ["", "10", "1d", "20 minutes", "0.5 h", "m", "-", "1e3s", ".s"]
    assert [text for text in bad if fits(text)] == []


def test_every_config_names_its_schema_to_editors():
    names = {"configs/*.yaml": "experiment", "cluster/template-*.yaml": "experiment"}
    for pattern, kind in {**names, "cluster/master-*.yaml": "master"}.items():
        for path in ROOT.glob(pattern):
            name = path.read_text().splitlines()[0].removeprefix("# yaml-language-server: $schema=")
            assert (path.parent / name).resolve() == SCHEMAS[kind]

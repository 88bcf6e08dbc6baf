"""Every config in configs/: Determined's schemas, our dataclasses, the published arithmetic."""

import json
import pathlib
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
import referencing.jsonschema
import yaml

from cluster import expconf
from cluster.jobs import samples
from cluster.published import WINDOWS
from cluster.schema import Map, Seq, Union_
from detalbert.engine.optim import lr_factor, plan_steps
from detalbert.engine.order import TrainOrder
from detalbert.settings.experiment import check_sections, single_values
from detalbert.settings.hparams import HParams, parse_hparams
from model_def import FINE_TUNING
from pretrain.hparams import parse_pretrain_hparams
from tests.conftest import ROOT
from workloads import choose

BASE = "http://determined.ai/schemas/expconf/v0/"
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
ids = {"argvalues": CONFIGS, "ids": [path.name for path in CONFIGS]}


def load(name: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / "configs" / name).read_text())


def hparams_of(name: str) -> HParams:
    return parse_hparams(single_values(load(name)["hyperparameters"]))


def optional_ref(validator, target, value, _):
    if value is not None:
        yield from validator.descend(value, {"$ref": target})


def union(validator, rule, value, _):
    items = [{k: v for k, v in item.items() if k != "unionKey"} for item in rule["items"]]
    if not any(validator.evolve(schema=item).is_valid(value) for item in items):
        yield jsonschema.ValidationError(rule.get("defaultMessage", f"{value!r} fits none"))


def checks(validator, rules, value, _):
    for message, rule in rules.items():
        if not validator.evolve(schema=rule).is_valid(value):
            yield jsonschema.ValidationError(message)


def eventually(validator, keys, value, _):
    for key in keys if isinstance(value, dict) else ():
        if value.get(key) is None:
            yield jsonschema.ValidationError(f"{key} is missing")


def compare(validator, rule, value, _):
    if isinstance(value, dict) and rule["type"] in ("a<b", "a<=b"):
        a, b = value.get(rule["a"]), value.get(rule["b"])
        if a is not None and b is not None and not (a < b or (a == b and "=" in rule["type"])):
            yield jsonschema.ValidationError(f"{rule['a']} is not below {rule['b']}")


Validator = jsonschema.validators.extend(
    jsonschema.Draft7Validator,
    {
        "optionalRef": optional_ref,
        "union": union,
        "checks": checks,
        "eventuallyRequired": eventually,
        "compareProperties": compare,
    },
)


@pytest.fixture(scope="module")
def schemas(shared: pathlib.Path) -> dict[str, Any]:
    """Determined's schemas by file name."""
    files = (shared / "determined-schemas").glob("*.json")
    found = {path.name: json.loads(path.read_text()) for path in files}
    for schema in found.values():
        del schema["$schema"]  # it would bring back the validator without the extra keywords
    return found


@pytest.fixture(scope="module")
def validate(schemas: dict[str, Any]) -> Callable[[dict[str, Any]], None]:
    """Check an experiment config against Determined's schemas, their own keywords included."""
    registry = referencing.Registry().with_resources(
        (BASE + name, referencing.jsonschema.DRAFT7.create_resource(schema))
        for name, schema in schemas.items()
    )
    return Validator({"$ref": BASE + "experiment.json"}, registry=registry).validate


def as_submitted(config: dict[str, Any]) -> dict[str, Any]:
    """The config as the master completes it: its storage and images merged in, a seed drawn."""
    storage = {"type": "s3", "bucket": "b", **config.get("checkpoint_storage", {})}
    environment = {**config["environment"]}
    environment["image"] = {"rocm": "r", **environment["image"]}
    merged = {"checkpoint_storage": storage, "environment": environment}
    return {"reproducibility": {"experiment_seed": 1}, **config, **merged}


@pytest.mark.parametrize("path", **ids)
def test_validates_against_determineds_schema(path: pathlib.Path, validate) -> None:
    validate(as_submitted(yaml.safe_load(path.read_text())))


@pytest.mark.parametrize(
    ("section", "change"),
    [
        ("searcher", {"name": "adaptive_asha", "max_trial": 3}),
        ("resources", {"slots_per_trial": "8"}),
        ("log_policies", [{"pattern": "x"}]),
        ("environment", {"image": {"cuda": 1}}),
        ("hyperparameters", {"lr_scale": {"type": "double", "minval": 2.0, "maxval": 1.0}}),
        ("checkpoint_storage", {"type": "s3", "bucket": None}),
    ],
)
def test_the_validator_of_these_tests_refuses(section: str, change: Any, validate) -> None:
    """The test above must not pass because the extra keywords are not looked at."""
    config = as_submitted(load("single.yaml"))
    config[section] = change
    with pytest.raises(jsonschema.ValidationError):
        validate(config)


@pytest.mark.parametrize("path", [path for path in CONFIGS if path.name != "predict.yaml"])
def test_loads_into_the_dataclasses(path: pathlib.Path) -> None:
    config = yaml.safe_load(path.read_text())
    check_sections(config)
    workload = choose(config)
    workload.parsers.data(config["data"])
    trials = samples(config["hyperparameters"])
    assert len(trials) == (10 if path.name == "lr_search.yaml" else 1)
    slots = config["resources"]["slots_per_trial"]
    for values in trials:
        hparams = workload.parsers.hyperparameters(values)
        TrainOrder([384] * 1024, hparams.global_batch_size, slots, seed=0)  # refuses a remainder
        assert hparams.checkpoint_period and hparams.reporting_period
    pretrains = path.name.startswith(("pretrain_", "lm_"))
    assert pretrains == (workload is not FINE_TUNING)
    assert config["searcher"]["metric"] in (["loss", "mlm_loss"] if pretrains else ["f1"])
    assert config["searcher"]["smaller_is_better"] is pretrains
    assert "determined.launch.torch_distributed python3 train.py" in config["entrypoint"]


@pytest.mark.parametrize(
    ("name", "slots", "batch", "rate", "steps", "warmup"),
    [
        ("single.yaml", 1, 48, 5e-5, 5509, 551),
        ("distributed8.yaml", 8, 48, 5e-5, 5509, 551),
        ("distributed64.yaml", 64, 256, 2e-4, 1033, 103),
    ],
)
def test_published_arithmetic(
    name: str, slots: int, batch: int, rate: float, steps: int, warmup: int
) -> None:
    config, hparams = load(name), hparams_of(name)
    assert config["resources"]["slots_per_trial"] == slots
    assert hparams.global_batch_size == batch
    assert hparams.learning_rate() == pytest.approx(rate, rel=1e-12)
    assert hparams.epochs == 2
    assert plan_steps(hparams, WINDOWS) == (steps, warmup)
    assert lr_factor(warmup, steps, warmup) == 1.0
    header = (ROOT / "configs" / name).read_text().split("\nname:")[0]
    for figure in (f"{steps:,}", str(warmup), str(batch), f"{rate:.1e}".replace("e-0", "e-")):
        assert figure in header, f"{figure} is not in the header of {name}"
    assert "Published" in header and "not measured" in header
    assert f"det experiment create configs/{name} ." in header


@pytest.mark.parametrize("name", ["pretrain_base.yaml", "pretrain_large.yaml"])
def test_published_arithmetic_of_pretraining(name: str) -> None:
    hparams = parse_pretrain_hparams(load(name)["hyperparameters"])
    assert plan_steps(hparams, 10**6) == (125_000, 3_125)
    assert hparams.learning_rate() == pytest.approx(0.00176, rel=1e-12)
    assert (hparams.global_batch_size, hparams.max_seq_length) == (4096, 512)
    assert hparams.optimizer == "lamb" and hparams.size in name
    assert load(name)["resources"]["slots_per_trial"] == (64 if hparams.size == "large" else 8)


def test_fine_tuning_of_a_pretrained_model_is_the_published_recipe() -> None:
    hparams = hparams_of("finetune_pretrained.yaml")
    assert plan_steps(hparams, WINDOWS) == (8144, 814)
    assert hparams.global_batch_size == 48 and hparams.learning_rate() == pytest.approx(3e-5)


def test_the_scaling_study_sees_equal_examples() -> None:
    hparams = parse_pretrain_hparams(load("pretrain_mlm.yaml")["hyperparameters"])
    assert not hparams.sentence_order
    assert hparams.global_batch_size * hparams.max_steps == 640_000
    for batch, steps in ((512, 1250), (1024, 625), (2048, 313)):
        assert abs(batch * steps - 640_000) < batch


def test_64_slots_differ_from_8_in_what_the_study_changed() -> None:
    eight, sixtyfour = load("distributed8.yaml"), load("distributed64.yaml")
    changed = {
        f"{section}.{key}"
        for section in ("hyperparameters", "resources", "data", "searcher")
        for key in {**eight[section], **sixtyfour[section]}
        if eight[section].get(key) != sixtyfour[section].get(key)
    }
    assert changed == {
        "hyperparameters.global_batch_size",
        "hyperparameters.lr_scale",
        "hyperparameters.optimizer",
        "hyperparameters.checkpoint_period",
        "hyperparameters.spot_notice",
        "resources.slots_per_trial",
        "resources.resource_pool",
    }
    assert sixtyfour["hyperparameters"]["optimizer"] == "radam"
    assert sixtyfour["hyperparameters"]["spot_notice"] is True
    assert sixtyfour["resources"]["resource_pool"] == "aws-spot-p3-16xlarge"


def test_search_is_counted_in_the_steps_that_a_trial_trains() -> None:
    config = load("lr_search.yaml")
    searcher, hyperparameters = config["searcher"], config["hyperparameters"]
    assert searcher["max_time"] == hyperparameters["max_steps"]
    rungs = [
        searcher["max_time"] // int(searcher["divisor"]) ** power
        for power in range(searcher["max_rungs"])
    ]
    assert all(rung % hyperparameters["validation_period"] == 0 for rung in rungs)
    parsed = [parse_hparams(values) for values in samples(hyperparameters)]
    assert {256, 384, 512} < {hparams.global_batch_size for hparams in parsed}
    low, high = hyperparameters["lr_scale"]["minval"], hyperparameters["lr_scale"]["maxval"]
    assert low < 0.75 < high


def test_smoke_runs_on_any_number_of_slots_up_to_16() -> None:
    hparams = hparams_of("smoke.yaml")
    for slots in (1, 2, 4, 8, 16):
        TrainOrder([192] * 64, hparams.global_batch_size, slots, seed=0)
    assert load("smoke.yaml")["data"]["train"] == "generated"
    assert (ROOT / hparams.model / "config.json").is_file()


def walk(spec: Any, schema: dict[str, Any], schemas: dict[str, Any], where: str):
    """Yields (where, our keys, Determined's keys) for every mapping that both describe."""
    reference = schema.get("optionalRef") or schema.get("$ref")
    if reference:
        schema = schemas[reference.rsplit("/", 1)[-1]]
    if isinstance(spec, Seq) and "items" in schema:
        yield from walk(spec.item, schema["items"], schemas, where + "[]")
    elif isinstance(spec, Union_):
        items = (schema.get("then") or schema)["union"]["items"]
        for item in items:
            kind = item["unionKey"].rsplit("=", 1)[-1]
            if kind in spec.kinds:
                yield from walk(spec.kinds[kind], item, schemas, f"{where}({kind})")
    elif isinstance(spec, Map) and "properties" in schema:
        yield where, set(spec.keys) | set(spec.deprecated), set(schema["properties"])
        for key, inner in spec.keys.items():
            if isinstance(schema["properties"].get(key), dict):
                yield from walk(inner, schema["properties"][key], schemas, f"{where}.{key}")


def test_the_checkers_keys_are_determineds(schemas) -> None:
    seen = {}
    top = schemas["experiment.json"]
    for where, ours, theirs in walk(expconf.EXPERIMENT, top, schemas, ""):
        seen[where] = ours, theirs
        extra = {"stop_once", "max_length"} if where.startswith(".searcher") else set()
        assert ours - extra == theirs - extra, where
    assert {"", ".resources", ".searcher(adaptive_asha)", ".checkpoint_storage(s3)"} < set(seen)
    for kind, spec in expconf.RANGES.items():
        schema = schemas[f"hyperparameter-{kind}.json"]
        assert set(spec.keys) == set(schema["properties"])
        assert set(spec.required) | {"type"} == set(schema["required"])

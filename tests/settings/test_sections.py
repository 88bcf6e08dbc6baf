"""Keys, types and limits of a config's sections, and their JSON Schemas."""

import copy
import math
from pathlib import Path
from pkgutil import resolve_name

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from detalbert.errors import SectionError, UserError
from detalbert.settings import experiment
from detalbert.settings.__main__ import editor_schema
from detalbert.settings.hparams import HParams, StepHParams, parse_data_config, parse_hparams
from detalbert.settings.sections import json_schema, parse_section
from lm.hparams import parse_documents_config, parse_lm_hparams
from pretrain.hparams import SIZES, parse_pretrain_hparams, parse_text_config
from tests.conftest import ROOT
from workloads import TABLE, parsers

PARSE = {
    "fine-tuning": parse_hparams,
    "pretraining": parse_pretrain_hparams,
    "language model": parse_lm_hparams,
    "text": parse_text_config,
    "documents": parse_documents_config,
    "data": parse_data_config,
    "config": lambda values: experiment.check(experiment.as_a_master_reads(values), parsers),
}
MISTAKES = yaml.safe_load(Path(__file__).with_name("mistakes.yaml").read_text())
MISTAKES["config"]["base"] = yaml.safe_load((ROOT / "configs" / "local.yaml").read_text())
CASES = [(kind, *case) for kind, section in MISTAKES.items() for case in section["wrong"]]
CLASSES = [cls for row in TABLE for cls in resolve_name(row.parsers)[:2]]
SCHEMAS = {cls: json_schema(cls) for cls in CLASSES}
MODEL = {"model": "x"}
BASES = {  # what is enough, by the class
    "DataConfig": {"train": "x", "validation": "x"},
    "DocumentsConfig": {"documents": "x", "tokenizer": "x"},
    "TextConfig": {"text": "x", "tokenizer": "x"},
    "HParams": MODEL,
    "LmHParams": MODEL,
    "PretrainHParams": MODEL,
}


@pytest.mark.parametrize(("kind", "values", "line"), CASES)
def test_a_wrong_value_is_named(kind, values, line):
    with pytest.raises(UserError) as error:
        PARSE[kind](copy.deepcopy(MISTAKES[kind]["base"]) | values)
    assert str(error.value).startswith(line)
    assert "\n" not in str(error.value)


def test_what_is_right_is_taken(monkeypatch):
    hparams = parse_hparams({"model": "x", "epochs": 3, "max_steps": 10.0, "seed": None})
    assert repr([hparams.epochs, hparams.max_steps, hparams.seed]) == "[3.0, 10, None]"
    # `det experiment continue` keeps every key that a config ever had (seen on a real master).
    assert parse_hparams({"model": "m", "max_stepz": None}) == parse_hparams({"model": "m"})
    # No shell expands it behind `data.train=`.
    monkeypatch.setenv("HOME", "/home/ada")
    data = parse_data_config({"train": "~/q.csv", "validation": "a~/b", "no_answer": ["~/-", ""]})
    assert [data.train, data.validation, data.no_answer] == ["/home/ada/q.csv", "a~/b", ["~/-", ""]]
    text = parse_text_config({"text": ["~/a.txt", {"source": "~/b", "name": "c"}]})
    sources = [(source.source, source.name) for source in text.training]
    assert sources == [("/home/ada/a.txt", "a"), ("/home/ada/b", "c")]
    for size in SIZES:
        assert parse_pretrain_hparams({"size": size}).size == size


@pytest.mark.parametrize("cls", CLASSES)
def test_every_number_has_limits_and_every_default_is_valid(cls):
    """Also where a subclass changes a default; what may be changed in the base, may be there."""
    schema = SCHEMAS[cls]
    unlimited = set()
    defaults = {}
    for key, part in schema["properties"].items():
        for option in part.get("anyOf", [part]):
            is_number = option.get("type") in ("integer", "number")
            if is_number and len(str(option).split("imum")) < 3:  # minimum, exclusiveMaximum
                unlimited.add(key)
        if "default" in part:
            defaults[key] = part["default"]
    assert unlimited <= {"null_score_diff_threshold"}
    jsonschema.Draft7Validator({**schema, "required": []}).validate(defaults)
    if issubclass(cls, StepHParams):
        of_base = SCHEMAS[HParams]["properties"]
        for key in of_base.keys() & schema["properties"].keys():
            is_changeable = of_base[key].get("changeable")
            assert schema["properties"][key].get("changeable") == is_changeable
        assert of_base["epochs"]["changeable"]
        assert "changeable" not in of_base["base_batch_size"]


VALUES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([0, 1, 2**63, 10**30, 1e30, 8.0, "auto", "none", "full", "line", "tiny"])
    | st.floats()
    | st.text(max_size=5)
    | st.lists(st.integers(), max_size=2)
    | st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)
)


@given(st.data())
def test_any_value_of_any_key_is_right_or_one_line(data):
    """And the JSON Schemas, by which editors check, say the same of it."""
    cls = data.draw(st.sampled_from(CLASSES))
    schema = SCHEMAS[cls]
    key = data.draw(st.sampled_from([*schema["properties"], "unknown", "trian"]))
    value = data.draw(VALUES)
    base = BASES[cls.__name__]
    parse_section(cls, "section", base)
    values = {**base, key: value}
    is_valid = jsonschema.Draft7Validator(schema).is_valid(values)
    try:
        taken = getattr(parse_section(cls, "section", values), key, None)
    except SectionError as error:
        assert "\n" not in str(error)  # noqa: PT017  either outcome may come
        for problem in error.problems:
            assert problem.key.startswith(f"section.{key}") or key in ("text", "documents")
        # JSON has neither inf nor nan.
        is_finite = not isinstance(value, float) or math.isfinite(value)
        assert not is_valid or not is_finite or problem.key.startswith("data.")
    except UserError as error:  # values that contradict each other
        assert "\n" not in str(error)  # noqa: PT017
    else:
        assert taken == value
        assert isinstance(taken, bool) == isinstance(value, bool)
        assert is_valid or value is None


def test_the_schema_for_editors_knows_the_keys_of_all_workloads():
    validator = jsonschema.Draft7Validator(editor_schema())
    for path in (ROOT / "configs").glob("*.yaml"):
        config = experiment.load(path)
        if path.name != "predict.yaml":
            validator.validate(config)
            for wrong in ("data.trian=x", "hyperparameters.epochs={minval: 1}"):
                changed = copy.deepcopy(config)
                experiment.apply_overrides(changed, [wrong])
                assert not validator.is_valid(changed)

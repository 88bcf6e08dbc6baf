"""Keys, types and limits of `hyperparameters:` and `data:`; reading and changing a config."""

import copy
import dataclasses
import re
import typing
from collections.abc import Callable
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from detalbert.errors import SectionError, UserError
from detalbert.settings import experiment
from detalbert.settings.hparams import DataConfig, HParams, parse_data_config, parse_hparams
from detalbert.settings.sections import limits_of, parse_section
from detalbert.settings.text import parse_text_config
from lm.hparams import parse_documents_config, parse_lm_hparams
from lm.inference.complete import Sampling
from pretrain.hparams import parse_pretrain_hparams
from tests.conftest import ROOT
from workloads import TABLE


def test_defaults_are_the_published_recipe() -> None:
    hparams = parse_hparams({"model": "albert-xxlarge-v2"})
    assert hparams.learning_rate() == 5e-5
    assert hparams.global_batch_size == 48
    assert hparams.epochs == 2
    assert hparams.optimizer == "radam"
    assert hparams.max_seq_length == 384
    assert hparams.doc_stride == 128
    assert hparams.max_query_length == 64
    assert hparams.n_best_size == 20
    assert hparams.max_answer_length == 30
    assert hparams.max_grad_norm == 1.0


def test_null_takes_a_wrong_key_back() -> None:
    """`det experiment continue` keeps every key that a config ever had (seen on a real master)."""
    assert parse_hparams({"model": "m", "max_stepz": None}) == parse_hparams({"model": "m"})


def check_local_config(changes: dict[str, Any]) -> None:
    experiment.check_sections(copy.deepcopy(LOCAL) | changes)


SECTIONS: dict[str, Callable] = {
    "fine-tuning": parse_hparams,
    "pretraining": parse_pretrain_hparams,
    "language model": parse_lm_hparams,
    "text": parse_text_config,
    "documents": parse_documents_config,
    "data": parse_data_config,
    "sampling": partial(parse_section, Sampling, "request"),
    "config": check_local_config,
    "single": experiment.single_values,
}
LOCAL = experiment.load(ROOT / "configs" / "local.yaml")
MISTAKES = yaml.safe_load(Path(__file__).with_name("mistakes.yaml").read_text())


def mistakes() -> list[tuple[str, dict[str, Any], str]]:
    """Section, values and problem of each mistake."""
    cases = []
    for section, kind in MISTAKES.items():
        for values, problem in kind["wrong"]:
            cases.append((section, kind["base"] | values, problem))
    return cases


@pytest.mark.parametrize("section, values, problem", mistakes())
def test_a_wrong_value_is_named(section: str, values: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError) as error:
        SECTIONS[section](values)
    assert str(error.value).startswith(problem)
    assert "\n" not in str(error.value)


def test_every_problem_is_told_and_the_first_is_raised() -> None:
    with pytest.raises(SectionError, match="lr_scal: unknown key") as error:
        parse_hparams({"lr_scal": 1, "epochs": "two", "seed": -1, "precision": "fp8"})
    keys = [problem.key for problem in error.value.problems]
    assert keys == [f"hyperparameters.{key}" for key in ("lr_scal", "epochs", "precision", "seed")]


def test_no_number_is_without_limits() -> None:
    """Also where a subclass changes a default."""
    sections = []
    for row in TABLE:
        sections += [parser.args[0] for parser in resolve_name(row.parsers)]
    for section in sections:
        hints = typing.get_type_hints(section)
        numbers = [name for name, hint in hints.items() if re.search(r"int|float", str(hint))]
        unlimited = {name for name in numbers if not limits_of(section, name)}
        assert numbers
        assert unlimited <= {"null_score_diff_threshold"}


def test_what_is_right_is_taken() -> None:
    values = yaml.safe_load("{model: x, base_learning_rate: 5e-5, epochs: 3, max_steps: 10.0}")
    assert isinstance(values["base_learning_rate"], str)  # no dot: YAML 1.1 says text
    hparams = parse_hparams(values)
    assert hparams.base_learning_rate == 5e-5
    assert hparams.epochs == 3.0
    assert hparams.max_steps == 10
    assert parse_data_config({"train": "a", "validation": "b"}) == DataConfig("a", "b")
    experiment.check_sections(LOCAL)
    single = experiment.single_values({"epochs": {"type": "const", "val": 3}, "seed": 1})
    assert single == {"epochs": 3, "seed": 1}


def test_a_trial_has_the_seed_of_its_experiment() -> None:
    assert experiment.trial_seed({}) == 42
    assert experiment.trial_seed({"reproducibility": None}) == 42
    assert experiment.trial_seed({"reproducibility": {"experiment_seed": 7}}) == 7


@given(st.dictionaries(st.text(max_size=8), st.none() | st.integers() | st.text(max_size=5)))
def test_any_mapping_parses_or_is_refused_in_one_line(keys: dict) -> None:
    try:
        parsed = parse_hparams(keys)
    except UserError as error:
        assert "\n" not in str(error)
    else:
        assert dataclasses.asdict(parsed) == {**dataclasses.asdict(HParams(**keys))}


def test_overrides_change_what_they_name() -> None:
    config = {"hyperparameters": {"epochs": 2}}
    experiment.apply_overrides(
        config, ["hyperparameters.epochs=3", "data.train=a=b.json", "max_restarts=0"]
    )
    assert config == {
        "hyperparameters": {"epochs": 3},
        "data": {"train": "a=b.json"},
        "max_restarts": 0,
    }
    for wrong in ("hyperparameters.epochs", "=3", "max_restarts.x=1", "name={"):
        with pytest.raises(UserError, match="--set"):
            experiment.apply_overrides(config, [wrong])


def test_a_path_of_the_home_folder_is_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """No shell expands it behind `data.train=`."""
    monkeypatch.setenv("HOME", "/home/ada")
    data = parse_data_config({"train": "~/q.csv", "validation": "a~/b", "no_answer": ["~/-"]})
    assert (data.train, data.validation) == ("/home/ada/q.csv", "a~/b")
    assert data.no_answer == ["~/-"]
    text = {"tokenizer": "~/tokenizer", "text": ["~/a.txt", {"source": "~/b"}]}
    config = parse_text_config(text)
    assert config.tokenizer == "/home/ada/tokenizer"
    assert [source.source for source in config.training] == ["/home/ada/a.txt", "/home/ada/b"]

"""The table of workloads: the row of a config, and what its modules import."""

import subprocess
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from detalbert.errors import UserError
from detalbert.settings import sections
from tests.conftest import ROOT
from workloads import TABLE, WorkloadRow, choose, find_row

LM, PRETRAINING, SQUAD = "lm.trial", "pretrain.trial", "model_def"
FITTING: list[tuple[Any, Any, str]] = [
    ({"documents": "a", "train": "b"}, {}, LM),
    ({"shards": "a"}, {"layout": "auto"}, LM),
    ({"shards": "a"}, {"size": "base"}, PRETRAINING),
    (
        {"shards": "a"},
        {"model_config": {"model_type": "modernbert"}, "masked_fraction": 0.3},
        PRETRAINING,
    ),
    ({"text": "a", "validation": "b"}, {"layout": "auto"}, PRETRAINING),
    ({"validation": "a", "trian": "b"}, {}, SQUAD),
    ({"train": "a"}, None, SQUAD),
]


@pytest.mark.parametrize(("data", "hparams", "module"), FITTING)
def test_the_row_that_fits_best_counts(data, hparams, module):
    config = {"data": data, "hyperparameters": hparams}
    assert find_row(config).workload.split(":")[0] == module


@dataclass(frozen=True)
class Sentences(sections.Section):
    """The data of a workload of one's own."""

    sentences: str
    validation: str | None = None


OWN = sections.Parsers(partial(sections.parse_section, Sentences, "data"), lambda values: values)


@pytest.mark.parametrize("place", [0, len(TABLE)])
def test_a_row_of_ones_own_counts_wherever_it_is_in_the_table(
    place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its data has keys that SQuAD's has, too; a key that is misspelt is told as its own."""
    row = WorkloadRow(("sentences",), f"{__name__}:OWN", "own:WORKLOAD")
    monkeypatch.setattr("workloads.TABLE", (*TABLE[:place], row, *TABLE[place:]))
    for data in ({"sentences": "a"}, {"sentences": "a", "validation": "b"}):
        assert find_row({"data": data}) is row
    assert find_row({"data": {"train": "a", "validation": "b"}}).workload.startswith(SQUAD)
    said = "^data.sentenses: unknown key; did you mean 'sentences'[?]$"
    with pytest.raises(UserError, match=said):
        find_row({"data": {"sentenses": "a", "validation": "b"}})


def test_a_misspelt_key_of_another_workload_is_told_as_such() -> None:
    with pytest.raises(UserError, match="^data.document: .* did you mean 'documents'[?]$"):
        choose({"data": {"document": "a", "validation": "b"}})
    with pytest.raises(UserError, match="^data: .*'trian': did you mean 'train'[?]; give one of"):
        choose({"data": {"trian": "a"}})
    # A word of another trainer has a better hint, by synonyms.yaml.
    assert find_row({"data": {"train": "a", "test": "b"}}).workload.startswith(SQUAD)


@pytest.mark.parametrize("config", [{}, {"data": None}, {"data": {"trian": "a"}}])
def test_a_config_that_no_row_fits_is_one_line(config):
    keys = "documents, text, train, validation, shards"
    with pytest.raises(UserError, match=f"^data: selects no workload; .* keys: {keys}$"):
        choose(config)


def test_parsers_come_without_torch_and_workloads_without_each_other(real_python, script):
    names = "[row.parsers for row in workloads.TABLE]"
    code = f"import sys, pkgutil, workloads; list(map(pkgutil.resolve_name, {names}))"
    check = f"{code}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([real_python, "-c", check], cwd=ROOT).returncode == 0
    code = "import sys, train, model_def; sys.exit(bool({'lm', 'pretrain'} & set(sys.modules)))"
    assert subprocess.run(script(code), cwd=ROOT).returncode == 0

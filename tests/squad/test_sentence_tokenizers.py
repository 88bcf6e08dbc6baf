"""Tokenizers of sentence encoders, whose file says that each text is cut and padded."""

import copy
import shutil

import pytest
import yaml
from tokenizers import Tokenizer

from detalbert.squad.encoding import named_tokenizer, tokenizer_sum
from tests.conftest import ROOT, TINY, configured
from tests.fakes.runs import cut_and_go_on, run

PLAIN = ROOT / "embedded" / "albert-tiny"


@pytest.fixture
def limited(tmp_path):
    """The folder of the embedded model, its tokenizer with limits as sentence-transformers has."""
    folder = shutil.copytree(PLAIN, tmp_path / "limited")
    (folder / "sums.json").unlink(missing_ok=True)
    path = str(folder / "tokenizer.json")
    tokenizer = Tokenizer.from_file(path)
    tokenizer.enable_truncation(12)
    tokenizer.enable_padding(length=12)
    tokenizer.save(path)
    return str(folder)


def test_its_sum_is_that_of_the_tokenizer_without_limits_before_and_after_use(limited):
    tokenizer = named_tokenizer(limited)
    plain = tokenizer_sum(named_tokenizer(str(PLAIN)))
    assert tokenizer_sum(tokenizer) == plain
    assert len(tokenizer("A ship " * 40)["input_ids"]) > 12
    assert tokenizer_sum(tokenizer) == plain


def test_a_run_that_is_cut_goes_on_from_its_cached_windows(limited, tmp_path, monkeypatch):
    """It was refused: a start that had encoded kept another sum than one that had not."""
    config = copy.deepcopy(configured(TINY, tmp_path / "cache"))
    config["data"]["tokenizer"] = limited
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    cut_and_go_on(path, tmp_path / "out", monkeypatch, at=4)
    assert run(path, tmp_path / "out") == 0

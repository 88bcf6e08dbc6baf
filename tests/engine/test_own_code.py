"""Code that a model's folder brings is never run."""

import contextlib
import json

import pytest

from detalbert.corpus.vocabulary import train_byte_bpe
from detalbert.errors import UserError
from detalbert.squad.encoding import named_tokenizer
from lm.inference.saved import open_saved
from tests.lm.ranks import tiny

CODE = """
import pathlib
from transformers import PreTrainedTokenizerFast

pathlib.Path({marker!r}).touch()

class Own(PreTrainedTokenizerFast):
    pass
"""


@pytest.fixture
def folder(tmp_path):
    """A language model."""
    model = tmp_path / "model"
    tiny("llama").save_pretrained(model)
    train_byte_bpe(["the ship sank"] * 5, 300).save_pretrained(model)
    return model


def add_code(model, marker):
    """Give its tokenizer a class of its own, which makes the file `marker` when it is imported."""
    path = model / "tokenizer_config.json"
    config = json.loads(path.read_text()) if path.is_file() else {}
    own = {"auto_map": {"AutoTokenizer": [None, "own.Own"]}, "tokenizer_class": "Own"}
    path.write_text(json.dumps(config | own))
    (model / "own.py").write_text(CODE.format(marker=str(marker)))


@pytest.mark.parametrize("load", [open_saved, lambda folder: named_tokenizer(str(folder))])
def test_a_tokenizer_s_own_code_is_not_run(load, folder, monkeypatch):
    monkeypatch.setenv("HF_MODULES_CACHE", str(folder.parent / "modules"))
    marker = folder.parent / "ran"
    load(folder)
    add_code(folder, marker)
    with contextlib.suppress(UserError):  # refused, or the library's class is taken
        load(folder)
    assert not marker.exists()

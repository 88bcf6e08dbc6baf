"""Checkpoints and models are data: these load, and anything that would run code does not."""

import json
import pickle
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from transformers import AutoModelForQuestionAnswering, AutoTokenizer, modeling_utils

from detalbert.engine.attention import PACKED
from detalbert.engine.models import build_span_model, load_weights
from detalbert.engine.safe_load import INDEXES, check_pickles, read_config, read_weights
from detalbert.errors import Unavailable, UserError
from detalbert.inference.model import load_model
from detalbert.settings.hparams import HParams
from detalbert.squad.encoding import named_tokenizer
from lm import model as lm_model
from lm.hparams import LmHParams
from lm.inference.saved import open_saved
from pretrain.encoders import build_encoder as pretrain_model
from pretrain.hparams import PretrainHParams

SHIPPED = "embedded/albert-tiny"


class Code:
    def __reduce__(self):
        return print, ("it ran",)


NUMBERS = {"trial_id": 1, "last_ckpt": 7, "step_id": 0, "done": False, "name": "x"}
ODD = b"", b"\x80\x04", b"no pickle", b"Nr\xff\xff\xff\x7f\xff", b"(lp0\nS'", b"\x8f(Nu."


def fill(folder, state=None, numbers=None):
    torch.save({"models_state_dict": [{}]} if state is None else state, folder / "state_dict.pth")
    (folder / "trial_state.pkl").write_bytes(pickle.dumps(NUMBERS) if numbers is None else numbers)


@pytest.mark.parametrize("content", [pickle.dumps(Code()), *ODD, b"X\1\0\0\0\xff."])
def test_a_trial_state_that_is_more_than_numbers_is_refused(content, tmp_path, capsys):
    fill(tmp_path, numbers=content)
    problem = r"trial_state.pkl: not the tensors and numbers it should hold \(.+\); not loaded; "
    with pytest.raises(UserError, match=problem) as refused:
        check_pickles(tmp_path)
    assert capsys.readouterr().out == ""
    assert len(str(refused.value)) < len(str(tmp_path)) + 250


def test_a_state_dict_that_is_more_than_tensors_is_refused(tmp_path, capsys):
    fill(tmp_path, {"models_state_dict": [{}], "more": Code()})
    with pytest.raises(UserError, match=r"state_dict.pth: .* hold \(print\); not loaded"):
        check_pickles(tmp_path)
    with pytest.raises(UserError, match="state_dict.pth: not loaded, for it holds more than"):
        read_weights(tmp_path / "state_dict.pth")
    assert capsys.readouterr().out == ""

    (tmp_path / "state_dict.pth").write_bytes(b"PK half")
    with pytest.raises(UserError, match=r"state_dict.pth: .* hold \(.+\); not loaded"):
        check_pickles(tmp_path)


@pytest.mark.parametrize(
    ("missing", "older_name"),
    [
        ("trial_state.pkl", "workload_sequencer.pkl"),
        ("state_dict.pth", "checkpoint.pt"),
    ],
)
def test_a_file_under_its_older_name_is_not_loaded(missing, older_name, tmp_path):
    fill(tmp_path)
    (tmp_path / missing).rename(tmp_path / older_name)
    with pytest.raises(UserError, match=f"{missing}: .* hold .No such file or directory.; not"):
        check_pickles(tmp_path)


def test_a_disk_that_fails_is_worth_another_try(tmp_path):
    fill(tmp_path)
    (tmp_path / "state_dict.pth").unlink()
    (tmp_path / "state_dict.pth").mkdir()
    with pytest.raises(Unavailable, match="Is a directory"):
        check_pickles(tmp_path)


def with_keys(folder, **keys):
    shutil.copytree(SHIPPED, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | keys))
    return folder


KERNEL = "kernels-community/flash-attn"
FOREIGN = {
    "kernel": {"_attn_implementation": KERNEL},
    "version": {"_attn_implementation_internal": "some/kernel@v1:flash"},
    "argument": {"attn_implementation": {"": "eager", "text_config": KERNEL}},
    "nested kernel": {"text_config": {"_attn_implementation": KERNEL}},
    "code": {"auto_map": {"AutoConfig": "configuration.Config"}},
    "nested code": {"parts": [{"auto_map": {"AutoModel": "modeling.Model"}}]},
    "quantizer": {"quantization_config": {"quant_method": "bitsandbytes"}},
}


@pytest.mark.parametrize("keys", FOREIGN.values(), ids=FOREIGN)
def test_a_model_folder_that_names_code_is_refused(keys, tmp_path):
    folder = with_keys(tmp_path / "model", **keys)
    with pytest.raises(UserError, match=f"^{folder}: .* in its config.json runs code that is not"):
        read_config(folder)


KEYS = {"max_seq_length": 64, "seed": 0}
WAYS = {
    "fine-tuning": lambda name, own: build_span_model(HParams(model=name, **KEYS), own),
    "another vocabulary": lambda name, own: build_span_model(
        HParams(model=name, **KEYS), named_tokenizer(name + "/../other")
    ),
    "answers": lambda name, own: load_model(name),
    "pretraining": lambda name, own: pretrain_model(PretrainHParams(model=name, **KEYS), own),
    "language model": lambda name, own: lm_model.causal_config(LmHParams(model=name), own),
    "continuing": lambda name, own: open_saved(Path(name)),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_no_way_to_a_model_fetches_a_kernel(way, tmp_path, monkeypatch):
    fetch = Mock()
    monkeypatch.setattr(modeling_utils, "lazy_import_flash_attention", fetch)
    other = AutoTokenizer.from_pretrained(SHIPPED)
    other.add_tokens(["<another>"])
    other.save_pretrained(tmp_path / "other")
    folder = with_keys(tmp_path / "model", _attn_implementation=KERNEL)
    with pytest.raises(UserError, match="_attn_implementation in its config.json runs code"):
        way(str(folder), named_tokenizer(SHIPPED))
    assert not fetch.called


@pytest.mark.parametrize("attention", [None, "sdpa", "flash_attention_2"])
def test_the_caller_chooses_the_attention(attention, tmp_path):
    keys = {"_attn_implementation": attention, "quantization_config": None}
    folder = with_keys(tmp_path / "model", **keys)
    model, _ = load_weights(AutoModelForQuestionAnswering, str(folder))
    assert model.config._attn_implementation == PACKED
    assert read_config(folder)._attn_implementation is None


@pytest.mark.parametrize("index", INDEXES)
def test_an_index_names_files_of_its_folder_alone(index, tmp_path):
    folder = with_keys(tmp_path / "model")
    for file, problem in (
        ("../model.safetensors", "is outside the folder; give"),
        ("/model.safetensors", "is outside the folder; give"),
        ("a/b", "is outside the folder; give"),
        (5, "damaged"),
        (None, "damaged"),
    ):
        weight_map = {"one": "model.safetensors", "other": file}
        (folder / index).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
        with pytest.raises(UserError, match=f"{index}: .*{problem}"):
            read_config(folder)

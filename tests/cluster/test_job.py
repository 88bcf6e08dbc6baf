"""A trial as a plan needs it: parameters beside those of torch, steps, checkpoints and searches."""

import json
import math

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForQuestionAnswering

from cluster.job import read_job
from cluster.published import MODELS
from cluster.sizes import find_sizes, needed_gigabytes, parameters_of
from detalbert.errors import UserError
from detalbert.settings.experiment import load
from detalbert.settings.hparams import HParams
from lm.hparams import LmHParams
from tests.conftest import ROOT


def job_of(name, *changes):
    return read_job(load(ROOT / "configs" / f"{name}.yaml", changes), ROOT)


CAUSAL = {
    "gpt2": {"n_embd": 256, "n_layer": 6, "n_head": 4, "vocab_size": 5000},
    "gpt_neox": {
        "hidden_size": 256,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "intermediate_size": 1024,
    },
    "llama": {
        "hidden_size": 512,
        "num_hidden_layers": 6,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "intermediate_size": 1024,
    },
}


@pytest.mark.parametrize("name", [*MODELS, *CAUSAL])
def test_parameters_are_those_of_torch(name):
    keys = MODELS.get(name) or {"model_type": name, "vocab_size": 4096, **CAUSAL[name]}
    config = AutoConfig.for_model(**keys)
    auto = AutoModelForQuestionAnswering if name in MODELS else AutoModelForCausalLM
    with torch.device("meta"):
        model = auto.from_config(config)
    counted = sum(parameter.numel() for parameter in model.parameters())

    hparams = HParams(model=f"owner/{name}@main", model_config=None)
    if name in CAUSAL:
        hparams = LmHParams(model_config=keys)
    sizes = find_sizes(hparams, ROOT)
    assert parameters_of(sizes) == pytest.approx(counted, rel=0.06)
    assert sizes.hidden_size == config.hidden_size
    assert sizes.num_hidden_layers == config.num_hidden_layers


def test_sizes_of_a_folder_and_of_what_is_not_known(tmp_path):
    (tmp_path / "mine").mkdir()
    keys = {"model_type": "bert", "hidden_size": 64, "num_hidden_layers": 2}
    keys["intermediate_size"] = 256
    (tmp_path / "mine" / "config.json").write_text(json.dumps({**keys, "num_attention_heads": 2}))
    sizes = find_sizes(HParams(model="mine", model_config=None), tmp_path)
    assert (sizes.hidden_size, sizes.intermediate_size) == (64, 256)

    with pytest.raises(UserError, match="give a folder with its config.json"):
        find_sizes(HParams(model="owner/unheard-of", model_config=None), tmp_path)
    (tmp_path / "mine" / "config.json").write_text(json.dumps(keys))
    with pytest.raises(UserError, match="model_config.num_attention_heads: no size; set it"):
        find_sizes(HParams(model="mine", model_config=None), tmp_path)


def test_memory_falls_with_shards_and_recomputation_and_grows_with_tokens():
    sizes = job_of("lm_13b").sizes
    whole = needed_gigabytes(sizes, tokens=1, shards=1, recomputed=0)
    eighth = needed_gigabytes(sizes, tokens=1, shards=8, recomputed=0)
    # 22 bytes of 13.1 B parameters are 268 GiB.
    assert whole == pytest.approx((268 + 1.5) / 0.95, rel=0.01)
    assert eighth < whole / 4
    long = needed_gigabytes(sizes, tokens=20_000, shards=8, recomputed=0)
    light = needed_gigabytes(sizes, tokens=20_000, shards=8, recomputed=1)
    assert eighth < light < long
    assert light - eighth < (long - eighth) / 8


def test_steps_windows_and_text():
    job = job_of("modern8")
    assert job.length.steps == math.ceil(2 * 132_198 / 256)
    assert (job.task, job.trials, job.slots, job.validations) == ("fine-tuning", 1, 8, 3)
    tenth = job_of("modern8", "data.max_train_examples=13032")
    assert tenth.length.steps == pytest.approx(job.length.steps / 10, abs=1)
    assert job_of("lm_1b").text_bytes == 25_000 * 512 * 2048 * 4.5
    assert job_of("pretrain_base").text_bytes == 0
    assert job_of("lm_1b").count_shards(slots=64, width=8) == 8
    assert job_of("lm_1b", "hyperparameters.layout=auto").count_shards(slots=4, width=8) == 4
    assert job_of("lm_1b", "hyperparameters.layout={tensor: 2}").count_shards(16, 8) == 8
    assert job.count_shards(slots=64, width=8) == 1

"""What a machine of a cluster is asked before any work: each mistake ends there, in one line."""

import copy
import math
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, AutoModelForCausalLM

from detalbert.errors import UserError
from detalbert.training import preflight as shared
from lm import model as lm_model
from lm import preflight
from lm.hparams import Layout, parse_lm_hparams
from lm.layout import choose_layout, split_memory
from lm.model import causal_sizes
from lm.trial import LANGUAGE_MODEL
from tests.conftest import TINY_LM
from tests.lm.ranks import tiny
from workloads import choose

GPT2 = {"model_type": "gpt2"}
GPUS = [f"GPU-{number}" for number in range(4)]


def check(slots: int = 1, gpus: int = 0, data: Any = (), storage: Any = None, **keys: Any) -> None:
    config = {**copy.deepcopy(TINY_LM), "checkpoint_storage": storage}
    config["data"].update(data)
    config["resources"] = {"slots_per_trial": slots}
    config["hyperparameters"].update(keys)
    assert choose(config).check is LANGUAGE_MODEL.check is preflight.check
    hparams = parse_lm_hparams(config["hyperparameters"])
    LANGUAGE_MODEL.check(config, hparams, GPUS[:gpus])


@pytest.fixture
def asked(monkeypatch) -> dict[str, Any]:
    """What disks and GPUs are asked for, instead of asking them."""
    found: dict[str, Any] = {}
    put = monkeypatch.setattr
    put(shared, "check_disk", lambda folder, size, what: found.update({what: (folder, size)}))
    put(shared, "check_gpus", lambda gpus: found.update(gpus=len(gpus)))
    put(shared, "gpu_memory", lambda: [(gpu, found["free"], 80 << 30) for gpu in GPUS])
    return found


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"slots": 4, "layout": {"shard": 3}}, "layout: replicate 1 x shard 3 x tensor 1 is 3 pr"),
        ({"slots": 8, "layout": {"tensor": 8}}, "tensor: 8 does not divide .*attention_heads 4"),
        ({"slots": 4, "layout": {"tensor": 4}}, "4 does not divide .* num_key_value_heads 2"),
        ({"slots": 2, "layout": {"tensor": 2}, "model_config": GPT2}, "gpt2 has no tensor-para"),
        ({"slots": 8, "gpus": 1, "layout": {"tensor": 2}}, "2 peers do not fit inside"),
        ({"model_config": {"hidden_size": 64}}, "model_config.model_type: missing; use gpt2"),
        ({"model_config": {"model_type": "lama"}}, "model_type: 'lama' is no model of"),
        ({"model": "/none", "model_config": None}, "hyperparameters.model: .*does not load"),
        ({"model_config": {"model_type": "phi"}}, "model: phi reads packed rows wrongly"),
        ({"model_config": {"model_type": "llama", "layers": 2}}, "config.layers: unknown key"),
        ({"max_seq_length": 64}, "the model has 32 positions"),
        ({"data": {"vocab_size": None, "tokenizer": "/no"}}, "data.tokenizer: '/no' does not load"),
        ({"data": {"vocab_size": None, "tokenizer": "embedded/albert-tiny"}}, "has no eos_token"),
        ({"model": "tests", "model_config": None}, "model: 'tests' has no weights"),
    ],
)
def test_a_mistake_ends_there(changes, said, asked):
    asked["free"] = 80 << 30
    with pytest.raises(UserError, match=said) as error:
        check(**changes)
    assert "\n" not in str(error.value)


KEYS = {**TINY_LM["hyperparameters"]["model_config"], "vocab_size": 320}
CONFIG = AutoConfig.for_model(**KEYS)


def whole() -> int:
    return sum(p.numel() for p in AutoModelForCausalLM.from_config(CONFIG).parameters())


@pytest.mark.parametrize("layout", [{}, {"shard": 2, "tensor": 2}, {"replicate": 2, "shard": 2}])
@pytest.mark.parametrize("precision", ["fp32", "auto"])
def test_a_gpu_holds_what_the_planner_counts(layout, precision, asked):
    sizes = causal_sizes(CONFIG)
    assert sizes.parameters == whole()
    keys = {"layout": layout or "auto", "precision": precision}
    hparams = parse_lm_hparams({**TINY_LM["hyperparameters"], **keys})
    parts = Layout(**(layout or {"shard": 4}))
    memory = split_memory(sizes, parts, hparams)
    asked["free"] = math.ceil(memory.at(hparams.max_tokens_per_forward))
    check(slots=4, gpus=4, **keys)
    asked["free"] -= 1
    with pytest.raises(UserError, match="GPU-0: .* and a model of 0 M parameters takes 1.5 GiB"):
        check(slots=4, gpus=4, **keys)


def test_disks_hold_two_checkpoints_or_this_machines_parts(asked, tmp_path, monkeypatch):
    checkpoint, asked["free"] = 12 * whole(), 80 << 30
    monkeypatch.setattr(preflight.tempfile, "gettempdir", lambda: str(tmp_path))
    check(slots=8, gpus=4, storage={"type": "s3", "bucket": "b"}, data={"cache_dir": str(tmp_path)})
    assert not list(tmp_path.iterdir())  # it leaves nothing
    assert asked["gpus"] == 4
    assert asked["this machine's parts of two checkpoints"] == (tmp_path, checkpoint)  # of 2
    assert "two checkpoints" not in asked
    check(slots=8, storage={"type": "directory", "container_path": "/stored"})
    assert asked["this machine's parts of two checkpoints"] == (tmp_path, 2 * checkpoint)
    assert asked["two checkpoints"] == (Path("/stored"), 2 * checkpoint)


def test_the_cache_holds_the_token_shards_that_are_not_there_yet(asked, tmp_path, monkeypatch):
    monkeypatch.setattr(preflight, "GIB", 100)
    text, held, cache = tmp_path / "text", tmp_path / "held.txt", tmp_path / "cache"
    text.mkdir()
    (text / "a.jsonl").write_bytes(b"x" * 4000)
    (text / "b.jsonl.zst").write_bytes(b"x" * 7000)  # who knows what is in there
    held.write_bytes(b"x" * 1000)
    data = {"documents": str(text), "validation_documents": str(held), "cache_dir": str(cache)}
    for there, missing in ((0, 2000), (600, 1400), (2000, 100)):  # 5,000 bytes, 1,000 tokens of 2
        if there:
            cache.mkdir(exist_ok=True)
            (cache / "shard").write_bytes(b"x" * there)
        check(data=data)
        assert asked["token shards"] == (cache, missing)

    def find(address: str, key: str) -> list[Any]:
        raise UserError(f"{key}: nothing below {address}")

    monkeypatch.setattr(preflight, "find_files", find)  # text afar is listed
    with pytest.raises(UserError, match="data.documents: nothing below s3://bucket/text"):
        check(data={"documents": "s3://bucket/text"})


LLAMA = tiny("llama", num_attention_heads=16, num_key_value_heads=8, hidden_size=128)


def test_what_is_left_open_is_chosen():
    for keys, slots, machine, expected in (
        ({}, 1, 1, (1, 1, 1)),
        ({}, 8, 8, (1, 8, 1)),
        ({}, 64, 8, (8, 8, 1)),
        ({}, 56, 8, (7, 8, 1)),
        ({}, 6, 4, (1, 6, 1)),  # machines of 4 that do not divide 6
        ({}, 4, 8, (1, 4, 1)),
        ({"tensor": 4}, 64, 8, (8, 2, 4)),
        ({"tensor": 8}, 64, 8, (8, 1, 8)),
        ({"replicate": 1}, 64, 8, (1, 64, 1)),
        ({"replicate": 2, "tensor": 2}, 64, 8, (2, 16, 2)),
        ({"shard": 16}, 64, 8, (4, 16, 1)),
    ):
        found = choose_layout(keys or "auto", LLAMA, slots, machine)
        assert found == Layout(*expected)


def test_a_plan_that_splits_the_embedding_is_taken_without_that():
    """As transformers 5.17 has it for Llama; the embedding is whole on each rank, like its head."""
    config = tiny("llama", tie_word_embeddings=True)
    linear = dict(config.base_model_tp_plan)
    config.base_model_tp_plan = {"embed_tokens": "embedding_rowwise", **linear}
    assert choose_layout({"tensor": 2}, config, 2, 2) == Layout(tensor=2)
    model = AutoModelForCausalLM.from_config(config)
    assert set(lm_model._plan(model)) == {f"model.{name}" for name in linear}

"""What a machine of a cluster is asked before any work: each mistake ends there, in one line."""

import copy
import math
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, AutoModelForCausalLM

from detalbert.errors import UserError
from detalbert.training import preflight as shared
from lm import preflight
from lm.hparams import parse_lm_hparams
from lm.layout import Layout
from lm.sizes import causal_sizes, split_memory
from lm.workload import LANGUAGE_MODEL
from tests.conftest import TINY_LM
from workloads import choose

GPUS = [f"GPU-{number}" for number in range(4)]
VOCABULARY = 320


def check(
    slots: int = 1, gpus: int = 0, data: Any = None, storage: Any = None, **keys: Any
) -> None:
    """The check of TINY_LM with other keys, on a machine with these GPUs."""
    config = copy.deepcopy(TINY_LM)
    config["data"].update(data or {})
    config["resources"] = {"slots_per_trial": slots}
    config["checkpoint_storage"] = storage
    config["hyperparameters"].update(keys)
    assert choose(config).check is LANGUAGE_MODEL.check is preflight.check
    hparams = parse_lm_hparams(config["hyperparameters"])
    LANGUAGE_MODEL.check(config, hparams, GPUS[:gpus])


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What disks and GPUs are asked for, instead of asking them."""
    found: dict[str, Any] = {}
    monkeypatch.setattr(
        shared, "check_disk", lambda folder, size, purpose: found.update({purpose: (folder, size)})
    )
    monkeypatch.setattr(shared, "check_gpus", lambda gpus: found.update(gpus=len(gpus)))
    monkeypatch.setattr(
        shared, "gpu_memory", lambda: [(gpu, found["free"], 80 << 30) for gpu in GPUS]
    )
    return found


def test_it_passes_here_and_leaves_nothing(tmp_path: Path) -> None:
    check(data={"cache_dir": str(tmp_path / "cache")})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"slots": 4, "layout": {"shard": 3}}, "layout: replicate 1 x shard 3 x tensor 1 is 3 pr"),
        ({"slots": 8, "layout": {"tensor": 8}}, "tensor: 8 does not divide .*attention_heads 4"),
        ({"slots": 4, "layout": {"tensor": 4}}, "4 does not divide .* num_key_value_heads 2"),
        ({"slots": 8, "gpus": 1, "layout": {"tensor": 2}}, "2 peers do not fit inside"),
        ({"model_config": {"model_type": "phi"}}, "model: phi reads packed rows wrongly"),
        ({"model_config": {"model_type": "llama", "layers": 2}}, "config.layers: unknown key"),
        ({"max_seq_length": 64, "max_tokens_per_forward": 64}, "embeddings 32 is less"),
        ({"data": {"documents": "/no/text"}}, "data.documents: /no/text: no such file in this"),
        ({"data": {"validation_documents": "held.jsonl.zst"}}, "data.validation_documents: held"),
        ({"data": {"vocab_size": None, "tokenizer": "/no"}}, "data.tokenizer: '/no' does not load"),
        ({"data": {"vocab_size": None, "tokenizer": "embedded/albert-tiny"}}, "no end-of-text"),
        ({"model": "tests", "model_config": None}, "model: 'tests' has no safetensors"),
    ],
)
def test_a_mistake_ends_there(changes: dict[str, Any], said: str, asked: dict[str, Any]) -> None:
    asked["free"] = 80 << 30
    with pytest.raises(UserError, match=said) as error:
        check(**changes)
    assert "\n" not in str(error.value)


def test_a_data_set_of_the_hub_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any]
) -> None:
    names = []
    monkeypatch.setattr(shared, "offline", lambda: False)

    def asked_for(self: Any, name: str, revision: str | None, timeout: float) -> None:
        names.append((name, revision))

    monkeypatch.setattr(shared.huggingface_hub.HfApi, "dataset_info", asked_for)
    check(data={"documents": "some/text@v1:en", "validation_documents": "other/text"})
    assert names == [("some/text", "v1"), ("other/text", None)]


def whole() -> int:
    """Parameters of TINY_LM's model, by the library's own model."""
    keys = dict(TINY_LM["hyperparameters"]["model_config"], vocab_size=VOCABULARY)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(keys.pop("model_type"), **keys))
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("layout", [{}, {"shard": 2, "tensor": 2}, {"replicate": 2, "shard": 2}])
@pytest.mark.parametrize("precision", ["fp32", "auto"])
def test_a_gpu_holds_what_the_planner_counts(
    layout: dict[str, int], precision: str, asked: dict[str, Any]
) -> None:
    config = dict(TINY_LM["hyperparameters"]["model_config"], vocab_size=VOCABULARY)
    sizes = causal_sizes(AutoConfig.for_model(config.pop("model_type"), **config))
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


def test_disks_hold_two_checkpoints_or_this_machines_parts(
    asked: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, asked["free"] = 12 * whole(), 80 << 30
    monkeypatch.setattr(preflight.tempfile, "gettempdir", lambda: str(tmp_path))
    check(slots=8, gpus=4, storage={"type": "s3", "bucket": "b"})
    assert asked["gpus"] == 4
    assert asked["this machine's parts of two checkpoints"] == (tmp_path, checkpoint)  # of 2
    assert "two checkpoints" not in asked
    check(slots=8, storage={"type": "directory", "container_path": "/stored"})
    assert asked["this machine's parts of two checkpoints"] == (tmp_path, 2 * checkpoint)
    assert asked["two checkpoints"] == (Path("/stored"), 2 * checkpoint)


def test_the_cache_holds_the_token_shards_that_are_not_there_yet(
    asked: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "GIB", 100)
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.jsonl").write_bytes(b"x" * 4000)
    (tmp_path / "text" / "b.jsonl.zst").write_bytes(b"x" * 7000)  # who knows what is in there
    (tmp_path / "held.txt").write_bytes(b"x" * 1000)
    cache = tmp_path / "cache"
    data = {"documents": str(tmp_path / "text"), "validation_documents": str(tmp_path / "held.txt")}
    data["cache_dir"] = str(cache)
    check(data=data)
    assert asked["token shards"] == (cache, 2000)  # 5,000 bytes, 1,000 tokens of 2
    cache.mkdir()
    (cache / "shard").write_bytes(b"x" * 600)
    check(data=data)
    assert asked["token shards"] == (cache, 1400)
    (cache / "more").write_bytes(b"x" * 1400)
    check(data=data)
    assert asked["token shards"] == (cache, 100)


def test_text_afar_is_listed(monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any]) -> None:
    def find(address: str, key: str, suffixes: tuple[str, ...]) -> list[Any]:
        assert {".txt", ".jsonl", ".zst"} < set(suffixes)
        raise UserError(f"{key}: nothing below {address}")

    monkeypatch.setattr(preflight.storage, "find_files", find)
    with pytest.raises(UserError, match="data.documents: nothing below s3://bucket/text"):
        check(data={"documents": "s3://bucket/text"})

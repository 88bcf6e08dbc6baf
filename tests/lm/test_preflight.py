"""What a machine of a cluster is asked before any work: each mistake ends there, in one line."""

import copy
import itertools
import math
from pathlib import Path
from typing import Any, cast

import pytest
from transformers import AutoConfig, AutoModelForCausalLM

from detalbert import records
from detalbert.errors import UserError
from detalbert.training import preflight as shared
from detalbert.training.sizing import Slots
from lm import model as lm_model
from lm import preflight
from lm.hparams import Layout, parse_lm_hparams
from lm.layout import choose_layout, split_memory
from lm.model import causal_sizes
from lm.sizing import SIZING
from lm.trial import LANGUAGE_MODEL
from tests.conftest import TINY_LM
from tests.lm.ranks import tiny
from workloads import choose

GPUS = [f"GPU-{number}" for number in range(4)]
GPU_BYTES = 80 << 30


def check(
    slots: int = 1,
    gpus: int = 0,
    data: dict[str, Any] | None = None,
    storage: dict[str, str] | None = None,
    **hparams: Any,
) -> None:
    """Check a machine with `gpus` GPUs for TINY_LM with changes."""
    config = copy.deepcopy(TINY_LM)
    config["hyperparameters"].update(hparams)
    config["data"].update(data or {})
    config["checkpoint_storage"] = storage
    config["resources"] = {"slots_per_trial": slots}
    assert choose(config).check is LANGUAGE_MODEL.check is preflight.check
    parsed = parse_lm_hparams(config["hyperparameters"])
    LANGUAGE_MODEL.check(config, parsed, GPUS[:gpus])


class Machine:
    """Stands for the disks and the GPUs of a machine: records what they would have to hold."""

    def __init__(self) -> None:
        self.free_gpu_bytes = GPU_BYTES
        self.gpus = 0  # that were checked
        self.disks: dict[str, tuple[Path, int]] = {}  # folder and bytes by what lies there

    def check_disk(self, folder: Path, size: int, what: str) -> None:
        self.disks[what] = (folder, size)

    def check_gpus(self, gpus: list[str]) -> None:
        self.gpus = len(gpus)

    def gpu_memory(self) -> list[tuple[str, int, int]]:
        return [(gpu, self.free_gpu_bytes, GPU_BYTES) for gpu in GPUS]


@pytest.fixture
def machine(monkeypatch) -> Machine:
    machine = Machine()
    for name in ("check_disk", "check_gpus", "gpu_memory"):
        monkeypatch.setattr(shared, name, getattr(machine, name))
    return machine


def model_type(name: str, **keys: Any) -> dict[str, Any]:
    return {"model_config": {"model_type": name, **keys}}


def named_model(name: str) -> dict[str, Any]:
    return {"model": name, "model_config": None}


def named_tokenizer(name: str) -> dict[str, Any]:
    return {"data": {"vocab_size": None, "tokenizer": name}}


@pytest.mark.parametrize(
    "changes, problem",
    [
        ({"slots": 4, "layout": {"shard": 3}}, "layout: replicate 1 x shard 3 x tensor 1 is 3 pr"),
        ({"slots": 8, "layout": {"tensor": 8}}, "tensor: 8 does not divide .*attention_heads 4"),
        ({"slots": 4, "layout": {"tensor": 4}}, "4 does not divide .* num_key_value_heads 2"),
        (
            {"slots": 2, "layout": {"tensor": 2}, **model_type("gpt2")},
            "gpt2 has no tensor-para",
        ),
        ({"slots": 8, "gpus": 1, "layout": {"tensor": 2}}, "2 peers do not fit inside"),
        ({"model_config": {"hidden_size": 64}}, "model_config.model_type: missing; use gpt2"),
        (model_type("lama"), "model_type: 'lama' is no model of"),
        (named_model("/none"), "hyperparameters.model: .*does not load"),
        (model_type("phi"), "model: phi reads packed rows wrongly"),
        (model_type("llama", layers=2), "config.layers: unknown key"),
        ({"max_seq_length": 64}, "the model has 32 positions"),
        (named_tokenizer("/no"), "data.tokenizer: '/no' does not load"),
        (named_tokenizer("embedded/albert-tiny"), "has no eos_token"),
        (named_model("tests"), "model: 'tests' has no weights"),
    ],
)
def test_a_mistake_ends_there(changes, problem, machine):
    with pytest.raises(UserError, match=problem) as error:
        check(**changes)
    assert "\n" not in str(error.value)


CONFIG = AutoConfig.for_model(**TINY_LM["hyperparameters"]["model_config"], vocab_size=320)


def parameters() -> int:
    model = AutoModelForCausalLM.from_config(CONFIG)
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("layout", [{}, {"shard": 2, "tensor": 2}, {"replicate": 2, "shard": 2}])
@pytest.mark.parametrize("precision", ["fp32", "auto"])
def test_a_gpu_holds_what_the_planner_counts(layout, precision, machine):
    sizes = causal_sizes(CONFIG)
    assert sizes.parameters == parameters()

    changes = {"layout": layout or "auto", "precision": precision}
    hparams = parse_lm_hparams({**TINY_LM["hyperparameters"], **changes})
    chosen_layout = Layout(**layout) if layout else Layout(shard=4)
    memory = split_memory(sizes, chosen_layout, hparams)
    machine.free_gpu_bytes = math.ceil(memory.at(hparams.max_tokens_per_forward))
    check(slots=4, gpus=4, **changes)

    machine.free_gpu_bytes -= 1
    with pytest.raises(UserError, match="GPU-0: .* and a model of 0 M parameters takes 1.5 GiB"):
        check(slots=4, gpus=4, **changes)


def test_disks_hold_two_checkpoints_or_this_machines_parts(machine, tmp_path, monkeypatch):
    checkpoint_bytes = 12 * parameters()  # weights and two moments in fp32
    monkeypatch.setattr(preflight.tempfile, "gettempdir", lambda: str(tmp_path))

    # One of two machines, with storage elsewhere: half of each checkpoint waits for its upload.
    check(
        slots=8,
        gpus=4,
        storage={"type": "s3", "bucket": "b"},
        data={"cache_dir": str(tmp_path)},
    )
    assert list(tmp_path.iterdir()) == []  # it leaves nothing
    assert machine.gpus == 4
    parts = machine.disks["this machine's parts of two checkpoints"]
    assert parts == (tmp_path, checkpoint_bytes)
    assert "two checkpoints" not in machine.disks

    # A machine with all slots, and storage of its own.
    check(slots=8, storage={"type": "directory", "container_path": "/stored"})
    parts = machine.disks["this machine's parts of two checkpoints"]
    assert parts == (tmp_path, 2 * checkpoint_bytes)
    assert machine.disks["two checkpoints"] == (Path("/stored"), 2 * checkpoint_bytes)


def test_the_cache_holds_the_token_shards_that_are_not_there_yet(machine, tmp_path, monkeypatch):
    monkeypatch.setattr(preflight, "GIB", 100)
    text = tmp_path / "text"
    text.mkdir()
    (text / "a.jsonl").write_bytes(b"x" * 4000)
    (text / "b.jsonl.zst").write_bytes(b"x" * 7000)  # who knows what is in there
    held_out = tmp_path / "held.txt"
    held_out.write_bytes(b"x" * 1000)
    cache = tmp_path / "cache"
    data = {
        "documents": str(text),
        "validation_documents": str(held_out),
        "cache_dir": str(cache),
    }

    # 5,000 bytes are 1,000 tokens of 2 bytes; something is always asked for.
    for cached_bytes, missing_bytes in ((0, 2000), (600, 1400), (2000, 100)):
        if cached_bytes:
            cache.mkdir(exist_ok=True)
            (cache / "shard").write_bytes(b"x" * cached_bytes)
        check(data=data)
        assert machine.disks["token shards"] == (cache, missing_bytes)


def test_text_afar_is_listed(machine, monkeypatch):
    def find_nothing(address: str, key: str, endings: Any) -> list[str]:
        raise UserError(f"nothing below {address}", key=key)

    monkeypatch.setattr(records, "find_files", find_nothing)
    with pytest.raises(UserError, match="data.documents: nothing below s3://bucket/text"):
        check(data={"documents": "s3://bucket/text"})


LLAMA = tiny("llama", num_attention_heads=16, num_key_value_heads=8, hidden_size=128)
LAYOUTS = [  # what is set, slots, slots of a machine, and the layout that is chosen
    ({}, 1, 1, Layout()),
    ({}, 8, 8, Layout(shard=8)),
    ({}, 64, 8, Layout(replicate=8, shard=8)),
    ({}, 56, 8, Layout(replicate=7, shard=8)),
    ({}, 6, 4, Layout(shard=6)),  # machines of 4 that do not divide 6
    ({}, 4, 8, Layout(shard=4)),
    ({"tensor": 4}, 64, 8, Layout(replicate=8, shard=2, tensor=4)),
    ({"tensor": 8}, 64, 8, Layout(replicate=8, shard=1, tensor=8)),
    ({"replicate": 1}, 64, 8, Layout(shard=64)),
    ({"replicate": 2, "tensor": 2}, 64, 8, Layout(replicate=2, shard=16, tensor=2)),
    ({"shard": 16}, 64, 8, Layout(replicate=4, shard=16)),
]


def test_what_is_left_open_is_chosen():
    for layout, slots, slots_per_machine, expected in LAYOUTS:
        chosen = choose_layout(
            layout or "auto", LLAMA, slots=slots, slots_per_machine=slots_per_machine
        )
        assert chosen == expected


def test_a_plan_that_splits_the_embedding_is_taken_without_that():
    """As transformers 5.17 has it for Llama; the embedding is whole on each rank, like its head."""
    config = tiny("llama", tie_word_embeddings=True)
    linear_layers = dict(config.base_model_tp_plan)
    config.base_model_tp_plan = {"embed_tokens": "embedding_rowwise", **linear_layers}
    assert choose_layout({"tensor": 2}, config, 2, 2) == Layout(tensor=2)

    plan = lm_model._plan(AutoModelForCausalLM.from_config(config))
    assert set(plan) == {f"model.{name}" for name in linear_layers}


@pytest.mark.parametrize(("slots", "per_machine"), [(1, 1), (8, 8), (12, 4)])
def test_every_layout_of_whole_machines_is_planned(slots: int, per_machine: int) -> None:
    config = copy.deepcopy(TINY_LM)
    hparams = parse_lm_hparams(config["hyperparameters"])
    planned = set()
    for keys in SIZING.layouts(
        hparams, Slots(number=slots, per_machine=per_machine, has_bf16=True)
    ):
        layout = cast(dict[str, int], keys["layout"])
        planned.add((layout["replicate"], layout["shard"], layout["tensor"]))

    sizes = range(1, slots + 1)
    expected = set()
    for replicate, shard, tensor in itertools.product(sizes, repeat=3):
        if replicate * shard * tensor == slots and tensor <= per_machine:
            expected.add((replicate, shard, tensor))
    assert planned == expected

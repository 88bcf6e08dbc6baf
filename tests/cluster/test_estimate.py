"""Estimates: figures against published ones. mistakes.yaml has mistakes that they find."""

import json
import math
import re
from typing import Any

import pytest
from transformers import AutoConfig

from cluster import plan
from cluster.configs.masterconf import Pool, cluster_of
from cluster.estimates import traffic
from cluster.estimates.estimate import Estimate, estimate, ranked_layouts
from cluster.estimates.faults import find_faults
from cluster.estimates.job import parse_jobs
from cluster.estimates.times import time_parts
from cluster.planning.options import layout_keys
from detalbert.corpus.vocabulary import train_byte_bpe
from detalbert.engine.flops import encoder_flops_per_token, flops_of_row
from tests.cluster.planted import experiment, findings, master
from tests.conftest import ROOT
from tests.corpus.documents import byte_tokenizer, write, write_lines
from tests.fakes.text import contexts

EFA = "master-efa.yaml"


def test_shards_and_tokenizers_that_do_not_go_together(tmp_path):
    """Shards of another tokenizer, or too short for a window; no end of text; the right ones."""
    text = write_lines(tmp_path / "a.jsonl", contexts(400))
    shards = write(text, tmp_path, shard_mib=1, validation_fraction=0.3)
    tokenizer = str(tmp_path / "tokenizer")
    byte_tokenizer().save_pretrained(tokenizer)
    train_byte_bpe(contexts(60), 390).save_pretrained(tmp_path / "another")
    config = experiment("lm_local.yaml")
    model = {**config["hyperparameters"]["model_config"], "max_position_embeddings": 1 << 20}
    config["data"] = {"shuffle_shards": 2, "shards": str(shards), "tokenizer": tokenizer}
    config["hyperparameters"]["layout"] = "auto"

    def problems(section: str, **changes: Any) -> list[str]:
        changed = {**config, section: {**config[section], **changes}}
        return [finding.detail for finding in findings(tmp_path, changed)]

    assert problems("data") == []

    problem, *_ = problems(
        "hyperparameters",
        max_seq_length=1 << 20,
        max_tokens_per_forward=1 << 20,
        model_config=model,
    )
    assert "tokens fill no window of 1,048,576" in problem

    without_end = str(ROOT / "embedded" / "albert-tiny")
    problem, *_ = problems("data", shards=None, documents="generated", tokenizer=without_end)
    assert "has no eos_token" in problem

    problem, *_ = problems("data", tokenizer=str(tmp_path / "another"))
    assert "is not that of the shards of" in problem


def estimated(name: str, master_name: str, **hyperparameters: Any) -> Estimate:
    """Return the estimate of a config on its pool of a master."""
    config = experiment(f"{name}.yaml")
    config["hyperparameters"] |= hyperparameters
    pool = cluster_of(master(master_name)).pools[config["resources"]["resource_pool"]]
    (job,) = parse_jobs(config, pool, ROOT)
    answer = estimate(job)
    assert answer is not None
    return answer


def test_13_b_on_eight_p4d():
    """The figures of a prototype that was written apart."""
    sharded = estimated("lm_13b", EFA)
    step = sharded.step
    checkpoint = sharded.checkpoint
    assert list(find_faults(sharded)) == []
    assert sharded.demand.memory.states / 2**30 == pytest.approx(3.1, abs=0.1)
    assert step.sent == pytest.approx(92e9, rel=0.01)
    assert step.plain == pytest.approx(7.4, rel=0.02)
    assert step.efa == pytest.approx(1.8, rel=0.02)
    assert step.compute == pytest.approx(17.4, rel=0.05)
    assert checkpoint.stored == pytest.approx(19.8e9, rel=0.01)
    assert checkpoint.upload == pytest.approx(checkpoint.stored / traffic.UPLOAD_RATE / 8)


def test_copies_of_shards_beyond_their_batch_are_a_fault():
    """HSDP: each of eight machines has the model."""
    hybrid = estimated("lm_13b", EFA, layout={"shard": 8})
    assert hybrid.demand.memory.states / 2**30 == pytest.approx(24.6, rel=0.01)
    assert 4 <= hybrid.max_tokens // 2048 <= 5

    (fault,) = find_faults(hybrid)
    assert fault.key.endswith("max_tokens_per_forward")
    assert "32768 tokens do not fit" in fault.problem
    assert f"use {hybrid.max_tokens // 128 * 128} or less" in fault.cure


def test_a_step_waits_for_the_network_and_for_tensor_peers():
    sharded = estimated("lm_13b", EFA)
    assert sharded.step.seconds == sharded.step.compute

    # 16 forwards for one.
    small = estimated("lm_13b", EFA, max_tokens_per_forward=2048)
    assert small.forwards == 16 * sharded.forwards
    assert small.step.sent == pytest.approx(16 * sharded.step.sent)
    assert small.step.compute == sharded.step.compute
    assert small.step.seconds == small.step.efa
    assert small.step.efa > small.step.compute

    # 65,536 tokens a data rank; 40 layers, 4 sums of 5,120 numbers of 2 bytes at 300 GB/s
    halves = estimated("lm_13b", EFA, layout={"shard": 32, "tensor": 2})
    waits = 65_536 * 40 * 4 * 5120 * 2 / 300e9
    assert halves.step.compute - sharded.step.compute == pytest.approx(waits)


@pytest.mark.parametrize(
    "machines, span, forwards, expected",
    [
        # One machine sends nothing; copies inside machines add up gradients once a step.
        (1, 1, 4, 0),
        (8, 1, 4, 8 * 13.2e9 * 7 / 8),
        (8, 4, 1, 13.2 * (8e9 * 3 / 4 + 8e9 / 4 * 1 / 2)),
    ],
)
def test_bytes_that_a_machine_sends(machines, span, forwards, expected):
    sent = traffic.sent_bytes(13.2e9, machines, span, forwards, weight_bytes=2, gradient_bytes=4)
    assert sent == pytest.approx(expected)


def test_bytes_that_a_machine_sends_of_copies_in_bf16():
    assert traffic.sent_bytes(1e9, 2, 1, 1, weight_bytes=2, gradient_bytes=2) == 2e9


def test_a_share_of_the_tokens_has_a_vocabulary_head():
    config = AutoConfig.for_model(
        "albert",
        num_attention_heads=4,
        hidden_size=64,
        embedding_size=16,
        intermediate_size=128,
        vocab_size=500,
    )
    row = {"cu_seqlens": [0, 400], "masked": range(60)}

    flops = 400 * encoder_flops_per_token(config, 400, 0.15)

    assert flops == pytest.approx(flops_of_row(config, row))


def test_the_published_fine_tuning_comes_back():
    published = estimated("distributed64", "master-aws-spot.yaml")
    assert 256 / published.step.compute == pytest.approx(92.75, rel=1e-3)
    assert "Determined AI: albert-xxlarge-v2, 64 x V100 16 GB" in published.rate.how
    assert 1024 < published.max_tokens < 4096
    # 2 x 7/8 of 206 M gradients in fp32 at 150 GB/s, hidden behind 2.8 s of products.
    assert published.step.inside == pytest.approx(2 * 7 / 8 * 4 * 205.8e6 / 150e9, rel=0.01)

    parts = time_parts(published)
    seconds = {part.name: part.seconds for part in parts}
    assert seconds["training"] / 3600 == pytest.approx(0.8, abs=0.02)
    assert seconds["all-reduce in a machine"] == 0
    # At most twelve checkpoints; three validations, one before step 1, at a third of the cost.
    assert seconds["checkpoints"] == pytest.approx(12 * published.checkpoint.seconds)
    assert seconds["validation"] == pytest.approx(3 * 12_100 / 3 / 92.75, rel=1e-3)
    assert {part.source for part in parts} == {"assumed", "measured", "modelled"}


def test_layouts_that_are_suggested_fit_and_are_ranked():
    ranked = ranked_layouts(estimated("lm_13b", EFA))
    assert len(ranked) > 8
    steps = [round(layout.step.seconds, 3) for layout in ranked]
    assert steps == sorted(steps)
    shares = {layout_keys(layout)["activation_checkpointing"] for layout in ranked}
    assert shares == {"none", 0.5, "full"}

    # With its keys in the config, a layout has the time that it was ranked by.
    for layout in ranked[:8]:
        keys = layout_keys(layout)
        assert math.prod(keys["layout"].values()) == 64
        tried = estimated("lm_13b", EFA, **keys)
        assert list(find_faults(tried)) == []
        assert tried.step.seconds == layout.step.seconds
        assert tried.demand.memory.at(tried.tokens) / 2**30 < 40


def test_layouts_of_a_small_batch():
    for layout in ranked_layouts(estimated("lm_13b", EFA, global_batch_size=64)):
        assert layout.tokens * layout.demand.data_ranks <= 64 * 2048
    # A sharded model of another size that fits nowhere has none.
    assert ranked_layouts(estimated("lm_13b", EFA, global_batch_size=1)) == []


def test_recomputation_is_counted():
    none = estimated("lm_13b", EFA, activation_checkpointing="none")
    half = estimated("lm_13b", EFA, activation_checkpointing=0.5)
    full = estimated("lm_13b", EFA, activation_checkpointing="full")

    first_half = none.demand.memory.per_token - half.demand.memory.per_token
    second_half = half.demand.memory.per_token - full.demand.memory.per_token
    assert first_half == pytest.approx(second_half, rel=0.06)
    assert full.step.compute / half.step.compute == pytest.approx((4 / 3) / (7 / 6))


@pytest.mark.parametrize("compiled", [True, False])
def test_compilation_is_counted(compiled):
    parts = time_parts(estimated("lm_13b", EFA, compile=compiled))
    assert ("compilation" in [part.name for part in parts]) == compiled


@pytest.mark.parametrize("name", ["lm_1b", "lm_13b"])
def test_a_config_opens_with_what_the_planner_says(name, capsys, monkeypatch):
    text = (ROOT / "configs" / f"{name}.yaml").read_text()
    head, _, _ = text.partition("\nname:")
    (words,) = re.findall(r"^#   python -m cluster\.plan (.+)$", head, flags=re.MULTILINE)
    monkeypatch.chdir(ROOT)
    assert plan.main([*words.split(), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)

    head = head.replace("\n# ", " ")
    (memory,) = [row["figure"] for row in answer["memory"] if row["what"] == "of a GPU"]
    gib = float(memory.split()[0])
    assert f"{gib:.0f} GiB" in head

    # The config's own machines and slots, on demand.
    own = answer["own"]
    option = next(
        option
        for option in answer["options"]
        if option["instance"] == own["instance"]
        and option["slots"] == own["slots"]
        and not option["spot"]
    )
    assert f"{option['hours'][1]:.0f} h" in head
    assert f"${option['cost'][1]:,.0f}" in head


def test_the_experiments_own_tmpdir_comes_before_the_pools():
    """The pool's was taken where the experiment's own lay on no mounted folder."""
    tasks = {
        "environment_variables": ["TMPDIR=/store"],
        "bind_mounts": [{"host_path": "/nvme", "container_path": "/store"}],
    }
    pool = Pool("a100", 8, max_agents=1, gpu=None, spot=True, instance="p4d.24xlarge", tasks=tasks)
    variables = {"cuda": ["TMPDIR=/tmp"], "cpu": []}
    own = {"environment": {"environment_variables": variables}}

    assert traffic.scratch({}, pool)[0] == "/store, taken for the instance store"
    assert traffic.scratch(own, pool)[0] == "the root volume of 200 GiB (gp2)"

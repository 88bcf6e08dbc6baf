"""Estimates: figures against published ones. mistakes.yaml has mistakes that they find."""

import json
import pathlib
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
from detalbert.corpus.learn_tokenizer import train_byte_bpe
from detalbert.engine.flops import encoder_flops_per_token, flops_of_row
from tests.cluster.planted import experiment, findings, master, put
from tests.conftest import ROOT
from tests.corpus.documents import byte_tokenizer, write, write_lines
from tests.fakes.text import contexts

EFA = "master-efa.yaml"


def test_shards_and_tokenizers_that_do_not_go_together(tmp_path: pathlib.Path) -> None:
    """Shards of another tokenizer, or too short for a window; no end of text; the right ones."""
    text = write_lines(tmp_path / "a.jsonl", contexts(400))
    shards = write(text, tmp_path, shard_mib=1, validation_fraction=0.3)
    right, other = str(tmp_path / "tokenizer"), str(ROOT / "embedded" / "albert-tiny")
    byte_tokenizer().save_pretrained(right)

    def said(**changes: Any) -> list[str]:
        data = {"shards": str(shards), "tokenizer": right} | changes.pop("data", {})
        config = experiment("lm_local.yaml") | {"data": {"shuffle_shards": 2, **data}}
        for name, value in {"layout": "auto", **changes}.items():
            put(config, f"hyperparameters.{name}", value)
        return [f"{f.key}: {f.detail}" for f in findings(tmp_path, config)]

    keys = experiment("lm_local.yaml")["hyperparameters"]["model_config"]
    model = {**keys, "max_position_embeddings": 1 << 20}
    assert said() == []
    long = {"max_seq_length": 1 << 20, "max_tokens_per_forward": 1 << 20, "model_config": model}
    assert "tokens fill no window of 1,048,576" in said(**long)[0]
    documents = {"shards": None, "documents": "generated"}
    assert "has no eos_token" in said(data={**documents, "tokenizer": other})[0]
    train_byte_bpe(contexts(60), 390).save_pretrained(tmp_path / "another")
    found = said(data={"tokenizer": str(tmp_path / "another")})
    assert "is not the one that the shards of" in found[0]


def planned(name: str, master_name: str, **hyperparameters: Any) -> Estimate:
    config = experiment(f"{name}.yaml")
    config["hyperparameters"] |= hyperparameters
    pool = cluster_of(master(master_name)).pools[config["resources"]["resource_pool"]]
    (job,) = parse_jobs(config, pool, ROOT)
    found = estimate(job)
    assert found is not None
    return found


def test_13_b_on_eight_p4d() -> None:
    """The figures of the audit's prototype, and of the issue."""
    found = planned("lm_13b", EFA)
    assert list(find_faults(found)) == []
    assert found.demand.memory.states / 2**30 == pytest.approx(3.1, abs=0.1)
    assert found.step.sent == pytest.approx(92e9, rel=0.01)
    assert (found.step.plain, found.step.efa) == pytest.approx((7.4, 1.8), rel=0.02)
    assert found.step.compute == pytest.approx(17.4, rel=0.05)
    assert found.checkpoint.stored == pytest.approx(19.8e9, rel=0.01)
    hybrid = planned("lm_13b", EFA, layout={"shard": 8})
    assert hybrid.demand.memory.states / 2**30 == pytest.approx(24.6, rel=0.01)
    assert 4 <= hybrid.max_tokens // 2048 <= 5
    (fault,) = find_faults(hybrid)  # HSDP beyond its batch
    assert fault.key.endswith("max_tokens_per_forward")
    assert "32768 tokens do not fit" in fault.problem
    assert f"use {hybrid.max_tokens // 128 * 128} or less" in fault.cure
    assert found.checkpoint.upload == pytest.approx(
        found.checkpoint.stored / traffic.UPLOAD_RATE / 8
    )


def test_a_step_waits_for_the_network_and_for_tensor_peers() -> None:
    whole = planned("lm_13b", EFA)
    small = planned("lm_13b", EFA, max_tokens_per_forward=2048)  # 16 forwards for one
    assert small.forwards == 16 * whole.forwards and small.step.sent == pytest.approx(
        16 * whole.step.sent
    )
    assert small.step.seconds == small.step.efa > small.step.compute
    assert small.step.compute == whole.step.compute == whole.step.seconds
    halves = planned("lm_13b", EFA, layout={"shard": 32, "tensor": 2})
    # 65,536 tokens a data rank; 40 layers, 4 sums of 5,120 numbers of 2 bytes at 300 GB/s
    waits = 65_536 * 40 * 4 * 5120 * 2 / 300e9
    assert halves.step.compute - whole.step.compute == pytest.approx(waits)
    # One machine sends nothing; copies inside machines add up gradients once a step.
    for machines, span, forwards, sent in (
        (1, 1, 4, 0),
        (8, 1, 4, 8 * 13.2e9 * 7 / 8),
        (8, 4, 1, 13.2 * (8e9 * 3 / 4 + 8e9 / 4 * 1 / 2)),
    ):
        found = traffic.sent_bytes(
            13.2e9, machines, span, forwards, weight_bytes=2, gradient_bytes=4
        )
        assert found == pytest.approx(sent)
    # copies in bf16
    assert traffic.sent_bytes(1e9, 2, 1, 1, weight_bytes=2, gradient_bytes=2) == 2e9


def test_a_share_of_the_tokens_has_a_vocabulary_head() -> None:
    keys = {"hidden_size": 64, "embedding_size": 16, "intermediate_size": 128, "vocab_size": 500}
    config = AutoConfig.for_model("albert", num_attention_heads=4, **keys)
    row = {"cu_seqlens": [0, 400], "masked": range(60)}
    said = 400 * encoder_flops_per_token(config, 400, 0.15)
    assert said == pytest.approx(flops_of_row(config, row))


def test_the_published_fine_tuning_comes_back() -> None:
    found = planned("distributed64", "master-aws-spot.yaml")
    assert 256 / found.step.compute == pytest.approx(92.75, rel=1e-3)
    assert "Determined AI: albert-xxlarge-v2, 64 x V100 16 GB" in found.rate.how
    assert 1024 < found.max_tokens < 4096
    parts = {part.name: part for part in time_parts(found)}
    assert parts["training"].seconds / 3600 == pytest.approx(0.8, abs=0.02)
    # 2 x 7/8 of 206 M gradients in fp32 at 150 GB/s, hidden behind 2.8 s of products.
    assert found.step.inside == pytest.approx(2 * 7 / 8 * 4 * 205.8e6 / 150e9, rel=0.01)
    assert parts["all-reduce in a machine"].seconds == 0
    # At most twelve checkpoints; three validations, one before step 1, at a third of the cost.
    assert parts["checkpoints"].seconds == pytest.approx(12 * found.checkpoint.seconds)
    assert parts["validation"].seconds == pytest.approx(3 * 12_100 / 3 / 92.75, rel=1e-3)
    assert {part.source for part in parts.values()} == {"assumed", "measured", "modelled"}


def test_layouts_that_are_suggested_fit_and_are_ranked() -> None:
    small = planned("lm_13b", EFA, global_batch_size=64)
    for each in ranked_layouts(small):
        assert each.tokens * each.demand.data_ranks <= 64 * 2048
    whole = planned("lm_13b", EFA)
    ranked = ranked_layouts(whole)
    assert len(ranked) > 8
    steps = [round(each.step.seconds, 3) for each in ranked]
    assert steps == sorted(steps)
    for each in ranked[:8]:
        keys = layout_keys(each)
        assert (
            keys["layout"]["replicate"] * keys["layout"]["shard"] * keys["layout"]["tensor"] == 64
        )
        found = planned("lm_13b", EFA, **keys)
        assert list(find_faults(found)) == []
        assert (
            found.step.seconds == each.step.seconds
            and found.demand.memory.at(found.tokens) / 2**30 < 40
        )
    shares = {layout_keys(each)["activation_checkpointing"] for each in ranked}
    assert shares == {"none", 0.5, "full"}
    # A sharded model of another size that fits nowhere has none.
    nothing = planned("lm_13b", EFA, global_batch_size=1)
    assert ranked_layouts(nothing) == []


def test_recomputation_and_compilation_are_counted() -> None:
    none, half, full = (
        planned("lm_13b", EFA, activation_checkpointing=share) for share in ("none", 0.5, "full")
    )
    kept = [each.demand.memory.per_token for each in (none, half, full)]
    assert kept[0] - kept[1] == pytest.approx(kept[1] - kept[2], rel=0.06)
    assert full.step.compute / half.step.compute == pytest.approx((4 / 3) / (7 / 6))
    for wanted in (True, False):
        parts = time_parts(planned("lm_13b", EFA, compile=wanted))
        assert ("compilation" in [part.name for part in parts]) == wanted


@pytest.mark.parametrize("name", ["lm_1b", "lm_13b"])
def test_a_config_opens_with_what_the_planner_says(name: str, capsys: Any) -> None:
    path = ROOT / "configs" / f"{name}.yaml"
    assert plan.main([str(path), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    own = said["own"]
    head = path.read_text().partition("\nname:")[0].replace("\n# ", " ")
    memory = next(row["figure"] for row in said["memory"] if row["what"] == "of a GPU")
    assert f"{float(memory.split()[0]):.0f} GiB" in head
    fixed = [o for o in said["options"] if o["instance"] == own["instance"] and not o["spot"]]
    fixed = next(o for o in fixed if o["slots"] == own["slots"])
    assert f"{fixed['hours'][1]:.0f} h" in head and f"${fixed['cost'][1]:,.0f}" in head


def test_the_experiments_own_tmpdir_comes_before_the_pools() -> None:
    """The pool's was taken where the experiment's own lay on no mounted folder."""
    tasks = {
        "environment_variables": ["TMPDIR=/store"],
        "bind_mounts": [{"host_path": "/nvme", "container_path": "/store"}],
    }
    pool = Pool("a100", 8, max_agents=1, gpu=None, spot=True, instance="p4d.24xlarge", tasks=tasks)
    own = {"environment": {"environment_variables": {"cuda": ["TMPDIR=/tmp"], "cpu": []}}}
    assert traffic.scratch({}, pool)[0] == "/store, taken for the instance store"
    assert traffic.scratch(own, pool)[0] == "the root volume of 200 GiB (gp2)"

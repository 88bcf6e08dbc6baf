"""The planner: figures against published ones. mistakes.yaml has mistakes that it finds."""

import json
import pathlib
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AlbertForPreTraining, AutoConfig, AutoModelForCausalLM

from cluster import layouts, memory, planner, speeds
from cluster.machines import FAMILIES
from cluster.masterconf import cluster_of
from cluster.models import find_model
from cluster.planner import Planned
from cluster.published import LANGUAGE
from detalbert.corpus.learn_tokenizer import train_byte_bpe
from detalbert.engine.memory import Sizes
from detalbert.settings.hparams import HParams
from lm.hparams import parse_lm_hparams
from tests.cluster.planted import experiment, findings, master, put
from tests.conftest import ROOT
from tests.corpus.documents import byte_tokenizer, write, write_lines
from tests.fakes.text import contexts
from tests.lm.ranks import tiny

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
        return [f"{f.key}: {f.problem}" for f in findings(tmp_path, config)]

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


def planned(name: str, master_name: str, **hyperparameters: Any) -> Planned:
    config = experiment(f"{name}.yaml")
    values = {**config["hyperparameters"], **hyperparameters}
    pools = cluster_of(master(master_name)).pools
    pool = pools[config["resources"]["resource_pool"]]
    return planner.plan(config, parse_lm_hparams(values), pool, ROOT)


def test_13_b_on_eight_p4d() -> None:
    """The figures of the audit's prototype, and of the issue."""
    found = planned("lm_13b", EFA)
    assert list(planner.faults(found)) == []
    assert found.memory.states / 2**30 == pytest.approx(3.1, abs=0.1)
    assert found.sent == pytest.approx(92e9, rel=0.01)
    assert (found.network(False), found.network(True)) == pytest.approx((7.4, 1.8), rel=0.02)
    assert found.compute == pytest.approx(17.4, rel=0.05)
    assert found.stored == pytest.approx(19.8e9, rel=0.01)
    price = memory.load_prices()["p4d.24xlarge"]
    assert found.dollars(price, False) == pytest.approx(99_000, rel=0.05)
    hybrid = planned("lm_13b", EFA, layout={"shard": 8})
    assert hybrid.memory.states / 2**30 == pytest.approx(24.6, rel=0.01)
    assert 4 <= hybrid.most // 2048 <= 5
    ((key, problem),) = planner.faults(hybrid)  # HSDP beyond its batch
    assert key.endswith("max_tokens_per_forward") and "32768 tokens do not fit" in problem
    assert f"use {hybrid.most // 128 * 128} or less" in problem
    assert found.leaving()[2] == pytest.approx(found.stored / speeds.UPLOAD_RATE / 8)


def test_a_step_waits_for_the_network_and_for_tensor_peers() -> None:
    whole = planned("lm_13b", EFA)
    small = planned("lm_13b", EFA, max_tokens_per_forward=2048)  # 16 forwards for one
    assert small.forwards == 16 * whole.forwards and small.sent == pytest.approx(16 * whole.sent)
    assert small.step == small.network(True) > small.compute == whole.compute == whole.step
    halves = planned("lm_13b", EFA, layout={"shard": 32, "tensor": 2})
    # 65,536 tokens a data rank; 40 layers, 4 sums of 5,120 numbers of 2 bytes at 300 GB/s
    waits = 65_536 * 40 * 4 * 5120 * 2 / 300e9
    assert halves.compute - whole.compute == pytest.approx(waits)
    # One machine sends nothing; copies inside machines add up gradients once a step.
    for machines, span, forwards, sent in (
        (1, 1, 4, 0),
        (8, 1, 4, 8 * 13.2e9 * 7 / 8),
        (8, 4, 1, 13.2 * (8e9 * 3 / 4 + 8e9 / 4 * 1 / 2)),
    ):
        found = speeds.sent_bytes(13.2e9, machines, span, forwards, weight=2, gradient=4)
        assert found == pytest.approx(sent)
    assert speeds.sent_bytes(1e9, 2, 1, 1, weight=2, gradient=2) == 2e9  # copies in bf16


@pytest.mark.parametrize("row", [r for r in LANGUAGE if r.by == "llm-foundry"], ids=str)
def test_published_speeds_come_back(row: Any) -> None:
    keys = {"hidden_size": row.hidden, "intermediate_size": 4 * row.hidden, "vocab_size": 50_368}
    keys |= {"num_hidden_layers": row.layers, "num_attention_heads": row.hidden // 64}
    flops = speeds.causal_token(AutoConfig.for_model("gpt_neox", **keys), row.length)
    sizes = Sizes("gpt_neox", 0, 0, 0, 0, 0, int(row.millions * 1e6))
    gpu = next(g for g in FAMILIES.values() if (g.name, g.gigabytes) == (row.gpu, row.gigabytes))
    here = gpu, row.gpus, row.length
    rate = speeds.language_rate(sizes, flops, *here, row.checkpointing)
    assert rate.source == "published" and rate.tokens == pytest.approx(row.tokens)
    other = speeds.language_rate(sizes, flops, *here, not row.checkpointing)
    again = 3 / 4 if row.checkpointing else 4 / 3
    assert other.source == "modelled" and other.tokens == pytest.approx(row.tokens / again)
    twice = speeds.language_rate(sizes, 2 * flops, *here, row.checkpointing)
    assert twice.tokens == pytest.approx(row.tokens / 2)


@pytest.mark.parametrize("family", ["llama", "gpt_neox", "albert"])
def test_flops_are_what_torch_counts(family: str) -> None:
    """Token after token with a cache: each reads itself and those before it. Pretraining: 15 %
    are hidden."""
    sizes = {"hidden_size": 64, "embedding_size": 16, "intermediate_size": 128}
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        if family == "albert":
            config = AutoConfig.for_model(family, vocab_size=500, num_attention_heads=4, **sizes)
            model = AlbertForPreTraining._from_config(config, attn_implementation="eager").eval()
            hidden = model.albert(torch.full((1, 400), 7)).last_hidden_state
            model.predictions(hidden[:, :60])
            said = 400 * speeds.encoder_token(config, 400, 0.15)
        else:
            model, cache = AutoModelForCausalLM.from_config(tiny(family)).eval(), None
            model.set_attn_implementation("eager")
            for _ in range(9):
                cache = model(torch.tensor([[7]]), past_key_values=cache).past_key_values
            said = 9 * speeds.causal_token(model.config, 9)
    assert said == pytest.approx(3 * counter.get_total_flops(), rel=1e-3)


def test_the_published_fine_tuning_comes_back() -> None:
    config = experiment("distributed64.yaml")
    pool = cluster_of(master()).pools[config["resources"]["resource_pool"]]
    hparams = HParams(**config["hyperparameters"])
    found = planner.plan(config, hparams, pool, ROOT)
    assert (
        256 / found.compute == pytest.approx(92.75, rel=1e-3) and found.rate.source == "published"
    )
    assert 1024 < found.most < 4096
    assert found.steps * found.step / 3600 == pytest.approx(0.8, abs=0.02)


def test_the_speed_on_an_h100_is_the_measured_one() -> None:
    config, hparams = experiment("single.yaml"), HParams(model="albert-xxlarge-v2")
    model = find_model(config, hparams, ROOT)
    result = json.loads(speeds.MEASURED.read_text())["results"]["ours"]
    flops = speeds.encoder_token(model.config, 384 * speeds.REAL)
    rate = speeds.encoder_rate(flops, FAMILIES["p5"], 1)
    assert rate.source == "measured"
    assert rate.tokens == pytest.approx(result["tokens_per_second"]["median"], rel=0.03)
    assert speeds.encoder_rate(flops, FAMILIES["p4d"], 1).source == "modelled"
    assert speeds.encoder_rate(2 * flops, FAMILIES["p5"], 1).source == "modelled"


def test_layouts_that_are_suggested_fit_and_are_ranked() -> None:
    for row in layouts.layout_rows(planned("lm_13b", EFA, global_batch_size=64)):
        assert row["max_tokens_per_forward"] * row["replicate"] * row["shard"] <= 64 * 2048
    rows = layouts.layout_rows(planned("lm_13b", EFA))
    assert len(rows) == layouts.SHOWN
    assert [row["tokens/s"] for row in rows] == sorted((r["tokens/s"] for r in rows), reverse=True)
    for row in rows:
        layout = {name: row[name] for name in ("replicate", "shard", "tensor")}
        assert layout["replicate"] * layout["shard"] * layout["tensor"] == 64
        names = "activation_checkpointing", "max_tokens_per_forward"
        found = planned("lm_13b", EFA, layout=layout, **{name: row[name] for name in names})
        assert list(planner.faults(found)) == [] and row["GiB"] < 40


@pytest.mark.parametrize("name", ["lm_1b", "lm_13b"])
def test_a_config_opens_with_what_the_planner_says(name: str, capsys: Any) -> None:
    path = ROOT / "configs" / f"{name}.yaml"
    assert memory.main([str(path), "--suggest"]) == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("modelled", "published", "it fits"))
    assert name == "lm_1b" or "400 Gbit/s by EFA (this one)" in shown
    assert memory.main([str(path), "--json"]) == 0
    said = {line["what"]: line["figure"] for line in json.loads(capsys.readouterr().out)["lines"]}
    disk, upload, leaving = (
        int(said[what].split()[0])
        for what in ("checkpoint, disk", "checkpoint, upload", "leaving with notice")
    )
    assert leaving >= disk + upload - 1  # rounded
    head = path.read_text().partition("\nname:")[0].replace("\n# ", " ")
    hours, memory_gib = said["run"].split()[0], said["of a GPU"].split()[0]
    for figure in (f"{float(hours):.0f} h", said["on demand"], f"{float(memory_gib):.0f} GiB"):
        assert figure in head


def test_what_cannot_be_planned_is_one_line(capsys: Any, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "job.yaml"
    for name, old, new, words in (
        ("lm_13b", "efa-p4d-24xlarge", "no-such", "no pool 'no-such'; give --master, or one of"),
        ("single", "albert-xxlarge-v2", "roberta-large", "its sizes are not known"),
        ("lm_13b", "shard: 64", "shard: 63", "hyperparameters.layout: replicate 1 x shard 63"),
        ("lm_13b", "max_steps", "max_step", "did you mean 'max_steps'"),
        ("lm_125m", "slots_per_trial: 1", "resource_pool: aux-cpu", "of 'aux-cpu' is not known"),
    ):
        path.write_text((ROOT / "configs" / f"{name}.yaml").read_text().replace(old, new))
        assert memory.main([str(path)]) == 2
        said = capsys.readouterr().err
        assert words in said and said.count("\n") == 1

"""`plan`: what is planned, what it advises, and the same bytes for the same seed."""

import dataclasses
import json
import math
import re

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cluster.prices import load_prices
from data import load_split, load_tokenizer
from detalbert.settings.hparams import parse_data_config, parse_hparams
from reports import simulate
from reports.plan import count_windows, mark_front
from reports.settings import Settings, parse_speed
from reports.simulate import CASES, Constant, SpotJob, best_period, load_trace, running_seconds
from tests.conftest import ROOT, TINY, max_examples
from tests.reports.conftest import refused, report

FEW = "--runs 300 --hourly 0.05 --wait-seconds 120".split()
FEW += "--pool p3.2xlarge p3.16xlarge --slots 1 8 64".split()


def plan(capsys, *arguments: str) -> dict:
    return report(capsys, "plan", *arguments)


def planned(capsys, *arguments: str) -> dict:
    return plan(capsys, *FEW, *arguments)


def all_options(report: dict) -> list:
    return next(t["rows"] for t in report["tables"] if t["title"] == "All options")


def test_every_pool_and_slot_count_that_fit_are_planned(capsys):
    rows = all_options(planned(capsys))
    found = {(r["hardware"], r["market"]): r for r in rows}
    fitting = {f"{n} x p3.2xlarge" for n in (1, 8, 64)} | {f"{n} x p3.16xlarge" for n in (1, 8)}
    assert set(found) == {(h, market) for h in fitting for market in ("spot", "on demand")}
    spot, fixed = found["8 x p3.16xlarge", "spot"], found["8 x p3.16xlarge", "on demand"]
    assert spot["cost"] < fixed["cost"] == spot["on demand"] and spot["hours"] > fixed["hours"]
    assert fixed["reclaims"] == 0 and fixed["steps"] is None
    assert fixed["hours"] == pytest.approx((300 + 60 + 264_396 / 92.75 + 25) / 3600)
    speeds = {r["hardware"]: r["speed"] for r in rows}
    published = {h for h, kind in speeds.items() if kind == "published"}
    assert published == {"1 x p3.2xlarge", "1 x p3.16xlarge", "8 x p3.16xlarge"}
    assert speeds["8 x p3.2xlarge"] == speeds["64 x p3.2xlarge"] == "modelled"


def test_today_s_families_are_planned_by_default(capsys):
    report = plan(capsys, "--runs", "10")
    assert {r["slots"] for r in all_options(report)} == {1, 4, 8, 16, 32, 64}
    families = {r["hardware"].split(" x ")[1].split(".")[0] for r in all_options(report)}
    assert {"p4d", "p4de", "p5", "p5en", "p6-b200", "p6-b300", "g5", "g6", "g6e", "g7e"} <= families
    assert not {"p3", "p3dn"} & families
    assert not any("RETIRED" in note for note in report["notes"])
    assert any("p3.16xlarge: RETIRED" in note for note in planned(capsys)["notes"])


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9) | st.just(math.inf)), min_size=1))
def test_the_front_is_what_no_other_one_beats(points):
    rows = [{"front": "", "hardware": "1 x a", "hours": h, "cost": c} for h, c in points]
    mark_front(rows)
    for row in rows:
        mine = (row["hours"], row["cost"])
        better = [p for p in points if p != mine and p[0] <= mine[0] and p[1] <= mine[1]]
        same = [r["front"] for r in rows if (r["hours"], r["cost"]) == mine]
        assert "".join(same) == ("" if better or math.isinf(mine[1]) else "*")


def test_the_deadline_chooses_and_the_yaml_follows(capsys):
    slow = yaml.safe_load(planned(capsys)["yaml"].replace("<<", "").replace(">>", ""))
    report = planned(capsys, "--deadline", "2")
    fast = yaml.safe_load(report["yaml"].replace("<<", "").replace(">>", ""))
    assert slow["resources"]["slots_per_trial"] < fast["resources"]["slots_per_trial"] == 64
    chosen = next(r for r in all_options(report) if r["hardware"] == "8 x p3.16xlarge")
    assert fast["hyperparameters"]["checkpoint_period"] == chosen["steps"]
    assert report["total"] == chosen["cost"]
    assert chosen["in time"] > 0.95
    assert "MISSES THE DEADLINE" in planned(capsys, "--deadline", "0.1")["yaml"]


def test_faster_gpus_are_marked_as_modelled():
    known, speed = load_prices(), parse_speed(None, load_prices())
    assert speed.at(64, known["p3.16xlarge"]) == (pytest.approx(92.75), "published")
    per_slot = speed.at(16, known["p3.16xlarge"])[0] / 16
    assert 92.75 / 64 < per_slot < 15.8 / 8
    assert speed.at(8, known["p4d.24xlarge"]) == (pytest.approx(15.8 * 312 / 125), "modelled")
    assert speed.at(8, known["p6-b200.48xlarge"])[0] == pytest.approx(15.8 * 2250 / 125)
    own = parse_speed("8=100@p4d.24xlarge", known)
    assert own.at(8, known["p4d.24xlarge"]) == (pytest.approx(100), "measured")
    assert own.at(8, known["p4de.24xlarge"]) == (pytest.approx(100), "modelled")


def test_tokens_are_planned_like_the_windows_that_hold_them(capsys):
    windows = planned(capsys, "--windows", "100000", "--throughput", "8=10@p3.16xlarge")
    work = "--tokens 38400000 --throughput 8=3840@p3.16xlarge --batch 18432"
    tokens = planned(capsys, *work.split())
    assert tokens["title"] == "What 38,400,000 tokens would take and cost"
    pick = ("hardware", "hours", "cost", "cost high", "minutes")
    eight = [[r[k] for k in pick] for r in all_options(windows) if r["slots"] == 8]
    assert [[r[k] for k in pick] for r in all_options(tokens) if r["slots"] == 8] == eight
    same = [planned(capsys, *work)["yaml"] for work in ([], ["--tokens", str(264_396 * 384)])]
    assert same[0] == same[1]  # the published speed and batch, in tokens
    row = all_options(tokens)[0]
    assert row["$/1,000,000 tokens"] == pytest.approx(row["cost"] / 38.4) and "windows/s" not in row


def test_a_trace_is_planned(capsys, tmp_path):
    trace, other = tmp_path / "trace.csv", tmp_path / "trace.json"
    rows = "".join(f"{hour},64\n{hour + 0.5},0\n" for hour in range(0, 100, 2))
    trace.write_text("hours,machines\n" + rows + "100,0\n")
    arguments = [text for text in FEW if text not in ("--hourly", "0.05", "--wait-seconds", "120")]
    rows = all_options(plan(capsys, *arguments, "--trace", str(trace)))
    spot = next(r for r in rows if r["hardware"] == "8 x p3.16xlarge" and r["market"] == "spot")
    assert spot["waiting h"] > 1 and spot["hours"] > 0.8 + spot["waiting h"]
    trace.write_text("hours,machines\n0,8\n2,7\n2.5,8\n10,0\n")
    read = load_trace(trace)
    assert (list(read.seconds), list(read.machines)) == ([0, 7200, 9000], [8, 7, 8])
    alike = read.alike()
    assert alike.hourly == pytest.approx(1 / 79.5) and alike.wait_seconds == pytest.approx(1800)
    other.write_text(json.dumps({"metadata": {"gap_seconds": 1800}, "data": [4, 4, 0, 4]}))
    assert list(load_trace(other).seconds) == [0, 1800, 3600, 5400]
    assert (read.length, load_trace(other).length) == (36_000, 7200)


def test_windows_of_a_file_are_counted_with_its_tokenizer(tiny_config):
    config = yaml.safe_load(tiny_config.read_text())
    hparams = parse_hparams(TINY["hyperparameters"])
    data = parse_data_config(config["data"])
    split = load_split(data, "train", load_tokenizer(data, hparams), hparams)
    assert count_windows("generated", tiny_config) == split.counts["windows"] > 0


def test_an_option_that_never_finishes_is_told_and_not_chosen(capsys):
    hopeless = "--hourly 60 --restart-seconds 900 --pool p3.16xlarge --slots 64 --runs 10"
    report = plan(capsys, *hopeless.split())
    spot, fixed = sorted(all_options(report), key=lambda row: row["market"], reverse=True)
    assert spot["cost"] is None and "on demand" in report["yaml"] and fixed["front"] == "*"


def test_the_same_seed_gives_the_same_page_byte_for_byte(capsys, tmp_path):
    pages = []
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        path = tmp_path / f"{name}.html"
        planned(capsys, "--seed", seed, "--html", str(path))
        pages.append(path.read_bytes())
    assert pages[0] == pages[1] != pages[2]
    assert not [p for p in tmp_path.iterdir() if p.suffix != ".html"]  # nothing half-written
    assert b">What 264,396 windows" in pages[0] and b"checkpoint_period" in pages[0]
    assert b"http" not in pages[0].replace(b"http-equiv", b"")  # it needs nothing from outside


def test_a_language_model_s_plan_is_the_planner_s(capsys) -> None:
    """`--config` of a language model: its speeds, at the fastest layout of each machine."""
    lm = str(ROOT / "configs" / "lm_1b.yaml")
    asked = ["--tokens", "26e9", "--config", lm, "--runs", "10"]
    rows = all_options(plan(capsys, *asked, "--slots", "8", "16"))
    fixed = {(r["hardware"], r["slots"]): r for r in rows if r["market"] == "on demand"}
    one = fixed["1 x p4d.24xlarge", 8]
    assert one["tokens/s"] == pytest.approx(8 * 19_271, rel=0.01)  # published
    assert one["cost"] == pytest.approx(1_040, rel=0.02)
    # Two machines are taken to be twice as fast: their network is hidden behind the products.
    assert fixed["2 x p4d.24xlarge", 16]["tokens/s"] == pytest.approx(2 * one["tokens/s"], rel=0.03)
    small = ["--slots", "1", "--pool", "g4dn.xlarge"]  # it has 22 GB of states
    assert "no instance has machines for these slots" in refused(capsys, "plan", *asked, *small)


MIDDLE, HIGH = CASES["middle"], CASES["high"]
SLOW = Settings(checkpoint_seconds=180, boot_seconds=600)
JOBS = {
    "64 V100": (SpotJob(2850, 2850, 8, 7.344), 2.76),
    "1 V100 for 37 h": (SpotJob(132_198, 132_198, 1, 0.918), 24.0),
    "8 H100": (SpotJob(2110, 2110, 1, 21.15), 0.384),
    "slow checkpoints": (SpotJob(20_000, 20_000, 4, 8, SLOW), 1.5),
    "slow restarts": (SpotJob(9000, 9000, 2, 8, Settings(restart_seconds=600)), 3.0),
}


@pytest.mark.parametrize("name", JOBS)
def test_at_the_high_rate_the_advised_period_costs_at_most_a_tenth_more_than_the_best(name):
    job, step = JOBS[name]
    steps = best_period(job, MIDDLE, HIGH, step)
    whole = int(job.work_seconds / step)
    costs = {}
    for count in {steps, *np.geomspace(1, whole, 60).astype(int)}:
        one = dataclasses.replace(job, period_seconds=float(count * step))
        if running_seconds(one, HIGH, np.array([count * step]))[0][0] < 20 * job.work_seconds:
            costs[count] = simulate.simulate(one, HIGH, 2000, seed=0)["cost"].mean()
    assert len(costs) > 20 and costs[steps] <= 1.10 * min(costs.values())


TIMES = st.floats(1, 1e6), st.floats(1e-3, 3600), st.floats(0.1, 600)


@max_examples(50)
@given(*TIMES, st.integers(1, 64), st.floats(0, 3), st.floats(0, 3))
def test_no_advice_puts_more_than_30_minutes_or_half_the_run_at_stake(
    work, step, checkpoint, machines, rate, more
):
    job = SpotJob(work, work, machines, 1, Settings(checkpoint_seconds=checkpoint))
    steps = best_period(job, Constant(rate), Constant(rate + more), step)
    assert steps == 1 or steps * step <= min(1800, work / 2) * (1 + 1e-9)


@pytest.mark.parametrize("pool", [[], ["--pool", "p3.16xlarge"]])
def test_the_default_plan_of_the_64_slot_job_has_a_range_that_is_not_a_point(capsys, pool):
    report = plan(capsys, *"--slots 64 --runs 1000".split(), *pool)
    spot = [row for row in report["tables"][0]["rows"] if row["market"] == "spot"]
    assert spot
    for row in spot:
        assert row["hours low"] < row["hours"] < row["hours high"]
        assert row["cost low"] < row["cost high"] and row["cost"] < row["on demand"]
        assert row["waiting h"] > 0 and row["reclaims"] > 0.01
    assert report["total"] == min(row["cost"] for row in report["tables"][0]["rows"])
    cases = report["tables"][1]["rows"]
    assert [row["case"] for row in cases] == ["low", "middle", "high"]
    assert [row["reclaims/h"] for row in cases] == [0.06, 0.236, 1.39]
    assert [row["wait min"] for row in cases] == [2, 60, 236]
    steps = int(re.search(r"checkpoint_period: (\d+)", report["yaml"])[1])
    minutes = next(row["minutes"] for row in spot if row["steps"] == steps)
    assert steps > 1 and minutes <= 30
    if pool:  # the published job
        assert 20 < steps <= 1033 / 2
        said = "p3.16xlarge: RETIRED, AWS launches none since 2026-05-25"
        assert any(said in note for note in report["notes"])


def test_a_plan_prints_the_rules_of_its_page(capsys) -> None:
    page = (ROOT / "reports" / "README.md").read_text().split("## How a plan is made\n")[1]
    rules = planned(capsys)["method"]
    assert len(rules) == page.split("\n## ")[0].count("\n- ") and "](" not in "".join(rules)

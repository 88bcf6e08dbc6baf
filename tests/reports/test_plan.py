"""`plan`, and the page: in headless Chromium, and the same bytes for the same seed."""

import json
import os

import pytest
import yaml

from data import load_split, load_tokenizer
from detalbert.settings.hparams import parse_data_config, parse_hparams
from reports.__main__ import main
from reports.speed import count_windows, parse_speed
from tests.conftest import TINY
from tests.fakes.browser import chromium

FEW = ["--runs", "300", "--today", "2026-10-01", "--hourly", "0.05", "--pool", "p3.2xlarge",
       "p3.16xlarge", "--slots", "1", "8", "64"]  # fmt: skip


def planned(capsys, *arguments: str) -> dict:
    assert main(["plan", *FEW, *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def all_options(report: dict) -> list:
    return next(t["rows"] for t in report["tables"] if t["title"] == "All options")


def test_every_pool_and_slot_count_that_fit_are_planned(capsys):
    found = {(r["hardware"], r["market"]): r for r in all_options(planned(capsys))}
    fitting = {"1 x p3.2xlarge", "8 x p3.2xlarge", "64 x p3.2xlarge", "1 x p3.16xlarge",
               "8 x p3.16xlarge"}  # fmt: skip
    assert set(found) == {(h, market) for h in fitting for market in ("spot", "on demand")}
    spot, fixed = found["8 x p3.16xlarge", "spot"], found["8 x p3.16xlarge", "on demand"]
    assert (
        spot["cost"] < fixed["cost"] and spot["hours"] > fixed["hours"] and fixed["reclaims"] == 0
    )
    assert spot["windows/s"] == 92.75 and spot["speed"] == "published"


def test_no_option_beats_one_on_the_front(capsys):
    rows = all_options(planned(capsys))
    front = [row for row in rows if row["front"] == "*"]
    assert front
    for row in front:
        assert not any(o["hours"] < row["hours"] and o["cost"] < row["cost"] for o in rows)


def test_the_deadline_chooses_and_the_yaml_follows(capsys):
    slow = yaml.safe_load(planned(capsys)["yaml"].replace("<<", "").replace(">>", ""))
    report = planned(capsys, "--deadline", "2")
    fast = yaml.safe_load(report["yaml"].replace("<<", "").replace(">>", ""))
    assert slow["resources"]["slots_per_trial"] < fast["resources"]["slots_per_trial"] == 64
    chosen = next(r for r in all_options(report) if r["hardware"] == "8 x p3.16xlarge")
    assert fast["hyperparameters"]["checkpoint_period"] == chosen["steps"]
    assert chosen["in time"] > 0.95
    assert "MISSES THE DEADLINE" in planned(capsys, "--deadline", "0.1")["yaml"]


def test_faster_gpus_are_marked_as_modelled(capsys):
    speed = parse_speed(None)
    assert speed.at(64, "p3.16xlarge") == (92.75, "published")
    per_slot = speed.at(16, "p3.16xlarge")[0] / 16
    assert 92.75 / 64 < per_slot < 15.8 / 8
    assert speed.at(8, "p4d.24xlarge") == (pytest.approx(15.8 * 312 / 125), "modelled")
    own = parse_speed("8=100@p4d.24xlarge")
    assert own.at(8, "p4d.24xlarge") == (100.0, "measured")


def test_a_trace_and_a_fallback_are_planned(capsys, tmp_path):
    trace = tmp_path / "trace.csv"
    reclaims = "".join(f"{hour},reclaim\n" for hour in range(1, 99, 2))
    trace.write_text("hours,event\n64,machines\n100,end\n" + reclaims)
    arguments = [text for text in FEW if text not in ("--hourly", "0.05")]
    extra = ["--trace", str(trace), "--fallback-seconds", "60", "--wait-seconds", "200"]
    assert main(["plan", *arguments, *extra, "--json"]) == 0
    rows = all_options(json.loads(capsys.readouterr().out))
    spot = next(r for r in rows if r["hardware"] == "8 x p3.16xlarge" and r["market"] == "spot")
    assert spot["on demand at end"] > 0.5


def test_windows_of_a_file_are_counted_with_its_tokenizer(tiny_config):
    config = yaml.safe_load(tiny_config.read_text())
    hparams = parse_hparams(TINY["hyperparameters"])
    data = parse_data_config(config["data"])
    split = load_split(data, "train", load_tokenizer(data, hparams), hparams)
    assert count_windows("generated", tiny_config) == split.counts["windows"] > 0


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--slots", "60"], "60 slots do not fill machines of 8"),
        (["--slots", "60", "--pool", "p3.16xlarge"], "60 slots do not fill machines of 8"),
        (["--slots", "0", "--pool", "p3.16xlarge"], "0 slots do not fill"),
        (["--pool", "p3.17xlarge"], "did you mean 'p3.16xlarge'"),
        (["--windows", "-5"], "--windows: -5 must not be negative"),
        (["--windows", "0"], "--windows: 0 must be greater than 0"),
        (["--deadline", "-1"], "--deadline: -1 must not be negative"),
        (["--checkpoint-period", "0"], "--checkpoint-period: 0 must be greater than 0"),
        (["--monthly", "1.5"], "not a fraction"),
        (["--notice-read", "2"], "not a share"),
        (["--throughput", "8=fast"], "expected SLOTS=WINDOWS_PER_SECOND"),
        (["--throughput", "8=-1"], "both must be greater than 0"),
        (["--html", "/nowhere/page.html", "--pool", "p3.2xlarge", "--runs", "5"], "cannot write"),
        (["--trace", "none.csv"], "cannot read it"),
        (["--hourly", "500", "--pool", "p3.16xlarge", "--slots", "64"], ""),
    ],
)
def test_wrong_input_is_one_line(capsys, arguments, said):
    if not said:  # hopeless on spot: on demand is what is left
        assert main(["plan", *arguments, "--runs", "5"]) == 0
        assert "never" in capsys.readouterr().out
        return
    assert main(["plan", *arguments]) == 2
    out, err = capsys.readouterr()
    assert said in err and err.count("\n") == 1 and out == ""


def test_the_same_seed_gives_the_same_page_byte_for_byte(capsys, tmp_path):
    pages = []
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        path = tmp_path / f"{name}.html"
        assert main(["plan", *FEW, "--seed", seed, "--html", str(path)]) == 0
        pages.append(path.read_bytes())
    assert pages[0] == pages[1] != pages[2]
    assert not [p for p in tmp_path.iterdir() if p.suffix != ".html"]  # nothing half-written
    assert b"http" not in pages[0].replace(b"http-equiv", b"")  # it needs nothing from outside


def test_the_page_opens_in_a_browser_with_its_tables_and_plots(capsys, tmp_path):
    path = tmp_path / "plan.html"
    assert main(["plan", *FEW, "--deadline", "2", "--html", str(path)]) == 0
    with chromium(tmp_path / "profile", "1280,2600") as browser:
        browser.get(path.as_uri())
        assert browser.find_element("tag name", "h1").text.startswith("What 264,396 windows")
        assert "8 x p3.16xlarge" in browser.find_element("tag name", "table").text
        assert "checkpoint_period" in browser.find_element("tag name", "pre").text
        sizes = browser.execute_script(
            "return Array.from(document.images, i => [i.complete, i.naturalWidth, i.clientWidth])"
        )
        if os.environ.get("REPORTS_SCREENSHOT"):
            browser.save_screenshot(os.environ["REPORTS_SCREENSHOT"])
    assert len(sizes) == 2
    assert all(done and wide > 100 and shown > 100 for done, wide, shown in sizes)

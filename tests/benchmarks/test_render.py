"""The results on a page: between its markers, and in words below the table."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks import render
from benchmarks.__main__ import main

pytestmark = pytest.mark.usefixtures("fork")


def test_render_fills_the_page_between_its_markers(tiny: tuple[str, ...], tmp_path: Path) -> None:
    results = tmp_path / "results"
    assert main(["decode", *tiny, "--json", str(results / "decode.json")]) == 0
    page = tmp_path / "page.md"
    page.write_text(f"before\n{render.BEGIN}\nold\n{render.END}\nafter\n")
    plot = tmp_path / "plot.png"
    pytest.importorskip("matplotlib")
    arguments = ["render", "--results", str(results), "--readme", str(page), "--plot", str(plot)]
    assert main(arguments) == 0
    lines = page.read_text().splitlines()
    assert lines[0] == "before" and lines[-1] == "after" and "old" not in lines
    assert plot.read_bytes()[1:4] == b"PNG"


def result(stage: str, **facts: Any) -> dict[str, Any]:
    return {"stage": stage, "device": {"type": "cpu"}, "ratio": {"x": 2.0}, **facts}


def rate(value: float, name: str = "sequences_per_second", **more: Any) -> dict[str, Any]:
    return {name: {"median": value, "spread": 0.0}, **more}


def words(result: dict[str, Any]) -> str:
    """What stands below the table of one result."""
    facts = {"versions": {}, "device": {"type": "cpu", "name": "a CPU", "cores": 2}}
    _, below = render.table_of([{**result, **facts}]).split("\n\n", 1)
    return below


def test_memory_and_workers_in_words() -> None:
    sides = {
        side: rate(100.0, "windows_per_second", peak_memory_bytes=mebi * 2**20)
        for side, mebi in (("ours", 4.25), ("peer", 172.2))
    }
    workers = {n: {"ours": rate(x, "windows_per_second")} for n, x in (("0", 9.0), ("1", 5.0))}
    said = words(result("loader", results=sides, workers=workers))
    assert "- loader: peak memory +4.2 MiB (peer +172).\n" in said
    assert "- loader: 9 windows/s in the main process, no more with workers.\n" in said


def test_a_step_of_each_device_has_its_row_and_its_words() -> None:
    def step(device: dict[str, Any], shape: str, memory: Any) -> dict[str, Any]:
        sides = {
            side: rate(x, "windows_per_second", mfu={"median": x / 400})
            for side, x in (("ours", 200.0), ("peer", 80.0))
        }
        more = {"settings": {"shape": shape}, "memory": memory, "versions": {"torch": shape}}
        return {**result("step", results=sides, **more), "device": device}

    peaks = {"ours": {"peak_bytes": 12.4e9}, "peer": {"peak_bytes": 28.4e9}}
    cpu = step({"type": "cpu", "name": "a CPU", "cores": 2}, "small", "not measured")
    gpu = step({"type": "cuda", "name": "an H100", "cores": 16}, "xxlarge", peaks)
    table, below = render.table_of([cpu, gpu]).split("\n\n", 1)
    assert "| step, small ALBERT | CPU | 200 ± 0 windows/s | 80.0 ± 0.0 | 2.0 |" in table
    assert "| step, xxlarge ALBERT | GPU | 200 ± 0 windows/s | 80.0 ± 0.0 | 2.0 |" in table
    assert "- step, small ALBERT: MFU over real tokens 0.50 (peer 0.20).\n" in below
    assert (
        "xxlarge ALBERT: MFU over real tokens 0.50 (peer 0.20); peak memory 12 GB (peer 28).\n"
        in below
    )
    assert below.endswith("a CPU, 2 cores; torch small. an H100, 16 cores; torch xxlarge.")
    assert "| pretrain, albert-base | a GPU | not measured |" in table


def test_the_step_time_model_in_words() -> None:
    results = {"two_processes": rate(1.99, "seconds"), "predicted": {"seconds": 1.7}}
    far = {"64": {"published": 92.75, "predicted": 99.81}}
    said = words(result("scaling", results=results, published=far))
    assert "two processes take 1.99 s a step; the step-time model predicts 1.70 s." in said
    assert "64 V100 reach 92.75 windows/s (published); the step-time model predicts 99.8." in said


def test_pretraining_in_words() -> None:
    mfu = {"mfu": {"median": 0.5}}
    results = {"one_forward": rate(30.0, **mfu), "accumulated": rate(32.8, **mfu, forwards=4.0)}
    series = {"1": rate(10.0), "2": rate(17.2)}
    loader = {"0": rate(3392.0), "1": rate(5273.0)}
    facts = {"loader": loader, "settings": {"shape": "small"}}
    said = words(result("pretrain", results=results, scaling={"no accumulation": series}, **facts))
    assert "- pretrain, no accumulation: two processes reach 1.72 x one.\n" in said
    assert "3,392 sequences/s in the main process, 5,273 with 1 worker, the best number.\n" in said
    assert ", 32.8 sequences/s (MFU 0.50) in 4.0 micro-batches.\n" in said


def test_predicting_and_sharding_in_words() -> None:
    peaks = {"2000": 457.0, "20000": 490.0}
    facts = {"model": "embedded", "windows": 20_012, "peak_mib": peaks}
    said = words(result("predict", **facts) | {"ratio": 1.32})
    assert "- predict.py (embedded, a CPU) takes 1.32 x its model's own time, over 20,0" in said
    assert "peak memory 457 MiB for 2,000 questions; 490 MiB for 20,000.\n" in said
    memory = {f"{n}x": {"worker_peak_mib": mib} for n, mib in ((1, 273.0), (4, 288.0), (16, 290.0))}
    sides = {side: rate(1.0, "megabytes_per_second") for side in ("ours", "peer")}
    said = words(result("shards", results=sides, memory=memory))
    assert "the largest process peaks at 273 MiB; with 16 times the text, at 290 MiB.\n" in said

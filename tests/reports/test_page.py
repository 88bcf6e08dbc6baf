"""The page in a browser: at two widths and printed, nothing is lost and no text is over text."""

import base64
import json
import re
from pathlib import Path

import pytest

from reports.__main__ import main
from tests.fakes.records import TOKEN, FakeRecords

TODAY = ["--today", "2026-11-21"]
POOLS = """g4dn.xlarge g4dn.12xlarge g4dn.metal g5.xlarge g5.12xlarge g5.48xlarge g6e.xlarge
g6e.12xlarge g6e.48xlarge p4d.24xlarge p4de.24xlarge p5.4xlarge p5.48xlarge p5en.48xlarge""".split()
OVERLAPS, CUT = (Path(__file__).with_name(f"{name}.js").read_text() for name in ("overlaps", "cut"))


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A bill of published and cluster runs, a plan, scaling."""
    folder = tmp_path_factory.mktemp("pages")
    found = {name: folder / f"{name}.html" for name in ("cost", "plan", "scaling")}
    with pytest.MonkeyPatch.context() as patch, FakeRecords() as master:
        for key, value in {"HOME": str(folder), "DET_USER": "ada", "DET_USER_TOKEN": TOKEN}.items():
            patch.setenv(key, value)
        cluster = ["--experiment", "7", "8", "--master", master.url, "--by", "user"]
        until = ["--until", "2026-11-20T13:00:00Z"]
        bench = folder / f"{'x' * 120}.json"  # a word that is wider than its column
        content = {"results": {"ours": {"windows_per_second": {"median": 50.0}}}, "stage": "step"}
        bench.write_text(json.dumps(content))
        asked = ["--published", "--run", str(bench), *cluster, *until, *TODAY]
        assert main(["cost", *asked, "--html", str(found["cost"])]) == 0
    assert main(["plan", "--pool", *POOLS, *TODAY, "--html", str(found["plan"])]) == 0
    assert main(["scaling", "--published", *TODAY, "--html", str(found["scaling"])]) == 0
    return found


@pytest.mark.parametrize("name", ["cost", "plan", "scaling"])
def test_nothing_is_lost_and_no_text_is_over_text(pages, browser, name):
    """At two widths and printed: 1047 px is the width of A4 landscape with margins of 10 mm."""
    browser.get(pages[name].as_uri())
    for width, media in ((1280, "screen"), (400, "screen"), (1047, "print")):
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media})
        lost, tables, overhang = browser.execute_script(CUT)
        assert tables >= 2 and lost == [] and overhang <= 0, width
        texts, over = browser.execute_script(OVERLAPS)
        assert texts > 50 and over == [], width
    images = "return Array.from(document.images, i => i.complete && i.naturalWidth > 100)"
    assert set(browser.execute_script(images)) == {True}
    printed = browser.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})
    data = base64.b64decode(printed["data"])
    assert data.startswith(b"%PDF") and b"/Type /Page" in data
    left, low, right, top = map(float, re.search(rb"/MediaBox \[([^\]]+)\]", data)[1].split())
    assert right - left > top - low


@pytest.mark.parametrize("name", ["cost", "plan", "scaling"])
def test_every_series_of_a_plot_has_its_own_look(pages, name):
    """A legend with two equal entries would leave a machine without a name."""
    text = pages[name].read_text()
    drawings = [
        base64.b64decode(found).decode() for found in re.findall(r"svg\+xml;base64,([^\"]+)", text)
    ]
    assert drawings
    for svg in drawings:
        legend = svg.partition('id="legend_1"')[2]
        looks = re.findall(r'xlink:href="#(m\w+)"[^>]*style="([^"]*)"', legend)
        assert len(looks) == len(set(looks)), looks
    assert name != "cost" or "<!-- training -->" in legend

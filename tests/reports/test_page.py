"""The pages in a browser: at two widths, dark and printed, nothing is lost or hidden by text."""

import base64
import json
import re
from pathlib import Path

import pytest

from cluster import plan
from reports.__main__ import main
from tests.conftest import ROOT
from tests.fakes.records import TOKEN, FakeRecords

TODAY = ["--today", "2026-11-21"]
OVERLAPS, CUT = (Path(__file__).with_name(f"{name}.js").read_text() for name in ("overlaps", "cut"))
OPEN = "document.querySelectorAll('details').forEach(each => { each.open = true; })"
# Of a wide choice, and of options that differ little in cost: their names are crowded.
PLANS = {"plan": ["configs/distributed64.yaml", "--any", "--deadline", "1", "--budget", "30"]}
PLANS["crowded"] = ["configs/lm_1b.yaml"]
NAMES = ["cost", *PLANS]
BARS = """const colour = (e, key) => getComputedStyle(e)[key];
return [[...document.querySelectorAll('.bar')].map(bar => [...bar.children].map(
          e => [e.title, colour(e, 'backgroundColor'), e.getBoundingClientRect().width])),
        [...document.querySelectorAll('.legend span')].map(
          e => [e.textContent.slice(1).trim(), colour(e.querySelector('b'), 'color')])]"""
# Of a text and of the page behind it.
COLOURS = """return [getComputedStyle(document.querySelector(arguments[0]))[arguments[1]],
                     getComputedStyle(document.body).backgroundColor]"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A bill of published and cluster runs, and plans."""
    folder = tmp_path_factory.mktemp("pages")
    found = {name: folder / f"{name}.html" for name in NAMES}
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
    for name, (config, *asked) in PLANS.items():
        asked = [str(ROOT / config), *asked, *TODAY, "--html", str(found[name])]
        assert plan.main(asked) == 0
    return found


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_lost_and_no_text_is_over_text(pages, browser, name):
    """At two widths and printed: 1047 px is the width of A4 landscape with margins of 10 mm."""
    browser.get(pages[name].as_uri())
    browser.execute_script(OPEN)
    for width, media in ((1280, "screen"), (400, "screen"), (1047, "print")):
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media})
        lost, tables, overhang = browser.execute_script(CUT)
        assert tables >= 2 and lost == [] and overhang <= 0, width
        texts, over = browser.execute_script(OVERLAPS)
        assert texts > 50 and over == [], width
    printed = browser.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})
    data = base64.b64decode(printed["data"])
    assert data.startswith(b"%PDF") and b"/Type /Page" in data
    left, low, right, top = map(float, re.search(rb"/MediaBox \[([^\]]+)\]", data)[1].split())
    assert right - left > top - low


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_legible_in_light_and_dark(pages, browser, name, scheme):
    """Also the plot's: contrast with the page of at least 4.5 to 1 (WCAG AA)."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "screen", "features": features})
    browser.get(pages[name].as_uri())
    plan_only = [("svg text", "fill"), ("g[id^=name] text", "fill")]
    plan_only += [(".spot", "color"), (".demand", "color")]
    for place, kind in [("p, li", "color"), ("figcaption", "color")] + (
        plan_only if name in PLANS else []
    ):
        text, behind = map(luminance, browser.execute_script(COLOURS, place, kind))
        assert behind < 0.1 if scheme == "dark" else behind > 0.9
        assert (max(text, behind) + 0.05) / (min(text, behind) + 0.05) >= 4.5, place


def luminance(colour: str) -> float:
    """Return the relative luminance of "rgb(r, g, b)" (WCAG)."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(share * part for share, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_the_button_copies_the_yaml(pages, browser):
    browser.get(pages["plan"].as_uri())
    browser.execute_script("document.querySelector('button').click()")
    copied, yaml = browser.execute_script(
        "return [String(getSelection()), document.querySelector('#yaml').textContent]"
    )
    assert copied.strip() == yaml.strip() and "slots_per_trial: " in yaml


def test_a_bill_s_bars(pages, browser):
    """As long as the costs and their parts are, each part in its own colour, in the legend too."""
    page = pages["cost"].as_uri()
    browser.get(page)
    bars, legend = browser.execute_script(BARS)
    assert "64 GPUs: $47.00 ($17.09 to $47.00), 0.80 h" in browser.page_source
    widths = [sum(width for _, _, width in bar) for bar in bars]
    assert widths[0] / widths[2] == pytest.approx(112.21 / 47.0, rel=0.01)
    wide = {name: width for name, _, width in bars[3]}  # of experiment 7
    assert wide["work"] / wide["lost"] == pytest.approx(76 / 30, rel=0.05)
    colours = {name: colour for bar in bars for name, colour, _ in bar}
    assert dict(legend) == colours and len(set(colours.values())) == len(colours) == 5

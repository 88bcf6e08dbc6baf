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
OVERLAPS = Path(__file__).with_name("overlaps.js").read_text()
CUT = Path(__file__).with_name("cut.js").read_text()
OPEN = "document.querySelectorAll('details').forEach(each => { each.open = true; })"
# Of a wide choice, and of options that differ little in cost: their names are crowded.
PLANS = {
    "plan": ["configs/distributed64.yaml", "--any", "--deadline", "1", "--budget", "30"],
    "crowded": ["configs/lm_1b.yaml"],
}
NAMES = ["cost", *PLANS]
# Bars: their parts as title, colour and width. Legend: text and colour.
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
    files = {name: folder / f"{name}.html" for name in NAMES}
    bench = folder / f"{'x' * 120}.json"  # a word that is wider than its column
    result = {"stage": "step", "results": {"ours": {"windows_per_second": {"median": 50.0}}}}
    bench.write_text(json.dumps(result))

    with pytest.MonkeyPatch.context() as patch, FakeRecords() as master:
        patch.setenv("HOME", str(folder))
        patch.setenv("DET_USER", "ada")
        patch.setenv("DET_USER_TOKEN", TOKEN)
        arguments = [
            *["--published", "--run", str(bench)],
            *["--experiment", "7", "8", "--master", master.url],
            *["--by", "user", "--until", "2026-11-20T13:00:00Z", *TODAY],
        ]
        assert main(["cost", *arguments, "--html", str(files["cost"])]) == 0

    for name, (config, *flags) in PLANS.items():
        status = plan.main([str(ROOT / config), *flags, *TODAY, "--html", str(files[name])])
        assert status == 0
    return files


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
        assert tables >= 2, width
        assert lost == [], width
        assert overhang <= 0, width
        texts, overlaps = browser.execute_script(OVERLAPS)
        assert texts > 50, width
        assert overlaps == [], width

    printed = browser.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})
    data = base64.b64decode(printed["data"])
    assert data.startswith(b"%PDF")
    assert b"/Type /Page" in data
    box = re.search(rb"/MediaBox \[([^\]]+)\]", data)
    left, low, right, top = [float(text) for text in box[1].split()]
    assert right - left > top - low


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_legible_in_light_and_dark(pages, browser, name, scheme):
    """Also the plot's: contrast with the page of at least 4.5 to 1 (WCAG AA)."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "screen", "features": features})
    browser.get(pages[name].as_uri())
    places = [("p, li", "color"), ("figcaption", "color")]
    if name in PLANS:
        places += [("svg text", "fill"), ("g[id^=name] text", "fill")]
        places += [(".spot", "color"), (".demand", "color")]

    for place, kind in places:
        colours = browser.execute_script(COLOURS, place, kind)
        text, page = [luminance(colour) for colour in colours]
        if scheme == "dark":
            assert page < 0.1
        else:
            assert page > 0.9
        lighter = max(text, page) + 0.05
        darker = min(text, page) + 0.05
        assert lighter / darker >= 4.5, place


def luminance(colour: str) -> float:
    """Return the relative luminance of "rgb(r, g, b)" (WCAG)."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    red, green, blue = [linear(part) for part in parts]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def linear(part: float) -> float:
    """Return the light of a part of an sRGB colour, 0 to 1."""
    if part <= 0.04045:
        return part / 12.92
    return ((part + 0.055) / 1.055) ** 2.4


def test_the_button_copies_the_yaml(pages, browser):
    browser.get(pages["plan"].as_uri())
    browser.execute_script("document.querySelector('button').click()")
    copied, yaml = browser.execute_script(
        "return [String(getSelection()), document.querySelector('#yaml').textContent]"
    )
    assert copied.strip() == yaml.strip()
    assert "slots_per_trial: " in yaml


def test_a_bill_s_bars(pages, browser):
    """As long as the costs and their parts are, each part in its own colour, in the legend too."""
    browser.get(pages["cost"].as_uri())

    bars, legend = browser.execute_script(BARS)
    assert "64 GPUs: $47.00 ($17.09 to $47.00), 0.80 h" in browser.page_source
    widths = []
    colours = {}
    for bar in bars:
        widths.append(sum(width for _, _, width in bar))
        colours |= {name: colour for name, colour, _ in bar}
    assert widths[0] / widths[2] == pytest.approx(112.21 / 47.0, rel=0.01)
    parts = {name: width for name, _, width in bars[3]}  # of experiment 7
    assert parts["work"] / parts["lost"] == pytest.approx(76 / 30, rel=0.05)
    assert dict(legend) == colours
    assert len(colours) == 5
    assert len(set(colours.values())) == 5

"""The page of `cluster.plan --html`, without a browser (tests/reports/test_page.py has one)."""

import html
import re
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from cluster import plan
from cluster.planning import plan_page, plan_text
from cluster.planning.choice import front as front_of
from cluster.planning.options import Option
from tests.conftest import ROOT

CONFIG = str(ROOT / "configs" / "distributed64.yaml")
FLAGS = ["--any", "--deadline", "1", "--today", "2026-10-01"]

Row = list[str]  # the texts of its cells


def tables(text: str) -> list[list[Row]]:
    """Return the cells of every table of a page, by row."""
    cell = re.compile(r"<t[hd][^>]*>(.*?)</t[hd]>")
    parsed = []
    for table in text.split("<table")[1:]:
        rows = []
        for row in re.findall(r"<tr.*?</tr>", table, re.DOTALL):
            rows.append([html.unescape(content) for content in cell.findall(row)])
        parsed.append(rows)
    return parsed


def make_plan(*flags: str) -> plan_text.Plan:
    return plan.make_plan(plan._parser().parse_args([CONFIG, *FLAGS, *flags]))


@pytest.fixture(scope="module")
def made() -> plan_text.Plan:
    return make_plan()


def written(made: plan_text.Plan, folder: Path) -> str:
    """Return the text of the page of a plan."""
    plan_page.write_page(made, folder / "plan.html")
    return (folder / "plan.html").read_text(encoding="utf-8")


def recommending(made: plan_text.Plan, best: Option) -> plan_text.Plan:
    """Return the plan with another recommended option."""
    return made._replace(choice=made.choice._replace(option=best))


def test_the_page_has_the_answer_the_yaml_and_the_plot_before_the_table(made, tmp_path):
    text = written(made, tmp_path)

    # A file of its own: small, and without an address.
    assert len(text.encode()) < 200_000
    assert "http" not in text
    assert not re.search(r"url\([^#]", text)

    sentence = plan_text.recommendation(made)
    assert html.escape(sentence) in text
    assert plan_text.snippet(made) in html.unescape(text)
    assert text.index(sentence[:40]) < text.index("<svg") < text.index("<table")
    heads = text.count('<th scope="col"') + text.count('<th scope="row"')
    assert text.count("<th ") == heads

    # Why it is not the cheapest, and the published run of the same recipe.
    assert "95 % of its runs take up to" in text
    assert "Published: 8 x p3.16xlarge (64 V100), 0.80 h, $47.00 at today" in text


def test_the_page_has_every_option_once(made, tmp_path):
    text = written(made, tmp_path)
    refused = plan_text.refused(made)

    # The open table, and the folded one with the rows that it leaves out.
    without_details = re.sub(r"<details.*?</details>", "", text, flags=re.DOTALL)
    ((head, *rows),) = tables(without_details)
    assert len(rows) <= 10
    assert len(head) <= 8
    _, folded = [table[1:] for table in tables(text) if table[0] == head]
    assert made.best.name in [row[0] for row in rows if "recommended" in row]

    # Name and slots of each option; those that cannot run stand in sentences.
    options = [(row[0], row[1]) for row in [*rows, *folded]]
    sentences = "\n".join(refused)
    options += re.findall(r"(\d+ x [\w.-]+, (?:spot|on demand)) \((\d+) slots?\)", sentences)
    expected = [(option.name, str(option.slots)) for option in made.options]
    assert Counter(options) == Counter(expected)
    assert all(line in html.unescape(text) for line in refused)


def test_the_same_plan_gives_the_same_bytes(made, tmp_path):
    assert written(made, tmp_path) == written(make_plan(), tmp_path)


def test_a_name_is_no_formula_and_no_markup(made, tmp_path):
    """$ begins a formula in matplotlib, < an element in HTML."""
    odd = r"$\foo$ & <b>"
    best = replace(made.best, pool=made.best.pool._replace(instance=odd))
    options = [best if option is made.best else option for option in made.options]
    odd_plan = recommending(made, best)._replace(options=options, title=odd)

    text = written(odd_plan, tmp_path)

    assert odd not in text
    assert text.count(html.escape(odd)) >= 5


def test_only_the_published_recipe_has_the_published_run(made):
    other = make_plan("--set", "hyperparameters.epochs=3")
    assert plan_page.published_run(made.best) is not None
    assert plan_page.published_run(other.best) is None


def test_an_option_that_never_ends_is_named(made, tmp_path):
    """Its worst case alone has no end; it is not recommended."""
    changed = next(option for option in made.options if option.ends and option is not made.best)
    low, middle, high = changed.cases
    high = high._replace(figures={**high.figures, "hours 95 %": float("inf")})
    endless = replace(changed, cases=[low, middle, high])
    options = [endless if option is changed else option for option in made.options]
    endless_plan = made._replace(options=options)

    sentence = plan_text.endless(endless_plan)

    assert sentence.startswith("never ends where reclaims are frequent")
    assert plan_text.place(endless) in sentence
    assert plan_text.place(endless) not in plan_text.endless(made)
    assert endless not in plan_text.open_options(endless_plan)
    assert html.escape(endless.name) in written(endless_plan, tmp_path)


def test_what_is_no_file_is_not_replaced(made, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(plan, "make_plan", lambda args: made)
    device = tmp_path / "device"
    device.symlink_to("/dev/null")

    for path in (device, tmp_path, tmp_path / "none" / "plan.html"):
        assert plan.main([CONFIG, "--html", str(path)]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 1
        assert f"{path}: cannot write there (" in err

    assert device.is_symlink()
    assert list(tmp_path.iterdir()) == [device]


@pytest.mark.parametrize("library", ["jinja2", "matplotlib"])
def test_only_the_page_needs_its_libraries(library, made, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(plan, "make_plan", lambda args: made)
    for name in ("cluster.planning.plan_page", "cluster.planning.plan_plot"):
        monkeypatch.delitem(sys.modules, name)
    for name in ("detalbert.pages.template", "detalbert.pages.svg"):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)

    assert plan.main([CONFIG, *FLAGS]) == 0
    capsys.readouterr()
    assert plan.main([CONFIG, *FLAGS, "--html", str(tmp_path / "plan.html")]) == 2

    problem = f"{library} is not installed; run pip install -r requirements.txt\n"
    assert capsys.readouterr().err.endswith(problem)
    assert not list(tmp_path.iterdir())


def test_the_open_table_shows_the_recommended_one_among_many(made):
    """Of a long front both ends and the recommended one stay; near neighbours go."""
    front = list(front_of(made.options))
    named = plan_text.spread_front(made.options)
    assert len(front) > plan_text.NAMED
    assert len(named) == plan_text.NAMED
    assert named[0] is front[0]
    assert named[-1] is front[-1]

    for best in (*front, made.best):
        options = plan_text.open_options(recommending(made, best))
        assert len(options) == plan_text.ROWS
        assert any(option is best for option in options)

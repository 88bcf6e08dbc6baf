"""The page of `cluster.plan --html`, without a browser (tests/reports/test_page.py has one)."""

import html
import re
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster import plan
from cluster.planning import plan_page, plan_text
from cluster.planning.choice import front as front_of
from tests.conftest import ROOT

CONFIG = str(ROOT / "configs" / "distributed64.yaml")
ASKED = ["--any", "--deadline", "1", "--today", "2026-10-01"]


def tables(text: str) -> list[list[list[str]]]:
    """The cells of every table of a page, by row."""
    found = [re.findall(r"<tr.*?</tr>", table, re.DOTALL) for table in text.split("<table")[1:]]
    cell = re.compile(r"<t[hd][^>]*>(.*?)</t[hd]>")
    return [[[html.unescape(one) for one in cell.findall(row)] for row in rows] for rows in found]


@pytest.fixture(scope="module")
def made() -> plan_text.Plan:
    return plan.make_plan(plan._parser().parse_args([CONFIG, *ASKED]))


def written(made: plan_text.Plan, folder: Path) -> str:
    plan_page.write_page(made, folder / "plan.html")
    return (folder / "plan.html").read_text(encoding="utf-8")


def test_the_page_has_the_answer_the_yaml_and_every_option_once(
    made: plan_text.Plan, tmp_path: Path
) -> None:
    text = written(made, tmp_path)
    assert len(text.encode()) < 200_000
    assert "http" not in text and not re.search(r"url\([^#]", text)
    said = plan_text.recommendation(made)
    assert html.escape(said) in text and plan_text.snippet(made) in html.unescape(text)
    assert text.index(said[:40]) < text.index("<svg") < text.index("<table")
    ((head, *rows),) = tables(re.sub(r"<details.*?</details>", "", text, flags=re.DOTALL))
    assert len(rows) <= 10 and len(head) <= 8
    assert text.count("<th ") == text.count('<th scope="col"') + text.count('<th scope="row"')
    _, folded = (rest for first, *rest in tables(text) if first == head)
    named = [(row[0], row[1]) for row in [*rows, *folded]]
    named += re.findall(r"(\d+ x [\w.-]+, (?:spot|on demand)) \((\d+) slots?\)",
                        "\n".join(plan_text.refused(made)))  # fmt: skip
    assert Counter(named) == Counter((o.name, str(o.slots)) for o in made.options)
    assert made.best.name in [row[0] for row in rows if "recommended" in row]
    assert all(line in html.unescape(text) for line in plan_text.refused(made))
    # Why it is not the cheapest, and the published run of the same recipe.
    assert "95 % of its runs take up to" in text
    assert "Published: 8 x p3.16xlarge (64 V100), 0.80 h, $47.00 at today" in text


def test_the_same_plan_gives_the_same_bytes(made: plan_text.Plan, tmp_path: Path) -> None:
    again = plan.make_plan(plan._parser().parse_args([CONFIG, *ASKED]))
    assert written(made, tmp_path) == written(again, tmp_path)


def test_a_name_is_no_formula_and_no_markup(made: plan_text.Plan, tmp_path: Path) -> None:
    """$ begins a formula in matplotlib, < an element in HTML."""
    odd = r"$\foo$ & <b>"
    best = replace(made.best, pool=made.best.pool._replace(instance=odd))
    found = [best if option is made.best else option for option in made.options]
    text = written(
        made._replace(options=found, choice=made.choice._replace(option=best), title=odd), tmp_path
    )
    assert odd not in text and text.count(html.escape(odd)) >= 5


def test_only_the_published_recipe_has_the_published_run(made: plan_text.Plan) -> None:
    other = plan._parser().parse_args([CONFIG, *ASKED, "--set", "hyperparameters.epochs=3"])
    assert plan_page.published_run(made.best) is not None
    assert plan_page.published_run(plan.make_plan(other).best) is None


def test_an_option_that_never_ends_is_named(made: plan_text.Plan, tmp_path: Path) -> None:
    """Its worst case alone has no end; it is not recommended."""
    options = list(made.options)
    place = next(n for n, option in enumerate(options) if option.ends and option is not made.best)
    low, middle, high = options[place].cases
    high = high._replace(figures={**high.figures, "hours 95 %": float("inf")})
    options[place] = replace(options[place], cases=[low, middle, high])
    endless = made._replace(options=options)
    name = plan_text.place(options[place])
    assert plan_text.endless(endless).startswith("never ends where reclaims are frequent")
    assert name in plan_text.endless(endless) and name not in plan_text.endless(made)
    assert options[place] not in plan_text.open_options(endless)
    assert html.escape(options[place].name) in written(endless, tmp_path)


def test_what_is_no_file_is_not_replaced(
    made: plan_text.Plan, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "make_plan", lambda args: made)
    (tmp_path / "device").symlink_to("/dev/null")
    for path in (tmp_path / "device", tmp_path, tmp_path / "none" / "plan.html"):
        assert plan.main([CONFIG, "--html", str(path)]) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1 and f"{path}: cannot write there (" in err
    assert (tmp_path / "device").is_symlink() and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("library", ["jinja2", "matplotlib"])
def test_only_the_page_needs_its_libraries(
    library: str, made: plan_text.Plan, monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path
) -> None:
    monkeypatch.setattr(plan, "make_plan", lambda args: made)
    for name in ("plan_page", "plan_plot", "page"):
        monkeypatch.delitem(sys.modules, f"cluster.planning.{name}")
    monkeypatch.setitem(sys.modules, library, None)
    assert plan.main([CONFIG, *ASKED]) == 0
    capsys.readouterr()
    assert plan.main([CONFIG, *ASKED, "--html", str(tmp_path / "plan.html")]) == 2
    said = f"{library} is not installed; run pip install -r cluster/requirements.txt\n"
    assert capsys.readouterr().err.endswith(said) and not list(tmp_path.iterdir())


def test_the_open_table_shows_the_recommended_one_among_many(made: plan_text.Plan) -> None:
    """Of a long front both ends and the recommended one stay; near neighbours go."""
    front = list(front_of(made.options))
    assert len(front) > plan_text.NAMED
    some = plan_text.spread_front(made.options)
    assert len(some) == plan_text.NAMED and some[0] is front[0] and some[-1] is front[-1]
    for best in (*front, made.best):
        shown = plan_text.open_options(made._replace(choice=made.choice._replace(option=best)))
        assert len(shown) == plan_text.ROWS and any(o is best for o in shown)

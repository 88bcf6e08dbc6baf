"""The page in a browser: ask, see the answer marked in place, see the model abstain."""

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from selenium.webdriver.support.ui import WebDriverWait

from detalbert.inference import web
from detalbert.inference.model import Trained
from detalbert.inference.reply import ask
from detalbert.squad.sources import read_questions
from detalbert.squad.windows import Example
from tests.fakes.trained import LocalRun
from tests.inference.test_server import serving_here


@pytest.fixture(scope="module")
def questions(local_run: LocalRun, model: Trained) -> tuple[Example, Example, float]:
    """One that the model answers, one on which it abstains, the threshold between their margins."""
    some = list(read_questions(local_run.questions))[:30]
    margins = {e: ask(model, e.question, e.context, 0.0).margin for e in some}
    low, *_, high = sorted(some, key=margins.get)
    return high, low, -(margins[high] + margins[low]) / 2


class Page:
    """What a user sees and does."""

    def __init__(self, browser: Any, port: int) -> None:
        self.browser = browser
        browser.get(f"http://127.0.0.1:{port}/")

    def find(self, selector: str) -> Any:
        return self.browser.find_element("css selector", selector)

    def all(self, selector: str) -> list[Any]:
        return self.browser.find_elements("css selector", selector)

    def text(self, selector: str) -> str:
        return self.find(selector).text

    def ask(self, question: str, context: str) -> None:
        """Fill the form by its labels, press Enter in the question and wait for the end."""
        for name, text in (("Text", context), ("Question", question)):
            label = self.browser.find_element("xpath", f"//label[text()='{name}']")
            box = self.find(f"#{label.get_attribute('for')}")
            self.browser.execute_script("arguments[0].value = arguments[1]", box, text)
        box.send_keys("\n")
        WebDriverWait(self.browser, 60, 0.05).until(lambda _: self.find("#ask").is_enabled())

    def value(self, selector: str) -> float:
        return float(self.find(selector).get_attribute("value"))

    def is_answered(self) -> bool:
        return self.text("#error") == "" and self.find("#result").is_displayed()


@pytest.fixture
def page(browser: Any, questions: Any, model: Trained, monkeypatch: Any) -> Iterator[Page]:
    monkeypatch.setattr(web, "CONTEXT", 5000)
    with serving_here(model, questions[-1]) as port:
        yield Page(browser, port)
        loud = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
        assert all("/answer" in entry["message"] for entry in loud), loud


def test_an_answer_is_marked_in_place(page: Page, questions: Any, model: Trained) -> None:
    answerable, _, threshold = questions
    context = f"🚢 {answerable.context}"  # one code point, two of JavaScript's units
    expected = ask(model, answerable.question, context, threshold)
    page.ask(answerable.question, context)
    assert page.is_answered() and page.text("#answer") == expected.answer != ""
    assert [mark.text for mark in page.all("#text mark")] == [expected.answer]
    script = "t = document.getElementById('text'); return [t.textContent, t.firstChild.data]"
    before = context[: expected.start]  # the mark, in its place
    assert page.browser.execute_script(f"let {script}") == [context, before]
    assert f"{100 * expected.probability:.1f} %" in page.text("#facts")
    assert page.text("#facts").endswith("to this answer.")
    assert page.value("#meter") == pytest.approx(expected.probability)
    rest = [choice for choice in expected.n_best if choice.text != expected.answer]
    likely = [choice for choice in rest if choice.probability >= 0.0005]
    assert len(page.all("#others tr")) == min(5, len(likely))
    markup = "<img src=x onerror='document.title=1'><b>bold</b> & <script>document.title=2</script>"
    page.ask(answerable.question, f"{markup} {answerable.context}")  # text is never markup
    assert page.browser.title == "Ask a text" and markup in page.text("#text")
    assert not page.all("#result :is(img, b, script)")


def test_the_model_abstains_and_a_limit_is_said(page: Page, questions: Any, model: Trained) -> None:
    answerable, unanswerable, threshold = questions
    page.ask(unanswerable.question, unanswerable.context)
    assert page.text("#answer") == "The text does not say." and page.all("mark") == []
    assert page.text("#text") == unanswerable.context.strip()
    assert page.text("#facts").endswith('to "the text does not say".')
    none = ask(model, unanswerable.question, unanswerable.context, threshold)
    assert page.value("#meter") == pytest.approx(none.probability)  # full: sure of no answer
    page.ask(answerable.question, "x " * 4000)
    assert "the context has 8,000 characters, 5,000 at most" in page.text("#error")
    assert not page.find("#result").is_displayed()
    page.ask(answerable.question, answerable.context)
    assert page.is_answered()


def test_the_page_asks_for_the_token(browser: Any, questions: Any, model: Trained) -> None:
    answerable, _, threshold = questions
    with serving_here(model, threshold, token="secret") as port:
        page = Page(browser, port)
        assert not page.find("#token").is_displayed()
        page.ask(answerable.question, answerable.context)
        assert "the token is missing or wrong" in page.text("#error")
        page.find("#token").send_keys("secret")
        page.ask(answerable.question, answerable.context)
        assert page.is_answered()
        browser.get_log("browser")  # the 401 is there, and is not the next test's


def test_an_example_the_command_and_a_narrow_window(page: Page, browser: Any) -> None:
    WebDriverWait(browser, 60, 0.05).until(lambda _: page.text("#about"))
    assert page.text("#about") == "Model: albert-tiny. A text may have 5,000 characters."
    page.find("#try").click()
    WebDriverWait(browser, 60, 0.05).until(lambda _: page.is_answered())
    context = page.find("#context").get_attribute("value") + " It's Ada's, \"$HOME\"."
    page.ask("Whose?\\", context)
    page.find("summary").click()
    command = page.text("#curl").replace("curl ", "curl -s ", 1)
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["question"] == "Whose?\\"
    assert json.loads(done.stdout)["answer"] == page.text("#answer").replace(
        "The text does not say.", ""
    )
    narrow = {"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    try:
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", narrow)
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
        wide = "return document.documentElement.scrollWidth"
        assert browser.execute_script(wide) <= 400
        assert page.find("body").value_of_css_property("color") == "rgba(230, 230, 230, 1)"
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})

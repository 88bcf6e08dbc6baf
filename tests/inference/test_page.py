"""The page in a browser: ask, see the answer marked in place, see the model abstain."""

from collections.abc import Iterator
from typing import Any

import pytest

from detalbert.inference.guard import Access
from detalbert.inference.model import Trained
from detalbert.inference.reply import ask
from detalbert.squad.question_stream import read_questions
from detalbert.squad.windows import Example
from tests.conftest import LocalRun
from tests.inference.test_server import serving_here

Questions = tuple[Example, Example]


@pytest.fixture(scope="module")
def questions(local_run: LocalRun, model: Trained) -> tuple[Questions, float]:
    """One that the model answers and one on which it abstains, and the threshold between them:
    the margins of a short run's model say which is which."""
    some = list(read_questions(local_run.questions))[:30]
    margins = {e: ask(model, e.question, e.context, 0.0)["margin"] for e in some}
    ranked = sorted(some, key=margins.get)
    threshold = -(margins[ranked[-1]] + margins[ranked[0]]) / 2
    return (ranked[-1], ranked[0]), threshold


@pytest.fixture
def page(browser: Any, questions: Any, model: Trained) -> Iterator["Page"]:
    with serving_here(model, questions[1], context=5000) as port:
        browser.get(f"http://127.0.0.1:{port}/")
        yield Page(browser)
        loud = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
        assert all("/answer" in entry["message"] for entry in loud), loud


class Page:
    """What a user sees and does."""

    def __init__(self, browser: Any) -> None:
        self.browser = browser

    def find(self, selector: str) -> Any:
        return self.browser.find_element("css selector", selector)

    def text(self, selector: str) -> str:
        return self.find(selector).text

    def ask(self, question: str, context: str, key: str = "\n") -> None:
        """Fill the form by its labels, press Enter in the question and wait for the end."""
        for name, text in (("Text", context), ("Question", question)):
            label = self.browser.find_element("xpath", f"//label[text()='{name}']")
            box = self.find(f"#{label.get_attribute('for')}")
            self.browser.execute_script("arguments[0].value = arguments[1]", box, text)
        box.send_keys(key)
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.browser, 60).until(lambda _: self.find("#ask").is_enabled())


def test_an_answer_is_marked_in_place(page: Page, questions: Any, model: Trained) -> None:
    (answerable, _), threshold = questions
    context = f"🚢 {answerable.context}"  # one code point, two of JavaScript's units
    expected = ask(model, answerable.question, context, threshold)
    page.ask(answerable.question, context)
    assert page.text("#error") == ""
    assert page.text("#answer") == expected["answer"] != ""
    (mark,) = page.browser.find_elements("css selector", "#text mark")
    assert mark.text == expected["answer"]
    shown = page.browser.execute_script("return document.getElementById('text').textContent")
    assert shown == context
    before = page.browser.execute_script(
        "return document.querySelector('#text mark').previousSibling.data"
    )
    assert before == context[: expected["start"]]
    assert f"{100 * expected['probability']:.1f} %" in page.text("#facts")
    assert "It would abstain if the margin were" in page.text("#facts")
    others = page.browser.find_elements("css selector", "#others tr")
    assert len(others) == 5 and "(no answer)" in page.text("#result")


def test_the_model_abstains_and_says_how_nearly(page: Page, questions: Any) -> None:
    (_, unanswerable), _ = questions
    page.ask(unanswerable.question, unanswerable.context)
    assert page.text("#answer") == "The text does not say."
    assert page.browser.find_elements("css selector", "mark") == []
    assert page.text("#text") == unanswerable.context.strip()
    assert "It would answer if the margin were" in page.text("#facts")
    assert float(page.find("#meter").get_attribute("value")) < 0


def test_text_is_never_markup(page: Page, questions: Any) -> None:
    (answerable, _), _ = questions
    markup = "<img src=x onerror='document.title=1'><b>bold</b> & <script>document.title=2</script>"
    page.ask(answerable.question, f"{markup} {answerable.context}")
    assert page.browser.title == "Ask a text"
    assert markup in page.text("#text")
    assert not page.browser.find_elements("css selector", "#result :is(img, b, script)")


def test_a_limit_is_said_and_the_next_question_is_answered(page: Page, questions: Any) -> None:
    (answerable, _), _ = questions
    page.ask(answerable.question, "x " * 4000)
    assert "the context has 8,000 characters, 5,000 at most" in page.text("#error")
    assert not page.find("#result").is_displayed()
    page.ask(answerable.question, answerable.context)
    assert page.text("#error") == "" and page.find("#result").is_displayed()


def test_the_page_asks_for_the_token(browser: Any, questions: Any, model: Trained) -> None:
    (answerable, _), threshold = questions
    with serving_here(model, threshold, access=Access(token="secret")) as port:
        browser.get(f"http://127.0.0.1:{port}/")
        page = Page(browser)
        assert not page.find("#token").is_displayed()
        page.ask(answerable.question, answerable.context)
        assert "the token is missing or wrong" in page.text("#error")
        page.find("#token").send_keys("secret")
        page.ask(answerable.question, answerable.context)
        assert page.text("#error") == "" and page.find("#result").is_displayed()
        browser.get_log("browser")  # the 401 is there, and is not the next test's

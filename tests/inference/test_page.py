"""The page in a browser: ask, see the answer marked in place, see the model abstain."""

from typing import NamedTuple

import pytest
from selenium.webdriver.support.ui import WebDriverWait

from detalbert.inference import server
from detalbert.inference.reply import ask
from detalbert.squad import calibration
from detalbert.squad.example import Example
from tests.fakes.questions import read_questions
from tests.inference.test_server import serving_here


class Questions(NamedTuple):
    """One that the model answers, one on which it abstains, the threshold between their margins."""

    answerable: Example
    unanswerable: Example
    threshold: float


@pytest.fixture(scope="module")
def questions(local_run, model):
    examples = list(read_questions(local_run.questions))[:30]

    def margin(example):
        return ask(model, example.question, example.context, 0.0).margin or 0.0

    low, *_, high = sorted(examples, key=margin)
    return Questions(high, low, threshold=-(margin(high) + margin(low)) / 2)


class Page:
    """What a user sees and does."""

    def __init__(self, browser, port):
        self.browser = browser
        browser.get(f"http://127.0.0.1:{port}/")

    def find(self, selector):
        return self.browser.find_element("css selector", selector)

    def all(self, selector):
        return self.browser.find_elements("css selector", selector)

    def text(self, selector):
        return self.find(selector).text

    def ask(self, question, context):
        """Fill the form by its labels, press Enter in the question and wait for the end."""
        for name, text in (("Text", context), ("Question", question)):
            label = self.browser.find_element("xpath", f"//label[text()='{name}']")
            box = self.find(f"#{label.get_attribute('for')}")
            self.browser.execute_script("arguments[0].value = arguments[1]", box, text)
        box.send_keys("\n")
        WebDriverWait(self.browser, 60, 0.05).until(lambda _: self.find("#ask").is_enabled())

    def value(self, selector):
        return float(self.find(selector).get_attribute("value"))

    def is_answered(self):
        return self.text("#error") == "" and self.find("#result").is_displayed()


@pytest.fixture
def calibrated_model(model):
    return model._replace(scores={**model.scores, calibration.UNCALIBRATED: 0.0})


@pytest.fixture
def page(browser, questions, calibrated_model, monkeypatch):
    monkeypatch.setattr(server, "CONTEXT", 5000)
    with serving_here(calibrated_model, questions.threshold) as port:
        yield Page(browser, port)
        for entry in browser.get_log("browser"):
            assert entry["level"] != "SEVERE" or "/answer" in entry["message"], entry


def test_an_answer_is_marked_in_place(page, questions, model):
    question = questions.answerable.question
    context = f"🚢 {questions.answerable.context}"  # one code point, two of JavaScript's units
    expected = ask(model, question, context, questions.threshold)

    page.ask(question, context)

    assert page.is_answered()
    assert page.text("#answer") == expected.answer != ""
    assert [mark.text for mark in page.all("#text mark")] == [expected.answer]
    text = "document.getElementById('text')"
    assert page.browser.execute_script(f"return {text}.textContent") == context
    before = page.browser.execute_script(f"return {text}.firstChild.data")
    assert before == context[: expected.start]  # the mark, in its place
    assert f"{100 * expected.probability:.1f} %" in page.text("#facts")
    assert page.text("#facts").endswith("to this answer.")
    assert page.value("#meter") == pytest.approx(expected.probability)


def test_text_is_never_markup(page, questions):
    markup = "<img src=x onerror='document.title=1'><b>bold</b> & <script>document.title=2</script>"
    page.ask(questions.answerable.question, f"{markup} {questions.answerable.context}")
    assert page.browser.title.lower().endswith("ask a text")  # with the model's name, once known
    assert markup in page.text("#text")
    assert not page.all("#result :is(img, b, script)")


def test_the_model_abstains(page, questions, model):
    question = questions.unanswerable.question
    context = questions.unanswerable.context

    page.ask(question, context)

    assert page.text("#answer") == "The text does not say."
    assert page.all("mark") == []
    assert page.text("#text") == context.strip()
    assert page.text("#facts").endswith('to "the text does not say".')
    expected = ask(model, question, context, questions.threshold)
    assert page.value("#meter") == pytest.approx(expected.probability)  # full: sure of no answer


def test_the_page_asks_for_the_token(browser, questions, model):
    """Of a model without a calibration no percentage is shown."""
    question = questions.answerable.question
    context = questions.answerable.context
    with serving_here(model._replace(scores={}), questions.threshold, token="secret") as port:
        page = Page(browser, port)
        assert not page.find("#token").is_displayed()
        page.ask(question, context)
        assert "the token is missing or wrong" in page.text("#error")

        page.find("#token").send_keys("secret")
        page.ask(question, context)
        assert page.is_answered()
        assert page.text("#facts").startswith("Uncalibrated: ")
        assert "%" not in page.text("#result")
        browser.get_log("browser")  # the 401 is there, and is not the next test's

"""Odd values at any place of the files of a model's folder or of a run: right, or one line."""

import json
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

import predict
from reports.__main__ import main as report
from tests.conftest import max_examples
from tests.fakes.records import TOKEN, FakeRecords
from tests.test_escapes import is_harmless

ODD = [0, -3, 3, 1e9, 10**9, 10**30, 1.5, float("nan"), True, None, "", "x", "\x1b[31m\n\u202e"]
ODD += ["x" * 5000, "/dev/zero", "\ud83d\ude00", [], {}, [1], {"a": 1}, {"\x1b": 1}, [[[[1]]]]]
# Keys that a config may have, too.
KEYS = ["num_labels", "inner_group_num", "id2label", "head_dim", "dtype", "auto_map", "\x1b[31m"]
QUESTION = ["--question", "Who?", "--context", "Ada."]


def places(node):
    """Every mapping or list of a value, with each of its keys."""
    items = node.items() if isinstance(node, dict) else enumerate(node)
    for key, value in list(items):
        yield node, key
        if isinstance(value, (dict, list)):
            yield from places(value)


def draw_odd(data, text):
    value = json.loads(text)
    found = [*places(value), *((value, key) for key in KEYS)]
    node, key = data.draw(st.sampled_from(found), label="place")
    node[key] = data.draw(st.sampled_from(ODD), label="value")
    return json.dumps(value)


COSTS = ["cost", "--since", "2026-11-19", "--until", "2026-11-20T13:00:00Z"]
REPORTS = [COSTS, [*COSTS, "--csv"], ["runs", "--experiment", "7", "8"]]


class OddRecords(FakeRecords):
    """A master of which the JSON answers have an odd value, and the CSV an odd header."""

    data = None  # of hypothesis

    def respond(self, request):
        content = super().respond(request)
        # The keys of an answer lead to further ones, so not all of them are odd.
        if not isinstance(content, (dict, bytes)) or self.data.draw(st.integers(0, 9)):
            return content
        if isinstance(content, bytes):
            return self.data.draw(st.sampled_from([b"null", b"", b"[]", content]))
        return json.loads(draw_odd(self.data, json.dumps(content)))


def test_an_odd_answer_of_a_master_is_right_or_one_line(capfd, monkeypatch):
    monkeypatch.setenv("DET_USER", "ada")
    monkeypatch.setenv("DET_USER_TOKEN", TOKEN)

    @max_examples(40)
    @given(st.data())
    def check(data):
        with OddRecords() as master:
            master.data = data
            status = report([*data.draw(st.sampled_from(REPORTS)), "--master", master.url])
        out, err = capfd.readouterr()
        assert is_harmless(out + err)
        errors = [line for line in err.splitlines() if line.startswith("reports: ")]
        assert (status, len(errors)) in ((0, 0), (2, 1), (4, 1)), err

    check()


@pytest.fixture(scope="module")
def exported(finished, tmp_path_factory):
    folder = tmp_path_factory.mktemp("odd") / "model"
    assert predict.main(["--model", str(finished / "out"), "--export", str(folder)]) == 0
    (folder / "sums.json").unlink()
    return folder


@pytest.mark.parametrize(
    "name", ["config.json", "question_answering.json", "tokenizer_config.json", "metrics.json"]
)
def test_it_is_right_or_one_line(name, exported, finished, tmp_path_factory, capfd):
    folder = tmp_path_factory.mktemp("odd") / "copy"
    source = finished / "out" if name == "metrics.json" else exported
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("checkpoints"))
    text = (folder / name).read_text()
    asks = ["--model", str(folder), *QUESTION]

    @max_examples(25)
    @given(st.data())
    def check(data):
        (folder / name).write_text(draw_odd(data, text))
        capfd.readouterr()
        status = report(["runs", str(folder)]) if name == "metrics.json" else predict.main(asks)
        out, err = capfd.readouterr()
        assert is_harmless(out + err)
        assert max(map(len, [*err.splitlines(), ""])) < 2100
        errors = [line for line in err.splitlines() if ": error: " in line]
        assert (status, len(errors)) in ((0, 0), (2, 1)), err

    check()

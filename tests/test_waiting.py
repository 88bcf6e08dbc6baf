"""What takes long is never silent for over 30 s: real threads on a clock of the test's own."""

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import pytest
import yaml
from tqdm import tqdm
from transformers import AutoConfig, AutoModelForQuestionAnswering

import data
from detalbert import hub, log, waiting
from detalbert.corpus import learn_tokenizer, writer
from detalbert.corpus.learn_tokenizer import train_byte_bpe
from detalbert.engine import loaders
from detalbert.errors import Unavailable, UserError
from detalbert.log import fail, start_logging
from detalbert.squad.sources import open_source, read_examples
from detalbert.squad.tokenizer import named_tokenizer
from detalbert.waiting import clock as shown
from tests.conftest import ROOT, TINY_LM, TINY_PRETRAINING
from tests.fakes.encoders import SHAPE
from tests.fakes.questions import as_rows
from tests.fakes.runs import train_into


class Clock:
    """Time that passes only in `sleep`, which gives each waiting thread its turn."""

    def __init__(self) -> None:
        self.now, self.turn = 1000.0, threading.Condition()
        self.waiters: dict[Any, float] = {}  # by event: until when it waits
        self.lines: list[tuple[float, str]] = []

    def sleep(self, seconds: float) -> None:
        end = self.now + seconds
        with self.turn:
            self.turn.wait_for(self.all_wait)
            while self.waiters and (next_turn := min(self.waiters.values())) <= end:
                self.now = next_turn
                self.turn.notify_all()
                self.turn.wait_for(self.all_wait)
            self.now = end

    def all_wait(self) -> bool:
        """Whether each thread waits, for a time that is not over."""
        waits = self.waiters.values()
        return len(waits) == len(waiting._running) and all(until > self.now for until in waits)

    def longest_silence(self) -> tuple[float, str]:
        """Seconds between two lines, and the first of them."""
        pairs = pairwise([*self.lines, (self.now, "")])
        return max((after - before, line) for (before, line), (after, _) in pairs)

    def event(self) -> Any:
        ended = threading.Event()

        def wait(seconds: float) -> bool:
            with self.turn:
                self.waiters[event] = self.now + seconds
                self.turn.notify_all()
                until = self.waiters[event]
                self.turn.wait_for(lambda: ended.is_set() or self.now >= until)
                del self.waiters[event]
            return ended.is_set()

        def end() -> None:
            with self.turn:
                ended.set()
                self.turn.notify_all()

        event = Mock(wait=wait, set=end)
        return event


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    start_logging()
    clock = Clock()
    monkeypatch.setattr(waiting, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(log, "time", waiting.time)
    monkeypatch.setattr(log._HANDLER, "written", clock.now)
    threads = SimpleNamespace(Event=clock.event, Thread=threading.Thread)
    monkeypatch.setattr(waiting, "threading", threads)
    handler = logging.Handler()
    handler.emit = lambda record: clock.lines.append((clock.now, record.getMessage()))  # type: ignore[method-assign]
    logging.getLogger("detalbert").addHandler(handler)
    yield clock
    logging.getLogger("detalbert").removeHandler(handler)


def test_the_lines_of_what_takes_long(clock: Clock) -> None:
    with waiting.waiting("validation", 10, "batches") as wait:
        for _ in wait.each(range(4)):
            clock.sleep(20)
        with waiting.waiting("downloading x", 5_000_000, "B", 1_000_000) as inner:
            clock.sleep(40)
            inner.update(2_000_000)
            clock.sleep(10)
    with waiting.waiting("short"):
        clock.sleep(4)
    with pytest.raises(ValueError), waiting.waiting("wrong"):
        raise ValueError
    assert [(now - 1000, line) for now, line in clock.lines] == [
        (0, "validation: 10 batches"),
        (30, "validation: 1 of 10 batches, 4m30s left"),
        (60, "validation: 2 of 10 batches, 4m00s left"),
        (80, "downloading x: 5.0 MB"),
        (110, "downloading x: 1.0 of 5.0 MB"),
        (130, "downloading x: done in 50s"),
        (130, "validation: done in 2m10s"),
        (130, "short"),
        (134, "wrong"),
    ]
    times = {0: "0s", 59.4: "59s", 133: "2m13s", 3599.6: "1h00m", 7380: "2h03m"}
    assert [shown(seconds) for seconds in times] == list(times.values())


CONFIGS = [path for path in sorted((ROOT / "configs").glob("*.yaml")) if path.stem != "predict"]
IN_SUITE = "single", "deberta", "pretrain_base", "lm_125m"  # the others: soak
ENCODING = [(data, "build_windows"), (writer, "_tokenize"), (learn_tokenizer, "_sample")]
ENCODING += [(learn_tokenizer, "train_bpe"), (learn_tokenizer, "train_byte_bpe")]


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [pytest.param(p, marks=[] if p.stem in IN_SUITE else pytest.mark.soak) for p in CONFIGS],
    ids=lambda path: path.stem,
)
def test_no_shipped_config_is_silent_for_long(
    config: Path, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hub, encoding and loader are slow; all hub names and most keys are as shipped."""
    seen, load_named, unpacked = set[Any](), hub.load_named, loaders._unpacked
    here = small_hub(tmp_path)
    rows = as_rows(read_examples(open_source("generated", "train", tmp_path), limit=40))

    def slow_hub(read: Any, name: str, kind: str = "model", /, **options: Any) -> Any:
        def slow(place: str, **more: Any) -> Any:
            if Path(place).exists():
                return read(place, **more)
            if (read, place) not in seen:  # later the library reads its cache
                clock.sleep(50)
            seen.add((read, place))
            more.pop("revision", None)  # a data set has none
            return rows if kind == "dataset" else read(str(here(place)), **more)

        return load_named(slow, name, kind, **options)

    def slow_batches(batches: Any) -> Iterator[Any]:
        for batch in unpacked(batches):
            clock.sleep(40)
            yield batch

    for of, name in ENCODING:
        usual = getattr(of, name)
        monkeypatch.setattr(of, name, lambda *a, do=usual, **k: (clock.sleep(100), do(*a, **k))[1])
    monkeypatch.setattr(hub, "load_named", slow_hub)
    monkeypatch.setattr(hub, "commits", {})
    monkeypatch.setattr(hub, "_named", set())
    monkeypatch.setattr(hub, "_ask_hub", lambda *a, **k: (clock.sleep(9), ("0" * 40, None))[1])
    monkeypatch.setattr(loaders, "_unpacked", slow_batches)
    train_into(tmp_path, reduced(yaml.safe_load(config.read_text()), tmp_path))
    assert clock.longest_silence()[0] <= waiting.PERIOD, clock.longest_silence()
    said = {line.partition(":")[2].partition(",")[0] for _, line in clock.lines}
    assert {" 1 of 3 steps", " 2 of 3 steps"} <= said and clock.now > 1000 + 3 * 40


def small_hub(folder: Path) -> Callable[[str], Path]:
    """A function from a hub name to the folder of a small model or tokenizer of that family."""
    tokenizer = named_tokenizer("embedded/albert-tiny")
    shape = {**SHAPE, "type_vocab_size": 0, "relative_attention": True, "pos_att_type": ["p2c"]}
    shape |= {"vocab_size": len(tokenizer), "max_position_embeddings": 192}
    deberta = AutoConfig.for_model("deberta-v2", **shape)
    AutoModelForQuestionAnswering.from_config(deberta).save_pretrained(folder / "deberta")
    tokenizer.save_pretrained(folder / "deberta")
    train_byte_bpe(["a few words"], 300).save_pretrained(folder / "bytes")

    def find(name: str) -> Path:
        if "deberta" in name:
            return folder / "deberta"
        known = name.startswith(("albert", "my-pretrained", "deepset"))
        return ROOT / "embedded" / "albert-tiny" if known else folder / "bytes"

    return find


def reduced(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The config with few data, three short steps and, from random weights, a small model."""
    hparams, given = config["hyperparameters"], config["data"]
    given["cache_dir"] = str(folder / "cache")
    if "train" in given:
        if given["train"].endswith(".csv"):  # a reader's own
            given["train"] = "generated"
        given |= {"max_train_examples": 20, "max_validation_examples": 20}
    elif "documents" in given:
        given |= {"documents": "generated", "validation_fraction": 0.1}
        hparams |= {"model_config": TINY_LM["hyperparameters"]["model_config"], "layout": "auto"}
    else:
        given.pop("shards", None)
        given |= {"text": "generated", "validation_fraction": 0.1}
        shape = TINY_PRETRAINING["hyperparameters"]["model_config"]
        hparams["model_config"] = {**shape, "embedding_size": shape["hidden_size"]}
    if "vocab_size" in given:
        given["vocab_size"] = 400
    hparams |= {"global_batch_size": 8, "max_steps": 3, "num_workers": 0, "checkpoint_period": 2}
    hparams |= {"max_seq_length": 192 if "train" in given else 32, "validation_period": 2}
    hparams |= {"max_tokens_per_forward": 512, "lr_scale": 1.0}
    return config


def test_one_of_a_kind_is_no_plural(clock: Clock) -> None:
    units = ["batches", "questions", "files", "steps"]
    for unit in units:
        for total in (1, 2):
            with waiting.waiting("work", total, unit):
                pass
    words = [line.removeprefix("work: ") for _, line in clock.lines]
    assert words[::2] == ["1 batch", "1 question", "1 file", "1 step"]
    assert words[1::2] == [f"2 {unit}" for unit in units]


@pytest.mark.parametrize("kind", ["model", "dataset"])
def test_a_slow_hub_is_never_silent(kind: str, clock: Clock, monkeypatch: Any) -> None:
    monkeypatch.setattr(hub, "_ask_hub", lambda *a, **k: (clock.sleep(9), ("0" * 40, None))[1])
    monkeypatch.setattr(hub, "commits", {})
    hub.load_named(lambda *a, **k: clock.sleep(50), f"org/slow-{kind}", kind)
    said = f"loading org/slow-{kind} from the hub or its cache"
    assert [line for _, line in clock.lines] == [
        said,
        f"{said}: 30s so far",
        f"{said}: done in 59s",
    ]


def test_a_terminal_has_a_bar_and_other_ranks_nothing(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    bar = Mock()
    monkeypatch.setattr(waiting, "tqdm", bar)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with waiting.waiting("downloading x", 50, "B", 10) as wait:
        wait.update(5)
        clock.sleep(1.5)
    look: Any = {"unit": "B", "unit_scale": True, "leave": False, "desc": "downloading x"}
    made = call(dynamic_ncols=True, **look, total=50, initial=10, bar_format=None)
    assert bar.mock_calls == [made, *[call().refresh()] * 2, call().close()]
    assert bar.return_value.n == 15
    bar.reset_mock()
    monkeypatch.setattr(waiting, "tqdm", tqdm)
    with waiting.waiting("loading"):  # a real bar, without a total
        clock.sleep(1)
    assert "loading: 00:" in capsys.readouterr().err
    clock.lines.clear()
    monkeypatch.setitem(os.environ, "RANK", "1")
    with waiting.waiting("nothing"):
        pass
    assert bar.mock_calls == [] and clock.lines == []


@pytest.mark.parametrize(
    "terminal, no_color, red", [(1, "", True), (1, "1", False), (0, "", False)]
)
def test_the_errors_of_commands(
    terminal: int, no_color: str, red: bool, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    start_logging()
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: bool(terminal))
    assert fail("x.py", UserError("a: b")) == 2
    assert fail("x.py", Unavailable("a: b")) == 4
    logging.getLogger("detalbert").warning("w")
    before, between, after = ("\033[31m", "\033[33m", "\033[0m") if red else ("", "", "")
    assert capsys.readouterr().err == (
        f"{before}x.py: error: a: b{after}\n{before}x.py: unavailable: a: b{after}\n"
        f"{between}WARNING: w{after}\n"
    )
    monkeypatch.setenv("DET_TASK_TYPE", "TRIAL")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False)
    fail("train.py", UserError("a: b"))  # the configs' log policies match it
    assert capsys.readouterr().err == "ERROR: train.py: error: a: b\n"

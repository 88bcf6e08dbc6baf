"""What killed processes left half-written, and who may remove it."""

import contextlib
import itertools
import logging
import multiprocessing
import os
import platform
import shutil
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import filelock
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detalbert import atomic, waiting
from detalbert.errors import UserError
from detalbert.training.folder import claim_folder, write_config
from tests.conftest import max_examples


def left(target: str) -> str:
    """The name under which a killed process leaves what it was writing as `target`."""
    folder, _, name = target.rpartition("/")
    return f"{folder}/.detalbert-tmp-0123456789abcdef-{name}".removeprefix("/")


STEP = "checkpoints/step-00000004"
FILES = ["predictions", "null_odds", "metrics", "nbest"]
LEFT = [
    f"{left(STEP)}/part",
    left("config.yaml"),
    *(left(f"{name}.json") for name in FILES),
    left("predictions.csv"),
]
# Of the user: as editors name theirs, as older versions named theirs, and nearly as ours.
THEIRS = (
    ".settings.json.bak .config.yaml.orig .metrics.json.swp .notes.json.d/kept .predictions.json.x "
    f"{left('notes.json')} {left('config.yaml')}.bak .detalbert-tmp-0123456789ABCDEF-config.yaml "
    ".detalbert-tmp-config.yaml checkpoints/.step-4.bak/part checkpoints/step-four/part "
    f"previous-1/{left('config.yaml')} checkpoints/{left('step-4x')}/part .mine"
).split()
KEPT = ["checkpoints/step-00000004/manifest.json", "predictions.json", ".lock", *THEIRS]


def test_a_start_removes_what_killed_ones_left(tmp_path):
    for name in [*KEPT, *LEFT]:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    with claim_folder(tmp_path):
        files = {path for path in tmp_path.rglob("*") if path.is_file()}
        assert files == {tmp_path / name for name in KEPT}
        for name in THEIRS:
            assert (tmp_path / name).read_text() == name
        assert not (tmp_path / left(STEP)).exists()


PART = st.text("abj.-_ é*?[]\\'\n", min_size=1, max_size=8)
TARGET = st.sampled_from([*FILES, "config.yaml", "settings.json", "step-00000004", "step-4"])
MARK = st.sampled_from([".detalbert-tmp-", ".detalbert-tmp", "detalbert-tmp-", "."])
NUMBER = st.sampled_from(["0123456789abcdef", "0123456789abcdeg", "0123", ""])
NAME = PART | st.tuples(MARK, NUMBER, st.sampled_from(["-", "."]), TARGET, PART).map("".join)
NAME |= st.tuples(st.just("."), TARGET, st.just("."), PART).map("".join)


@max_examples(50)
@given(st.lists(NAME.filter(lambda name: name not in (".", "..")), unique=True, max_size=6))
def test_no_name_of_a_user_is_taken_for_a_temporary_one(tmp_path_factory, names):
    """Files and folders; what one whole name of ours is goes, and nothing more."""
    folder = tmp_path_factory.mktemp("mine")
    (folder / "checkpoints").mkdir()
    for name in names:
        for path in (folder / name, folder / "checkpoints" / name):
            if len(name) % 2:
                path.mkdir()
                (path / "inside").write_text(name)
            else:
                path.write_text(name)
    before = set(folder.rglob("*"))
    with claim_folder(folder):
        pass
    ours = {left("config.yaml"), *(left(f"{name}.json") for name in FILES)}
    assert not ours & set(names)  # PART makes each of them another's
    assert set(folder.rglob("*")) == before | {folder / ".lock"}
    shutil.rmtree(folder)


def test_a_config_that_no_run_wrote_is_not_replaced(tmp_path):
    """As with --config out/config.yaml --output-dir out."""
    config = tmp_path / "config.yaml"
    config.write_text("# mine\nname: x\n")
    with pytest.raises(UserError, match="a run would replace it; give another --output-dir"):
        write_config(tmp_path, {"name": "y"})
    assert config.read_text() == "# mine\nname: x\n"
    config.unlink()
    for name in ("one", "two"):
        write_config(tmp_path, {"name": name})
        assert config.read_text().endswith(f"name: {name}\n")


LINK = partial(os.symlink, "/dev/null")
MADE = {"pipe": os.mkfifo, "link to a device": LINK, "folder": os.mkdir}


@pytest.mark.parametrize("kind", MADE)
def test_nothing_but_a_file_or_folder_is_replaced_by_one(tmp_path, kind):
    target = tmp_path / "out"
    MADE[kind](target)
    before = target.lstat()
    for name, write in {"regular file": atomic.whole_file, "folder": atomic.whole_folder}.items():
        if name != kind:
            with pytest.raises(OSError, match=f"not a {name}"), write(target):
                raise AssertionError("the block ran")
            assert target.lstat() == before
            assert list(tmp_path.iterdir()) == [target]


def test_what_a_live_process_writes_stays(tmp_path):
    """In a cache: the lock is that of one entry."""
    (tmp_path / left("one")).mkdir()
    (tmp_path / left("two")).mkdir()
    (tmp_path / ".two.lock.d").mkdir()  # the user's
    with atomic.alone(tmp_path / "two"):
        names = {path.name for path in tmp_path.iterdir()}
        assert names == {left("one"), ".two.lock", ".two.lock.d"}
        with pytest.raises(filelock.Timeout):
            filelock.FileLock(tmp_path / ".two.lock").acquire(timeout=0)


@pytest.fixture(params=[(None, None), (0, 0), (3, 3), (8, 0)])
def rank(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int | None:
    """Have this process be a rank of a run, or none."""
    rank, local_rank = request.param
    for name, number in {"RANK": rank, "LOCAL_RANK": local_rank}.items():
        monkeypatch.delenv(name, raising=False)
        if number is not None:
            monkeypatch.setenv(name, str(number))
    return rank


def test_who_waits_says_for_whom_and_who_holds_a_lock_says_what_it_does(
    rank: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """On any rank: rank 0 may be the one that waits."""
    caplog.set_level("INFO", "detalbert")
    monkeypatch.setattr(atomic, "PATIENCE", 0.0)
    prefix = f"rank {rank}: " if rank else ""
    target = tmp_path / "windows"
    locked = threading.Event()
    waited = threading.Event()

    def hold() -> None:
        with atomic.alone(target), waiting.waiting("encoding"):
            locked.set()
            assert waited.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    assert locked.wait(60)
    emit = caplog.handler.emit

    def emit_and_note(record: logging.LogRecord) -> None:
        emit(record)
        waited.set()

    monkeypatch.setattr(caplog.handler, "emit", emit_and_note)
    with atomic.alone(target):
        holder.join(60)
    process = f"process {os.getpid()} on {platform.node()}"
    holder_name = process if rank is None else f"rank {rank}, {process}"
    assert caplog.messages == [
        f"{prefix}encoding",
        f"{prefix}waiting for {holder_name}, which writes {target}",
    ]


def test_of_those_that_wait_on_a_machine_one_says_so_again(
    rank: int | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    again = []

    @contextlib.contextmanager
    def repeating(line: str) -> Iterator[None]:
        again.append(line)
        yield

    monkeypatch.setattr(atomic, "waiting", repeating)
    atomic._wait_for(filelock.FileLock(tmp_path / "lock"), line="waiting for rank 1")
    # Ranks 0 and 8 are the first of their machines.
    assert again == ([] if rank == 3 else ["waiting for rank 1"])


def test_outside_of_a_lock_rank_0_alone_says_what_it_does(
    rank: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "detalbert")
    with waiting.waiting("outside"):
        pass
    assert caplog.messages == ([] if rank else ["outside"])


def test_a_process_that_ends_at_once_removes_its_own(tmp_path, fork):
    def write() -> None:
        with atomic.whole_file(tmp_path / "file"), atomic.whole_folder(tmp_path / "folder") as path:
            (path / "part").touch()
            assert len(list(tmp_path.iterdir())) == 2
            atomic.remove_temporaries()
            assert not list(tmp_path.iterdir())
            raise SystemExit(7)

    process = multiprocessing.get_context("fork").Process(target=write)
    process.start()
    process.join(60)
    assert process.exitcode == 7


def test_a_folder_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    flushed: list[Path] = []

    def note(file: int) -> None:
        flushed.append(Path(f"/proc/self/fd/{file}").readlink())

    monkeypatch.setattr(os, "fsync", note)
    with atomic.whole_folder(tmp_path / "folder") as path:
        (path / "below").mkdir()
        (path / "below" / "part").touch()
    *contents, last = flushed
    assert set(contents) == {path, path / "below", path / "below" / "part"}
    assert last == tmp_path  # then the name


@pytest.mark.parametrize("write", [atomic.whole_file, atomic.whole_folder])
def test_a_signal_at_any_line_leaves_nothing_half_written(write, tmp_path):
    """A handler raises between two lines, also between a file's creation and its use."""
    for moment in itertools.count(1):
        folder = tmp_path / str(moment)
        folder.mkdir()
        lines = iter(range(moment, 0, -1))  # that are left

        def trace(frame: Any, event: str, _: Any, lines: Any = lines) -> Any:
            if frame.f_code.co_filename != atomic.__file__:
                return None
            if event == "line" and next(lines, 0) == 1:
                sys.settrace(None)
                raise KeyboardInterrupt
            return trace

        before = sys.gettrace()
        try:
            sys.settrace(trace)
            with write(folder / "new"):
                pass
        except KeyboardInterrupt:
            assert {path.name for path in folder.iterdir()} <= {"new"}
        else:
            break
        finally:
            sys.settrace(before)
    assert moment > 10
    assert [path.name for path in folder.iterdir()] == ["new"]

"""Files and folders: whole or not there, whenever a process is killed; built once; inside."""

import multiprocessing
import os
import re
import signal
import sys
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detalbert import files
from detalbert.errors import UserError
from detalbert.files import cached_folder, check_own, sweep, whole_file, whole_folder, write_own
from tests.conftest import SOAK, max_examples


def write_file(path, content):
    with whole_file(path) as temporary:
        temporary.write_text(content)


def write_noted(path, content):
    write_own(path.parent, {path.name: content})


def write_folder(path, content):
    with whole_folder(path) as folder:
        (folder / "part").write_text(content)


def write_cached(path, content):
    cached_folder(path, content, lambda folder: write_file(folder / "part", content), "it")


def read(path):
    return (path / "part" if path.is_dir() else path).read_text()


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def interrupt():
    raise KeyboardInterrupt  # as a signal's handler


def run_until(line, work, act):
    """Work, and act at the given line of files.py; return whether the work was done before."""
    lines = iter(range(line, 0, -1))  # that are left

    def trace(frame, event, _):
        if frame.f_code.co_filename != files.__file__:
            return None
        if event == "line" and next(lines, 0) == 1:
            sys.settrace(None)
            act()
        return trace

    before = sys.gettrace()
    try:
        sys.settrace(trace)
        work()
    except KeyboardInterrupt:
        return False
    finally:
        sys.settrace(before)
    return next(lines, 0) > 0


HIDDEN = {".target.lock", ".other.lock", ".written.json"}


@pytest.mark.parametrize("write", [write_file, write_noted, write_folder, write_cached])
def test_a_kill_at_any_line_leaves_the_old_or_the_new(write, tmp_path, monkeypatch, fork):
    """And the next one to write there, be it another name, leaves nothing else. The soak has every
    line."""
    monkeypatch.setattr(os, "fsync", lambda file: None)  # slow, and no matter here
    target = tmp_path / "target"
    for line in range(1, 300, 1 if SOAK > 1 else 3):
        write(target, "old")
        work = partial(write, target, "new")
        process = multiprocessing.get_context("fork").Process(
            target=run_until, args=(line, work, kill)
        )
        process.start()
        process.join(300)
        # A folder is gone for a moment, before another one takes its place.
        assert not target.exists() or read(target) in ("old", "new")
        write(tmp_path / "other", "new")
        assert {path.name for path in tmp_path.iterdir()} <= {"target", "other", *HIDDEN}
        work()
        assert read(target) == "new"
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
    assert 10 < line < 299


@pytest.mark.parametrize("record", ["", "[]", "5", '{"mine": 5}', "{"])
def test_only_what_we_wrote_is_replaced(record, tmp_path):
    """Not a file of one of our names, nor one of ours that was edited; whatever the record says."""
    write_own(tmp_path, {"ours": "1", "mine": "1"})
    (tmp_path / "mine").write_text("edited")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("nowhere")
    if record:
        (tmp_path / ".written.json").write_text(record)
    foreign = {"mine", "folder", "link"} | ({"ours"} if record else set())
    for name in ("ours", "mine", "folder", "link", "new"):
        if name not in foreign:
            check_own(tmp_path, [name], cure="")
            continue
        with pytest.raises(UserError, match=f"{name}: it would be replaced.*; move it away"):
            check_own(tmp_path, ["new", name], cure="move it away")


@pytest.mark.parametrize("write", [write_file, write_folder])
def test_a_signal_at_any_line_leaves_nothing_half_written(write, tmp_path):
    for line in range(1, 300):
        target = tmp_path / str(line) / "target"
        target.parent.mkdir()
        is_done = run_until(line, partial(write, target, "new"), interrupt)
        names = [path.name for path in target.parent.iterdir()]
        assert names == ["target"] or (names == [] and not is_done)
        if is_done:
            break
    assert 10 < line < 299


@pytest.mark.parametrize("write", [write_file, write_folder])
def test_another_process_that_sweeps_at_any_line_spares_what_is_written(write, tmp_path):
    for line in range(1, 300):
        is_done = run_until(
            line, partial(write, tmp_path / "target", str(line)), partial(sweep, tmp_path)
        )
        assert read(tmp_path / "target") == str(line)
        if is_done:
            break
    assert 10 < line < 299


PART = st.text("abj.-_ é*?[]\\'\n", min_size=1, max_size=8)
MARK = st.sampled_from([".detalbert-tmp-", ".detalbert-tmp", "detalbert-tmp-", "."])
END = st.sampled_from(["-abc_1234", "-abc-1234", "-abc", ""])
NAME = PART | st.tuples(MARK, PART, END).map("".join)


@max_examples(50)
@given(st.sets(NAME.filter(lambda name: name not in (".", "..")), max_size=6))
def test_no_name_of_a_user_is_taken_for_a_leftover(tmp_path_factory, names):
    """Nor what a live process is writing."""
    folder = tmp_path_factory.mktemp("mine")
    ours = re.compile(r"\.detalbert-tmp-.*-[a-z0-9_]{8}", re.DOTALL)
    for name in names:
        (folder / name).mkdir()
    with whole_file(folder / "live") as temporary:
        temporary.touch()
        sweep(folder)
        assert len(list(folder.glob("*/live"))) == 1
    theirs = {name for name in names if not ours.fullmatch(name)}
    assert {path.name for path in folder.iterdir()} == theirs | {"live"}


def test_a_folder_is_no_file_to_replace(tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(IsADirectoryError):
        write_file(tmp_path / "out", "new")
    assert list(tmp_path.rglob("*")) == [tmp_path / "out"]


def test_a_folder_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    flushed = []
    link = "/proc/self/fd/{}".format
    monkeypatch.setattr(os, "fsync", lambda file: flushed.append(Path(link(file)).readlink()))
    with whole_folder(tmp_path / "folder") as path:
        (path / "part").touch()
    assert {path, path / "part"} == set(flushed[:-1])
    assert flushed[-1] == tmp_path  # then the name


def test_one_of_many_processes_builds(tmp_path, fork):
    """The others wait for it, and find the folder complete."""
    target = tmp_path / "cache" / "entry"
    context = multiprocessing.get_context("fork")
    started = context.Semaphore(0)

    def build(folder):
        with (tmp_path / "builders").open("a") as file:
            file.write("x")
        for _ in range(6):
            assert started.acquire(timeout=300)
        (folder / "part").write_text("content")

    def use():
        started.release()
        assert read(cached_folder(target, "key", build, "the windows")) == "content"

    processes = [context.Process(target=use) for _ in range(6)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
        assert process.exitcode == 0
    assert (tmp_path / "builders").read_text() == "x"


@pytest.mark.parametrize("kind", ["changed", "missing", "another's", "without sums", "a file"])
def test_what_is_not_as_it_was_written_is_built_anew_with_one_warning(kind, tmp_path, caplog):
    target = tmp_path / "entry"
    write_cached(target, "old" if kind == "another's" else "new")
    match kind:
        case "changed":
            (target / "part").write_text("New")
        case "missing":
            (target / "part").unlink()
        case "without sums":
            (target / "sums.json").unlink()
        case "a file":
            target.rename(tmp_path / "elsewhere")
            target.touch()
    for _ in range(2):
        write_cached(target, "new")
        assert read(target) == "new"
    (message,) = caplog.messages
    assert message.startswith(f"{target}: ")


@pytest.mark.parametrize("error", [OSError(28, "disk full"), ValueError(), ConnectionError("hub")])
def test_an_error_leaves_nothing_and_a_full_disk_is_named_with_its_key(error, tmp_path):
    def fail(folder):
        (folder / "half").touch()
        raise error

    is_of_the_disk = type(error) is OSError
    with pytest.raises(UserError if is_of_the_disk else type(error)) as raised:
        cached_folder(tmp_path / "entry", "key", fail, "the windows")
    assert [path.name for path in tmp_path.iterdir()] == [".entry.lock"]
    if is_of_the_disk:
        line = "entry: cannot write the windows (disk full); free space, or set data.cache_dir"
        assert str(raised.value).endswith(line)

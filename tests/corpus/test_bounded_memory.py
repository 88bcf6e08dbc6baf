"""Memory of the command that writes shards: bounded, however long a document is."""

import contextlib
import random
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.conftest import ROOT, Script
from tests.fakes.text import contexts

# In one process, which is also the worker. Its peak is measured from where the work begins.
PEAK = """
from pathlib import Path
from detalbert.corpus.learn_tokenizer import own_tokenizer
from tests.corpus import documents
from tests.fakes import text

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024

path, folder = Path({path!r}), Path({folder!r})
data = documents.documents_config(path, folder, tokenizer=None, vocab_size=600)
work = {{
    "documents": lambda: documents.write(path, folder),
    "examples": lambda: text.write(path, folder, article="file"),
    "tokenizer": lambda: own_tokenizer(data, 0.01),
}}
documents.byte_tokenizer()
Path("/proc/self/clear_refs").write_text("5")  # the peak is what is resident now
before = peak()
work[{kind!r}]()
print(peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("kind", ["documents", "examples", "tokenizer"])
def test_memory_does_not_grow_with_a_document(kind: str, tmp_path: Path, script: Script) -> None:
    """One of 8 MB; if it were read and encoded as a whole: 78, 70 and 690 MiB."""
    path = tmp_path / "a.txt"
    text = "\n".join(contexts(600))
    path.write_text(text * (8_000_000 // len(text)))
    source = PEAK.format(path=str(path), folder=str(tmp_path), kind=kind)
    done = subprocess.run(script(source), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 55


@pytest.mark.soak
@pytest.mark.parametrize("size", [24_000_000, 1 << 30])
@pytest.mark.parametrize("name", ["pretrain_local", "lm_local"])
def test_a_writer_has_at_most_400_mib(
    name: str, size: int, tmp_path: Path, real_python: str
) -> None:
    """The command with two workers: each process that writes, and not the child that loads the
    tokenizer, which imports torch and ends before.
    """
    path = tmp_path / "a.txt"
    write_sentences(path, size)
    key = "text" if name == "pretrain_local" else "documents"
    command = [real_python, "-m", "detalbert.corpus", f"configs/{name}.yaml", "--workers", "2"]
    command += ["--output", str(tmp_path / "o")]
    for setting in (f"data.{key}={path}", "data.article=file", f"data.cache_dir={tmp_path}"):
        command += ["--set", setting]

    process = subprocess.Popen(command, cwd=ROOT)
    peaks: dict[int, int] = {}
    while process.poll() is None:
        children = [child.pid for child in psutil.Process(process.pid).children()]
        for pid in (process.pid, *children):
            with contextlib.suppress(OSError, StopIteration):
                peaks[pid] = peak_of(pid)
        time.sleep(0.1)

    assert process.returncode == 0
    *writers, loader = sorted(peaks.values())
    assert len(writers) == 3
    assert max(writers) < 400, (writers, loader)


def write_sentences(path: Path, size: int) -> None:
    """Write a text of `size` bytes of random sentences."""
    words = sorted(set(" ".join(contexts(600)).split()))
    dice = random.Random(0)
    with path.open("w") as file:
        while file.tell() < size:
            sentence = " ".join(dice.choices(words, k=dice.randrange(4, 30)))
            file.write(sentence.capitalize() + dice.choice([". ", "? ", ".\n"]))


def peak_of(process: int) -> int:
    """Return the most that a process had resident, in MiB."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) >> 10

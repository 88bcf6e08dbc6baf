"""A corpus that several machines write, a part each."""

import json
import math
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from detalbert.corpus.__main__ import main
from tests.conftest import ROOT, Script
from tests.corpus.test_writer import SLOW, leftovers
from tests.fakes.runs import wait_for
from tests.fakes.text import LENGTH, TOKENIZER, sums

Start = Callable[[str, float], subprocess.Popen]


@pytest.fixture
def config(corpus_text: Path, tmp_path: Path) -> Path:
    data = {"text": str(corpus_text), "tokenizer": TOKENIZER, "shard_mib": 0.01}
    data["cache_dir"] = str(tmp_path / "cache")
    hparams = {"size": "tiny", "max_seq_length": LENGTH}
    path = tmp_path / "c.yaml"
    path.write_text(json.dumps({"hyperparameters": hparams, "data": data}))
    return path


def write(config: Path, output: Path, *options: str) -> None:
    assert main([str(config), "--output", str(output), "--workers", "1", *options]) == 0


@pytest.mark.parametrize("count", [1, 3, 20])
def test_parts_are_the_shards_of_one_machine(
    config: Path, tmp_path: Path, count: int, fork: None, capsys: pytest.CaptureFixture[str]
) -> None:
    write(config, tmp_path / "whole")
    for number in range(1, count + 1):
        # With more parts than shards, the last ones have nothing to do.
        assert count == 20 or not (tmp_path / "parts" / "index.json").exists()
        capsys.readouterr()
        write(config, tmp_path / "parts", "--part", f"{number}/{count}")

    assert capsys.readouterr().out.startswith("train ")
    assert sums(tmp_path / "parts") == sums(tmp_path / "whole")


def test_a_last_call_writes_what_is_missing(config: Path, tmp_path: Path, fork: None) -> None:
    write(config, tmp_path / "whole")
    write(config, tmp_path / "parts", "--part", "2/3")
    write(config, tmp_path / "parts")
    assert sums(tmp_path / "parts") == sums(tmp_path / "whole")


def test_parts_at_the_same_time_of_which_one_is_killed_twice(
    config: Path, tmp_path: Path, script: Script
) -> None:
    output = tmp_path / "parts"

    def start(part: str, pause: float, limit: float = math.inf) -> subprocess.Popen:
        pid = tmp_path / f"pid-{part[0]}"
        command = [*script(SLOW), str(pid), str(pause), str(limit)]
        command += [str(config), "--output", str(output), "--workers", "1", "--part", part]
        return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)

    others = [start("1/3", 0.05), start("2/3", 0.05)]
    for _ in range(2):
        before = count_records(output, 3)
        killed = start("3/3", 0.05, limit=1)
        wait_for(lambda before=before: count_records(output, 3) > before)
        os.killpg(int((tmp_path / "pid-3").read_text()), signal.SIGKILL)
        killed.wait(60)
        assert not (output / "index.json").exists()
    last = start("3/3", 0)
    assert [process.wait(120) for process in (*others, last)] == [0, 0, 0]

    write(config, tmp_path / "whole")
    assert sums(output) == sums(tmp_path / "whole")
    assert not leftovers(output)


def count_records(output: Path, number: int) -> int:
    """How many jobs of part `number` of 3 have their records."""
    numbers = [int(path.stem) for path in output.glob("jobs/[0-9]*.json")]
    return sum(job % 3 == number - 1 for job in numbers)


@pytest.mark.parametrize("part", ["0/3", "4/3", "1", "x/y", "1/0", "-1/2"])
def test_no_part_is_one_line(
    part: str, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([str(config), "--output", str(tmp_path / "parts"), f"--part={part}"])
    assert ended.value.code == 2
    assert "give I/N, such as 1/3, 2/3 and 3/3" in capsys.readouterr().err

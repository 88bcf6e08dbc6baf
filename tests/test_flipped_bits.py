"""Bits that flip on the disk, and a run: it ends in the uncut bits, or in one line.

One bit of a run's checkpoints or cache costs nothing; one of the model that it starts from ends it.
"""

import itertools
import random
import shutil
from typing import Any, NamedTuple

import pytest
import yaml

import predict
from tests.conftest import TINY, TINY_LM, configured
from tests.fakes.damage import flip
from tests.fakes.runs import newest, run
from tests.same_bits import differences


class Kind(NamedTuple):
    """A workload, and the files whose bits flip, below the folder of a run."""

    workload: dict[str, Any]
    patterns: list[str]


KINDS = {
    "a run": Kind(TINY, ["out/*/*/manifest.json", "out/checkpoints/*/*", "cache/windows-*/*"]),
    "its model": Kind(TINY, ["model/*.safetensors"]),
    "a language model": Kind(TINY_LM, ["cache/*-*/*", "out/checkpoints/*/*"]),
}


class Disk:
    """A run that ended, and the same cut after its second checkpoint of three, to be damaged."""

    def __init__(self, folder, kind, finished):
        self.folder = folder
        self.work = folder / "work"  # its paths are in the config, and in nothing that is compared
        self.work.mkdir(parents=True)
        output = self.work / "out"
        config = configured(KINDS[kind].workload, self.work / "cache", max_steps=12)
        config["checkpoint_storage"] = {"save_trial_latest": 3}
        if kind == "its model":
            model = str(self.work / "model")
            assert predict.main(["--model", str(finished / "out"), "--export", model]) == 0
            config["hyperparameters"].update(model_config=None, model=model)
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        assert self.run() == 0
        shutil.copytree(output, folder / "uncut")
        if kind == "its model":  # it is read at a first start alone
            shutil.rmtree(output)
        else:
            shutil.rmtree(newest(output))
        self.work.rename(folder / "cut")

    def run(self):
        return run(self.folder / "config.yaml", self.work / "out")

    def run_damaged(self, pattern, bits, dice):
        """The exit status of a run after so many flipped bits, in as many files or fewer."""
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(self.folder / "cut", self.work)
        files = []
        for path in sorted(self.work.glob(pattern)):
            if path.is_file() and path.stat().st_size and not path.name.startswith("."):
                files.append(path)
        for _ in range(bits):
            flip(dice.choice(files), dice)
        return self.run()


@pytest.mark.parametrize("seeds", [range(1), pytest.param(range(1, 42), marks=pytest.mark.soak)])
@pytest.mark.parametrize("kind", KINDS)
def test_flipped_bits(kind, seeds, tmp_path, finished, capsys):
    disk = Disk(tmp_path, kind, finished)
    patterns = KINDS[kind].patterns
    for seed, (place, pattern) in itertools.product(seeds, enumerate(patterns)):
        capsys.readouterr()
        bits = 20 if (seed + place) % 2 else 1
        status = disk.run_damaged(pattern, bits, random.Random(f"{seed} {pattern}"))
        shown = capsys.readouterr().err
        problems = [line for line in shown.splitlines() if not line.startswith("INFO: ")]
        assert all(line.startswith(("WARNING: ", "train.py: ")) for line in problems), shown
        if status == 0:
            assert differences(disk.folder / "uncut", disk.work / "out") == [], shown
        else:
            assert status == 2, shown
            assert problems[-1].startswith("train.py: error: "), shown
        if kind == "its model":
            assert status == 2
        elif bits == 1 or pattern.startswith("cache/"):
            assert status == 0, shown

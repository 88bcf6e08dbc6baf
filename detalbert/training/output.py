"""The output of a local run: a folder, and its copy in a bucket, if it is to outlive the disk."""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from detalbert import bucket
from detalbert.atomic import alone, writing
from detalbert.training.checkpoints import MANIFEST, find_fault, list_checkpoints, read_manifest
from detalbert.training.folder import ELSEWHERE, set_aside
from detalbert.waiting import waiting

FILES = ("config.yaml", "metrics.json", "null_odds.json", "predictions.json")  # of a run's folder
TRIES = 3  # to fetch a checkpoint whose files arrive damaged


class Output:
    """The folder of a run and, for `--output-dir s3://...`, its copy at that `address`.

    A checkpoint's manifest is uploaded last: without it a checkpoint does not count. What a start
    fetches is the newest checkpoint, and of the others their manifests, by which they are pruned.
    """

    def __init__(self, output: str) -> None:
        self.address = output.rstrip("/") if bucket.is_bucket(output) else None
        self.folder = Path("runs", *output.split("://")) if self.address else Path(output)
        self.kept: set[str] = set()  # the checkpoints in the bucket

    def fetch(self) -> None:
        """Make `folder` what the bucket has; local checkpoints that it lacks are removed. Once on
        each machine. Raises as `bucket.download`.
        """
        if self.address is None:
            return

        def wanted(name: str) -> bool:
            if found := re.fullmatch(rf"checkpoints/(step-\d+)/{MANIFEST}", name):
                self.kept.add(found[1])
            # By these, `set_aside` knows which numbers are taken.
            previous = re.fullmatch(r"previous-[0-9]+/(config\.yaml|metrics\.json)", name)
            return found is not None or previous is not None or name in FILES

        said = waiting(f"fetching {self.address} into {self.folder}")
        with said, writing(self.folder, ELSEWHERE), alone(self.folder):
            bucket.download(self.address, self.folder, wanted)
            checkpoints = self.folder / "checkpoints"
            for _, path in list_checkpoints(checkpoints):
                if path.name not in self.kept:
                    shutil.rmtree(path)
            any(self.fill(checkpoints / name) for name in sorted(self.kept, reverse=True))

    def fill(self, checkpoint: Path) -> bool:
        """Fetch the files of a checkpoint that `folder` lacks; return whether it is complete."""
        here = checkpoint.absolute().parent == (self.folder / "checkpoints").absolute()
        tries = TRIES if here and checkpoint.name in self.kept else 0
        while (fault := find_fault(checkpoint)) and tries:
            bucket.download(f"{self.address}/checkpoints/{checkpoint.name}", checkpoint)
            tries -= 1
        return fault is None

    def set_aside(self, checkpoints: Sequence[Path]) -> Path:
        """Move checkpoints, oldest first, into `previous-N/`, in the bucket as well; return that.
        Raises as `bucket.download`, and UserError if the folder cannot be written.
        """
        for path in checkpoints:
            present = [file.name for file in path.iterdir()]
            if self.address and present == [MANIFEST]:  # all that `fetch` takes of an older one
                self.fill(path)
        with writing(self.folder, ELSEWHERE):
            aside = set_aside(self.folder, checkpoints)
        if self.address:
            files = [path for path in aside.rglob("*") if path.is_file()]
            with waiting(f"uploading {self.address}/{aside.name}"):
                names = [path.relative_to(self.folder).as_posix() for path in files]
                bucket.put(self.folder, self.address, names)
        return aside

    def sync(self) -> None:
        """Make the bucket what `folder` has: called after each checkpoint, and at the end."""
        if self.address is None:
            return
        found = {path.name: path for _, path in list_checkpoints(self.folder / "checkpoints")}
        for name in sorted(found.keys() - self.kept):
            place = f"{self.address}/checkpoints/{name}"
            files = read_manifest(found[name])["files"]
            with waiting(f"uploading {place}"):
                bucket.put(found[name], place, files)
                bucket.put(found[name], place, [MANIFEST])
        for name in sorted(self.kept - found.keys()):
            bucket.remove(f"{self.address}/checkpoints/{name}")
        self.kept = set(found)
        there = [name for name in FILES if (self.folder / name).is_file()]
        events = [f"tensorboard/{path.name}" for path in self.folder.glob("tensorboard/*")]
        bucket.put(self.folder, self.address, there + events)

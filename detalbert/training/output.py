"""The output of a local run: a folder, and its copy in a bucket, if it is to outlive the disk.

The folder is what the run reads and writes; the bucket follows after each checkpoint, and is read
at a start alone. What was traded: training waits for an upload, and what was not uploaded when a
machine is lost is lost, at most the steps since the last checkpoint.
"""

import logging
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from detalbert import bucket
from detalbert.atomic import alone, writing
from detalbert.errors import UserError
from detalbert.training.folder import ELSEWHERE, FILES, move_checkpoints, next_previous, set_aside
from detalbert.training.manifest import MANIFEST, find_fault, read_manifest
from detalbert.training.timeline import list_checkpoints
from detalbert.waiting import waiting

# Tries to fetch a checkpoint whose files arrive damaged.
TRIES = 3
_CHECKPOINT_MANIFEST = re.compile(rf"checkpoints/(step-[0-9]{{8,}})/{MANIFEST}")
# By these, `set_aside` knows which numbers are taken.
_SET_ASIDE = re.compile(r"previous-[0-9]+/(config\.yaml|metrics\.json)")
log = logging.getLogger(__name__)


class Output:
    """The folder of a run and, for `--output-dir s3://...`, its copy at that `address`.

    A checkpoint's manifest is uploaded last: without it a checkpoint does not count. What a start
    fetches is the newest checkpoint, and of the others their manifests, by which they are pruned.
    """

    def __init__(self, output: str) -> None:
        if not output:  # of a variable that is not set
            raise UserError("it is empty", key="--output-dir", cure="name a folder")
        self.address: str | None = None
        self.folder = Path(output)
        if bucket.is_bucket(output):
            self.address = output.rstrip("/")
            self.folder = Path("runs", *output.split("://"))
        self.stored: set[str] = set()  # names of the checkpoints in the bucket

    def fetch(self) -> None:
        """Make `folder` what the bucket has. Once on each machine. Raises as `bucket.download`."""
        if self.address is None:
            return

        def is_wanted(name: str) -> bool:
            manifest = _CHECKPOINT_MANIFEST.fullmatch(name)
            if manifest is not None:
                self.stored.add(manifest[1])
            return manifest is not None or name in FILES or _SET_ASIDE.fullmatch(name) is not None

        fetching = waiting(f"fetching {self.address} into {self.folder}")
        with writing(self.folder, cure=ELSEWHERE), alone(self.folder), fetching:
            bucket.download(self.address, self.folder, wanted=is_wanted)
            self._remove_others()
            # Of the checkpoints, the newest that is whole.
            for name in sorted(self.stored, reverse=True):
                if self.fill(self.folder / "checkpoints" / name):
                    break

    def _remove_others(self) -> None:
        """Remove local checkpoints that a start elsewhere has pruned in the bucket. Move those that
        are newer than all there, whose upload failed, into `previous-N/`.
        """
        stored_steps = [int(name.removeprefix("step-")) for name in self.stored]
        newest = max(stored_steps, default=0)
        unsent: list[Path] = []
        for steps, path in list_checkpoints(self.folder / "checkpoints"):
            # What has no manifest is no checkpoint, but somebody's folder.
            if path.name in self.stored or not (path / MANIFEST).is_file():
                continue
            is_pruned = steps < newest and find_fault(path, names=()) is None
            if is_pruned:
                shutil.rmtree(path)
            else:
                unsent.append(path)
        if not unsent:
            return
        aside = next_previous(self.folder)
        move_checkpoints(unsent, aside)
        log.warning(
            "%s lacks %s; moved to %s: to go on from there, give it to --resume",
            self.address,
            ", ".join(path.name for path in unsent),
            aside / "checkpoints",
        )

    def fill(self, checkpoint: Path) -> bool:
        """Fetch the files of a checkpoint that `folder` lacks; return whether it is complete."""
        is_own = checkpoint.absolute().parent == (self.folder / "checkpoints").absolute()
        if is_own and checkpoint.name in self.stored:
            for _ in range(TRIES):
                if find_fault(checkpoint) is None:
                    return True
                bucket.download(f"{self.address}/checkpoints/{checkpoint.name}", checkpoint)
        return find_fault(checkpoint) is None

    def set_aside(self, checkpoints: Sequence[Path]) -> Path:
        """Move checkpoints, oldest first, into `previous-N/`, in the bucket as well; return that.
        Raises as `bucket.download`, and UserError if the folder cannot be written.
        """
        # Of an older one `fetch` took the manifest alone.
        for path in checkpoints:
            present = [file.name for file in path.iterdir()]
            if self.address and present == [MANIFEST]:
                self.fill(path)
        with writing(self.folder, cure=ELSEWHERE):
            aside = set_aside(self.folder, checkpoints=checkpoints)
        if self.address:
            files = [path for path in aside.rglob("*") if path.is_file()]
            names = [path.relative_to(self.folder).as_posix() for path in files]
            with waiting(f"uploading {self.address}/{aside.name}"):
                bucket.put(self.folder, self.address, files=names)
        return aside

    def sync(self) -> None:
        """Make the bucket what `folder` has: called after each checkpoint, and at the end."""
        if self.address is None:
            return

        # New checkpoints first: till then an old one must not go.
        local = {path.name: path for _, path in list_checkpoints(self.folder / "checkpoints")}
        for name, path in sorted(local.items()):
            is_checkpoint = find_fault(path, names=()) is None
            if name not in self.stored and is_checkpoint:
                self._upload(path)
        for name in sorted(self.stored - local.keys()):
            bucket.remove(f"{self.address}/checkpoints/{name}")
            self.stored.remove(name)

        # Small files, all of them anew.
        written = [name for name in FILES if (self.folder / name).is_file()]
        for path in self.folder.glob("tensorboard/events.out.tfevents.*"):
            if path.is_file():
                written.append(f"tensorboard/{path.name}")
        bucket.put(self.folder, self.address, files=written)

    def _upload(self, checkpoint: Path) -> None:
        """Upload a checkpoint, its manifest last."""
        target = f"{self.address}/checkpoints/{checkpoint.name}"
        files = read_manifest(checkpoint)["files"]
        with waiting(f"uploading {target}"):
            bucket.put(checkpoint, target, files=files)
            bucket.put(checkpoint, target, files=[MANIFEST])
        self.stored.add(checkpoint.name)

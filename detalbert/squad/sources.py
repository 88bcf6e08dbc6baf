"""Sources of questions: files, a folder, an official file, the hub, the generated world."""

import glob
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from detalbert import addresses, hub
from detalbert.errors import Unavailable, UserError, first_line
from detalbert.files import cached_folder
from detalbert.reading import records
from detalbert.settings.hparams import DataConfig

OFFICIAL_URL = "https://rajpurkar.github.io/SQuAD-explorer/dataset"
OFFICIAL_SHA256 = {
    "train-v1.1.json": "3527663986b8295af4f7fcdff1ba1ff3f72d07d61a20f487cb238a6ef92fd955",
    "dev-v1.1.json": "95aa6a52d5d6a735563366753ca50492a658031da74f301ac5238b03966972c9",
    "train-v2.0.json": "68dcfbb971bd3e96d5b46c7177b16c1a4e7d4bdef19fb204502738552dede002",
    "dev-v2.0.json": "80a5225e94905956a6446d296ca1093975c4d3b3260f1d6c8f68bc2ab77182d8",
}
# A split's files in a folder, or its folder in that.
SPLITS = {
    "train": re.compile(r"/train[./]", re.IGNORECASE),
    "validation": re.compile(r"/(validation|valid|dev)[./]", re.IGNORECASE),
}
# The folder of the generated world.
SHIPPED = Path(__file__).parents[2] / "embedded"


@dataclass(frozen=True)
class Reading:
    """How a source is read: keys of `data:`."""

    columns: Mapping[str, str] = field(default_factory=dict)  # the source's own names, by ours
    sheet: str | None = None  # of a workbook; default: the first
    no_answer: Sequence[str] = ()  # texts of answers that stand for none
    fraction: float | None = None  # of the contexts of one source that are the validation set


@dataclass(frozen=True)
class Source:
    """The source of a split's questions, not read yet."""

    name: str  # as in the config
    split: str  # "train" or "validation"
    files: list[str]  # in order; none of a data set of the hub
    fingerprint: str  # changes when the questions may have changed
    reading: Reading
    limit: int | None = None  # questions that are taken, from the first on; None: all

    @property
    def is_table(self) -> bool:
        """Whether the rows are those of CSV or a workbook."""
        tables = [addresses.ending_of(file) in (".csv", ".tsv", ".xlsx") for file in self.files]
        return tables != [] and all(tables)

    def rows(self) -> Iterator[tuple[str, records.Row]]:
        """Yield the rows, or articles of SQuAD's shape, each with its place.

        Raises:
            UserError: a file is not as its ending says.
            Unavailable: a server fails.
        """
        for file in self.files:
            yield from records.read_rows(file, self.reading.sheet)
        if not self.files:
            split = "train" if self.reading.fraction else self.split
            for number, row in enumerate(_hub_rows(self.name, split), start=1):
                yield f"{self.name}: row {number}", row


def open_source(name: str, split: str, cache_dir: Path, reading: Reading | None = None) -> Source:
    """Find `data.train` or `data.validation`; download an official file if it is missing.

    With a fraction both splits are of one source: what it has as its training questions.

    Raises:
        UserError: it does not exist, or cannot be read.
        Unavailable: a server fails, or a download.
    """
    reading = reading or Reading()
    if name == "generated" or name in OFFICIAL_SHA256:
        reading = replace(reading, columns={}, sheet=None)  # those are of the other split
    split_read = "train" if reading.fraction else split
    files = find_question_files(name, split_read, cache_dir)
    # How a source is read changes its questions, too.
    digest = hashlib.sha256(json.dumps(vars(reading), sort_keys=True).encode())
    for file in files:
        digest.update(addresses.stamp(file).encode())
    if not files:
        for row in _hub_rows(name, split_read):
            digest.update(repr(row).encode())
    fingerprint = digest.hexdigest()
    return Source(name, split, files=files, fingerprint=fingerprint, reading=reading)


def open_split(config: DataConfig, split: str) -> Source:
    """Find the source of a split of `data:`, as `open_source` does."""
    name = config.train
    if split == "validation" and config.validation:  # else a fraction of the training questions
        name = config.validation
    reading = Reading(
        columns=config.columns or {},
        sheet=config.sheet,
        no_answer=tuple(config.no_answer or ()),
        fraction=config.validation_fraction,
    )
    limit = config.max_train_examples if split == "train" else config.max_validation_examples
    return replace(open_source(name, split, Path(config.cache_dir), reading), limit=limit)


@lru_cache(maxsize=2)
def _hub_rows(name: str, split: str) -> Any:
    return hub.load_rows(name, split, key=f"data.{split}")


def find_question_files(name: str, split: str, cache_dir: Path) -> list[str]:
    """Return the files of a source in order: of a folder, those of a split by their names, or all
    parts of one; none of a hub name, or of a folder cloned from the hub.

    Raises:
        UserError: it is a path of nothing, or a folder of several files that are no parts.
        Unavailable: a server or a download fails.
    """
    key = f"data.{split}"
    if name in OFFICIAL_SHA256 and not Path(name).exists():  # a file of that name is the user's
        return [str(_download(name, cache_dir))]
    if name == "generated":
        return [str(SHIPPED / f"world-{split}.json.gz")]
    if not addresses.is_path(name, endings=records.READERS):
        return []
    files = addresses.find_files(name, key, endings=records.READERS)
    if files == [name] or glob.has_magic(name):
        return files

    # A folder: train.csv, train/part-0.json, or parts alone.
    folder = len(name.rstrip("/"))
    named = [file for file in files if SPLITS[split].search(file, folder)]
    has_names = any(pattern.search(file, folder) for pattern in SPLITS.values() for file in files)
    chosen = named if has_names else files
    shapes = {re.sub(r"\d+", "0", file) for file in chosen}
    if len(shapes) == 1:
        return chosen
    if os.path.isfile(f"{name}/README.md"):
        return []
    names = ", ".join(os.path.relpath(file, name) for file in chosen or files)
    raise UserError(
        f"{name}: which of its files is {split}? ({names:.200})",
        key=key,
        cure="name a file, several by a pattern with *, or give it the name of the split",
    )


def _download(name: str, cache_dir: Path) -> Path:
    """Download an official file once, with progress, and only if its SHA-256 is correct."""
    url = f"{OFFICIAL_URL}/{name}"

    def fetch(folder: Path) -> None:
        from torch.hub import download_url_to_file

        try:
            download_url_to_file(url, str(folder / name), hash_prefix=OFFICIAL_SHA256[name])
        except (OSError, RuntimeError) as error:
            raise Unavailable(
                f"not here, and downloading {url} failed ({first_line(error)})",
                key=name,
                cure=f"try again, or download {name} and set the data key to its path",
            ) from None

    folder = cache_dir / name.removesuffix(".json")
    return cached_folder(folder, key=OFFICIAL_SHA256[name], build=fetch, what=name) / name

"""The split of a hub data set's folder is the one that `datasets` gives."""

from pathlib import Path
from typing import Any

import datasets
import pytest
import yaml
from hypothesis import assume, example, given
from hypothesis import strategies as st

from detalbert.errors import UserError
from detalbert.reading.folders import find_files
from detalbert.reading.snapshot import is_snapshot, split_names
from tests.conftest import max_examples

OURS = ("train", "validation")
SPLITS = ("train", "validation", "test")
WORDS = "train training validation valid dev val test testing eval evaluation".split()
WORDS += "contest a rows 2 trained unseen".split()  # no words of splits


def theirs(folder: Path) -> dict[str, list[str]] | None:
    """Return the files of each split as `datasets` finds them; None if it gives none."""
    try:
        builder = datasets.load_dataset_builder(str(folder), cache_dir=str(folder.parent / "cache"))
    except (datasets.exceptions.DatasetNotFoundError, ValueError, FileNotFoundError):
        return None
    files = builder.config.data_files or {}
    return {
        str(split): sorted({str(Path(file).relative_to(folder)) for file in paths})
        for split, paths in files.items()
    }


def fill(folder: Path, names: list[str], card: str = "") -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('{"text": "a"}\n')
    if card:
        (folder / "README.md").write_text(card)
    return folder


def card_of(metadata: dict[str, Any]) -> str:
    return f"---\n{yaml.safe_dump(metadata)}---\n# A data set\n"


@st.composite
def file_names(draw: st.DrawFn) -> list[str]:
    """Draw names with words of splits in folders and files, of one form or without an ending."""
    separator = st.sampled_from(["-", "_", ".", "", " ", "2"])
    word = st.sampled_from(WORDS)
    stem = st.builds(lambda a, between, b: f"{a}{between}{b}", word, separator, word) | word
    folder = st.sampled_from(["", "", "data/", "deep/data/"]) | stem.map(lambda name: f"{name}/")
    endings = draw(st.sampled_from([[".jsonl", ".json", ".jsonl.gz"], [".csv", ".tsv"]]))
    ending = st.sampled_from([*endings, *endings, ""])
    name = st.builds(lambda *parts: "".join(parts), folder, stem, ending)
    return sorted(draw(st.lists(name, min_size=1, max_size=5, unique=True)))


def check(folder: Path, names: list[str], card: str = "") -> None:
    """Assert that our splits are those of `datasets`."""
    expected = theirs(fill(folder, names, card))
    if expected is None:  # as where no file has an ending
        assume(False)
    for split in OURS:
        paths = split_names(names, split, card, "folder")
        assert sorted(paths) == expected.get(split, [])


@given(file_names())
@example(["a-train", "a-dev.jsonl"])
@example(["train/a.jsonl", "train/dev.jsonl"])
@example(["train-train/train.jsonl", "train.jsonl", "train/train-train"])
@max_examples(25)
def test_splits_by_words_in_names(tmp_path_factory: Any, names: list[str]) -> None:
    check(tmp_path_factory.mktemp("names") / "set", names)


@pytest.mark.parametrize(
    "names",
    [
        ["train.csv", "train.jsonl"],
        ["train-1.csv", "train-2.csv", "train.jsonl"],
        ["train.csv", "train.parquet", "train/a.json", "train/b.arrow", "train/b.txt"],
        ["a.json", "a.csv", "b.csv", "b.tsv", "c.txt"],
    ],
)
def test_a_split_has_the_files_of_most_endings(tmp_path: Path, names: list[str]) -> None:
    """A file that several patterns of the library fit counts for each, which is not followed."""
    check(tmp_path / "set", names)


@st.composite
def shard_names(draw: st.DrawFn) -> list[str]:
    """Draw names of shards as the library writes them, with some others."""
    shard = st.builds(
        lambda split, number: f"data/{split}-{number:05}-of-00003.jsonl",
        st.sampled_from(["train", "validation", "test", "train.clean", "dev", "extra"]),
        st.integers(0, 2),
    )
    other = st.sampled_from(["train.jsonl", "data/train.jsonl", "data/notes.jsonl", "dev/a.jsonl"])
    shards = draw(st.lists(shard, min_size=1, max_size=5, unique=True))
    return sorted(shards + draw(st.lists(other, max_size=2, unique=True)))


@given(shard_names())
@max_examples(25)
def test_splits_by_shards(tmp_path_factory: pytest.TempPathFactory, names: list[str]) -> None:
    check(tmp_path_factory.mktemp("shards") / "set", names)


FILES = ["train.jsonl", "dev.jsonl", "en/a-1.jsonl", "en/a-2.jsonl", "en/deep/b.jsonl", "c.jsonl"]
PATTERNS = [
    *FILES,
    "*.jsonl",
    "en/*",
    "en/*.jsonl",
    "en/a-*.jsonl",
    "en/a-?.jsonl",
    "en/**",
    "**/b.jsonl",
    "[cd]*",
    "./c.jsonl",
]


@st.composite
def cards(draw: st.DrawFn) -> str:
    """Draw cards that name the files of splits in each way that the library's pages show."""
    patterns = st.sampled_from(PATTERNS)
    paths = draw(st.lists(patterns, min_size=1, max_size=3, unique=True))
    path_or_list = paths[0] if len(paths) == 1 else paths
    splits = draw(st.lists(st.sampled_from(SPLITS), min_size=1, max_size=3, unique=True))
    by_split = [{"split": split, "path": draw(patterns)} for split in splits]
    config: dict[str, Any] = {
        "config_name": draw(st.sampled_from(["default", "en"])),
        "data_files": draw(st.sampled_from([path_or_list, by_split, by_split[:1]])),
    }
    configs = [config]
    is_default = config["config_name"] == "default"
    if is_default or draw(st.booleans()):
        configs.append({"config_name": "other", "data_files": "c.jsonl"})
        if not is_default:  # of several one must be
            config["default"] = True
    return card_of({"license": "mit", "configs": configs})


@given(cards())
@example(card_of({"configs": [{"config_name": "a", "data_files": "./c.jsonl"}]}))
@example(card_of({"configs": [{"config_name": "a", "data_files": ["en/*.jsonl"]}]}))
@max_examples(25)
def test_splits_by_a_card(tmp_path_factory: pytest.TempPathFactory, card: str) -> None:
    check(tmp_path_factory.mktemp("cards") / "set", FILES, card)


def test_several_configurations_are_refused_by_name() -> None:
    configs = [{"config_name": name, "data_files": f"{name}.jsonl"} for name in ("en", "de")]
    card = card_of({"configs": configs})
    with pytest.raises(UserError, match=r"^a: several configurations \(en, de\); name the files"):
        split_names(["en.jsonl", "de.jsonl"], "train", card, "a")


IS_SNAPSHOT: dict[str, tuple[list[str], str, bool]] = {
    "shards": (["data/train-00000-of-00001.parquet"], "", True),
    "a card with metadata": (["a.jsonl"], card_of({"license": "mit"}), True),
    "a page without": (["a.jsonl"], "# Some files\n---\nlicense: mit\n---\n", False),
    "a broken card": (["a.jsonl"], "---\n: [\n---\n", False),
    "descriptions": (["a.jsonl", "dataset_infos.json"], "", True),
    "a folder of files": (["train.jsonl", "test.jsonl"], "", False),
}


@pytest.mark.parametrize("name", IS_SNAPSHOT)
def test_what_is_a_snapshot(name: str) -> None:
    names, card, expected = IS_SNAPSHOT[name]
    assert is_snapshot(names, card) is expected


def test_files_named_after_splits_are_splits_without_a_card(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """All three were trained, the test split too."""
    folder = fill(tmp_path / "a", ["train.jsonl", "test.jsonl", "valid.jsonl"])
    for split, name in (("train", "train.jsonl"), ("validation", "valid.jsonl")):
        caplog.clear()
        (file,) = find_files(str(folder), "data.text", split=split)
        assert Path(file.address).name == name
        assert "data.text: 2 files are passed over: " in caplog.text
    assert theirs(folder) is not None
    by_folder = fill(tmp_path / "b", ["train/1.jsonl", "train/2.jsonl", "test/1.jsonl"])
    files = find_files(str(by_folder), "data.text")
    assert [Path(file.address).parent.name for file in files] == ["train", "train"]


@pytest.mark.parametrize(
    "names",
    [
        ["train.jsonl", "more.jsonl"],  # one is no split's
        ["train.jsonl", "test.jsonl", "more.jsonl"],  # though two are
        ["train-a.jsonl", "train-b.jsonl"],  # one split alone
        ["test.jsonl", "dev.jsonl"],  # nothing to train on
        ["trained.jsonl", "contest.jsonl"],  # words of books
    ],
)
def test_other_folders_are_read_whole(tmp_path: Path, names: list[str]) -> None:
    folder = fill(tmp_path / "a", names)
    assert len(find_files(str(folder), "data.text")) == len(names)

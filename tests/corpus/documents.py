"""A byte-level tokenizer, and token shards of documents made with it."""

import csv
import gzip
import json
import tempfile
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
from transformers import PreTrainedTokenizerFast

from detalbert.corpus.blocks import Block
from detalbert.corpus.documents import DocumentKind
from detalbert.corpus.learn_tokenizer import train_byte_bpe
from detalbert.corpus.read_text import TextReader
from detalbert.corpus.reader import Shards
from detalbert.corpus.sources import cut_parts, open_text, unpack_sizes
from detalbert.corpus.writer import write_shards
from detalbert.reading.notes import Notes
from detalbert.settings.text import DocumentsConfig, SourceConfig, parse_documents_config
from tests.fakes.text import LENGTH, TOKENIZER, contexts

CODE = "def f(x):\n    if x:\n        return  1\r\n\n\nclass A:\n\tpass\n"


@lru_cache
def byte_tokenizer() -> PreTrainedTokenizerFast:
    return train_byte_bpe(contexts(60), 400)


def documents_config(documents: Any, folder: Path, **more: Any) -> DocumentsConfig:
    values = {
        "documents": documents if isinstance(documents, list) else str(documents),
        "tokenizer": "?",
        "cache_dir": str(folder / "cache"),
    }
    return parse_documents_config({**values, **more})


def write_config(folder: Path, text: Any, **data: Any) -> Path:
    """Write the config of an ALBERT's pretraining for the command that writes shards."""
    values = {"text": text, "tokenizer": TOKENIZER, "cache_dir": str(folder / "cache"), **data}
    hparams = {"size": "tiny", "max_seq_length": LENGTH}
    path = folder / "c.yaml"
    path.write_text(json.dumps({"hyperparameters": hparams, "data": values}))
    return path


def write(documents: Any, folder: Path, processes: int = 1, **more: Any) -> Path:
    config = documents_config(documents, folder, **more)
    tokenizer = byte_tokenizer()
    kind = DocumentKind(tokenizer.eos_token_id)
    return Path(write_shards(config, tokenizer, kind, processes=processes))


def read_back(folder: Path, split: str) -> list[str]:
    """Return the texts of all documents in shards, in order."""
    tokenizer = byte_tokenizer()
    shards = Shards(str(folder), split, documents_config("generated", folder))
    texts = []
    for number in range(len(shards.shards)):
        columns = shards.columns(number)
        document_ends = columns["document_ptr"][1:-1]
        for ids in np.split(columns["tokens"], document_ends):
            end_of_text = np.flatnonzero(ids == tokenizer.eos_token_id)
            assert end_of_text.tolist() == [len(ids) - 1]
            text = ids[:-1].tolist()
            texts.append(tokenizer.backend_tokenizer.decode(text, skip_special_tokens=False))
    return texts


def read(
    address: Any,
    part_bytes: int = 1 << 20,
    exact: bool = True,
    article: str | None = None,
    text_key: str = "text",
    form: str | None = None,
    notes: Notes | None = None,
) -> list[str]:
    """Return the documents at an address, read in parts."""
    if article is None:
        article = "file" if exact else "line"
    source = SourceConfig(str(address), text_key=text_key)
    text = open_text(source, "data.text", "train", exact, article, form)
    reader = TextReader()
    reader.notes = notes or reader.notes
    blocks: list[Block] = []
    with tempfile.TemporaryDirectory() as folder:
        for part in cut_parts(unpack_sizes(text, Path(folder)), part_bytes):
            blocks += reader.read(part)
    return join(blocks)


def join(blocks: Iterable[Block]) -> list[str]:
    """Return the documents of which these are the blocks."""
    documents = []
    texts: list[str] = []
    for text, ends in blocks:
        texts.append(text)
        if ends:
            documents.append("".join(texts))
            texts = []
    assert not texts
    return documents


def write_sources(folder: Path, texts: list[str]) -> dict[Path, dict[str, str]]:
    """Write every kind of source that holds several documents, all with the same; return options
    of `read`."""
    squad = {"data": [{"paragraphs": [{"context": text, "qas": []} for text in texts]}]}
    (folder / "squad.json").write_text(json.dumps(squad))
    plain = [folder / "squad.json", write_folder(folder / "folder", texts)]
    plain += [write_lines(folder / f"a.jsonl{suffix}", texts) for suffix in ("", ".gz", ".zst")]

    keyed = write_tables(folder, [{"id": n, "body": text} for n, text in enumerate(texts)])
    return {**dict.fromkeys(plain, {}), **dict.fromkeys(keyed, {"text_key": "body"})}


def write_folder(folder: Path, texts: list[str]) -> Path:
    """Write a folder of text files, one of JSON lines below it, and one that is passed over."""
    (folder / "deep").mkdir(parents=True)
    for number, text in enumerate(texts[:15]):
        (folder / f"{number:02}.txt").write_bytes(text.encode())
    write_lines(folder / "deep" / "b.jsonl.zst", texts[15:])
    (folder / "notes.pdf").write_text("not text")
    return folder


def write_tables(folder: Path, rows: list[dict[str, Any]]) -> list[Path]:
    """Write rows as JSON, CSV and Parquet; return the paths, with those of compressed ones."""
    (folder / "rows.json").write_text(json.dumps(rows))
    table = pyarrow.Table.from_pylist(rows)
    pyarrow.parquet.write_table(table, folder / "a.parquet", row_group_size=7)
    with (folder / "a.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["id", "body"])
        writer.writeheader()
        writer.writerows(rows)

    paths = [folder / "rows.json"]
    for name in ("a.csv", "a.parquet"):
        plain = folder / name
        compressed = folder / f"{name}.gz"
        compressed.write_bytes(gzip.compress(plain.read_bytes()))
        paths += [plain, compressed]
    return paths


def write_lines(path: Path, texts: list[str]) -> Path:
    """Write `texts` as JSON lines, compressed as the name says."""
    content = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    with pyarrow.output_stream(str(path), compression="detect") as file:
        file.write(content)
    return path

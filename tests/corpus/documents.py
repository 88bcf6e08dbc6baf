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
from detalbert.settings.text import DocumentsConfig, SourceConfig, parse_documents_config
from tests.fakes.text import contexts

CODE = "def f(x):\n    if x:\n        return  1\r\n\n\nclass A:\n\tpass\n"


@lru_cache
def byte_tokenizer() -> PreTrainedTokenizerFast:
    return train_byte_bpe(contexts(60), 400)


def documents_config(documents: Any, folder: Path, **more: Any) -> DocumentsConfig:
    documents = documents if isinstance(documents, list) else str(documents)
    values = {"documents": documents, "tokenizer": "?", "cache_dir": str(folder / "cache")}
    return parse_documents_config({**values, **more})


def write(documents: Any, folder: Path, processes: int = 1, **more: Any) -> Path:
    config = documents_config(documents, folder, **more)
    tokenizer = byte_tokenizer()
    kind = DocumentKind(tokenizer.eos_token_id)
    return Path(write_shards(config, tokenizer, kind, processes=processes))


def read_back(folder: Path, split: str) -> list[str]:
    """The texts of all documents in shards, in order."""
    texts = []
    shards = Shards(str(folder), split, documents_config("generated", folder))
    backend = byte_tokenizer().backend_tokenizer
    for number in range(len(shards.shards)):
        columns = shards.columns(number)
        for ids in np.split(columns["tokens"], columns["document_ptr"][1:-1]):
            ends = np.flatnonzero(ids == byte_tokenizer().eos_token_id)
            assert ends.tolist() == [len(ids) - 1]
            texts.append(backend.decode(ids[:-1].tolist(), skip_special_tokens=False))
    return texts


def read(
    address: Any,
    part_bytes: int,
    exact: bool = True,
    article: str | None = None,
    text_key: str = "text",
) -> list[str]:
    """The documents at an address, read in parts."""
    source = SourceConfig(str(address), text_key=text_key)
    text = open_text(source, "data.text", "train", exact, article or ("file" if exact else "line"))
    reader = TextReader()
    with tempfile.TemporaryDirectory() as folder:
        parts = cut_parts(unpack_sizes(text, Path(folder)), part_bytes)
        return join(block for part in parts for block in reader.read(part))


def join(blocks: Iterable[Block]) -> list[str]:
    """The documents of which these are the blocks."""
    documents, texts = [], []
    for text, ends in blocks:
        texts.append(text)
        if ends:
            documents.append("".join(texts))
            texts = []
    assert not texts
    return documents


def write_sources(folder: Path, texts: list[str]) -> dict[Path, dict[str, str]]:
    """Every kind of source that holds several documents, all with the same; options of `read`."""
    squad = {"data": [{"paragraphs": [{"context": text, "qas": []} for text in texts]}]}
    (folder / "squad.json").write_text(json.dumps(squad))
    inside = folder / "folder"
    (inside / "deep").mkdir(parents=True)
    for number, text in enumerate(texts[:15]):
        (inside / f"{number:02}.txt").write_bytes(text.encode())
    write_lines(inside / "deep" / "b.jsonl.zst", texts[15:])
    (inside / "notes.pdf").write_text("not text")
    rows = [{"id": number, "body": text} for number, text in enumerate(texts)]
    (folder / "rows.json").write_text(json.dumps(rows))
    pyarrow.parquet.write_table(
        pyarrow.Table.from_pylist(rows), folder / "a.parquet", row_group_size=7
    )
    with (folder / "a.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, ["id", "body"])
        table.writeheader()
        table.writerows(rows)
    for name in ("a.csv", "a.parquet"):
        (folder / f"{name}.gz").write_bytes(gzip.compress((folder / name).read_bytes()))
    lines = [write_lines(folder / f"a.jsonl{suffix}", texts) for suffix in ("", ".gz", ".zst")]
    keyed = [folder / "rows.json", *folder.glob("a.csv*"), *folder.glob("a.parquet*")]
    plain: list[Path] = [*lines, folder / "squad.json", inside]
    return {**dict.fromkeys(plain, {}), **dict.fromkeys(keyed, {"text_key": "body"})}


def write_lines(path: Path, texts: list[str]) -> Path:
    """`texts` as JSON lines, compressed as the name says."""
    content = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    with pyarrow.output_stream(str(path), compression="detect") as file:
        file.write(content)
    return path

"""A byte-level tokenizer, and token shards of documents made with it."""

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from transformers import PreTrainedTokenizerFast

from detalbert.corpus.learn_tokenizer import train_byte_bpe
from detalbert.corpus.reader import Shards
from lm.data import write_documents
from lm.settings import DocumentsConfig, parse_documents_config
from tests.fakes.text import contexts


@lru_cache
def byte_tokenizer() -> PreTrainedTokenizerFast:
    return train_byte_bpe(contexts(60), 400)


def documents_config(documents: Any, folder: Path, **more: Any) -> DocumentsConfig:
    values = {"documents": str(documents), "tokenizer": "?", "cache_dir": str(folder / "cache")}
    return parse_documents_config({**values, **more})


def write(documents: Any, folder: Path, processes: int = 1, **more: Any) -> Path:
    config = documents_config(documents, folder, **more)
    return write_documents(config, byte_tokenizer(), processes=processes)


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


def write_lines(path: Path, texts: list[str]) -> Path:
    """`texts` as JSON lines, compressed as the name says."""
    content = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    codec = {".zst": "zstd", ".gz": "gzip"}.get(path.suffix)
    if codec is None:
        path.write_bytes(content)
    else:
        with pyarrow.CompressedOutputStream(str(path), codec) as file:
            file.write(content)
    return path

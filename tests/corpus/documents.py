"""A byte-level tokenizer, and token shards of documents made with it."""

import json
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow

from detalbert.corpus.read import Shards
from detalbert.corpus.vocabulary import train_byte_bpe
from detalbert.corpus.write import write_shards
from lm.corpus import DocumentKind
from lm.hparams import parse_documents_config
from tests.conftest import TINY_PRETRAINING
from tests.fakes.text import LENGTH, TOKENIZER, contexts


@lru_cache
def byte_tokenizer():
    return train_byte_bpe(contexts(60), 400)


def documents_config(documents, folder, **more):
    values = {
        "documents": documents if isinstance(documents, list) else str(documents),
        "tokenizer": "?",
        "cache_dir": str(folder / "cache"),
    }
    return parse_documents_config({**values, **more})


def write_config(folder, text, **data):
    """Write the config of an ALBERT's pretraining for the command that writes shards."""
    values = {"text": text, "tokenizer": TOKENIZER, "cache_dir": str(folder / "cache"), **data}
    hparams = {**TINY_PRETRAINING["hyperparameters"], "max_seq_length": LENGTH}
    config = {**TINY_PRETRAINING, "hyperparameters": hparams, "data": values}
    path = folder / "c.yaml"
    path.write_text(json.dumps(config))
    return path


def write(documents, folder, processes=1, **more):
    config = documents_config(documents, folder, **more)
    return Path(write_shards(config, DocumentKind(byte_tokenizer()), processes=processes))


def read_back(folder, split):
    """Return the texts of all documents in shards, in order."""
    tokenizer = byte_tokenizer()
    shards = Shards(str(folder), split, documents_config("generated", folder))
    texts = []
    for number in range(len(shards.shards)):
        columns = shards.columns(number)
        for ids in np.split(columns["tokens"], columns["document_ptr"][1:-1]):
            end_of_text = np.flatnonzero(ids == tokenizer.eos_token_id)
            assert end_of_text.tolist() == [len(ids) - 1]
            texts.append(tokenizer.decode(ids[:-1].tolist(), skip_special_tokens=False))
    return texts


def write_lines(path, texts):
    """Write `texts` as JSON lines, compressed as the name says."""
    content = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    with pyarrow.output_stream(str(path), compression="detect") as file:
        file.write(content)
    return path

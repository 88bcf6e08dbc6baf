"""Text -> token shards: written in parallel, each a function of its part of the text alone.

A job is a run of spans of the text, about one shard's worth. It writes `train-00007.bin` and, of
the documents that are held out, `validation-00007.bin`, aside; renames them; and last of all
its record `jobs/00007.json`. A restart does the jobs without a record, and gets the same bytes.
When all are there, `index.json` makes the folder a corpus (see `corpus`).
"""

import hashlib
import itertools
import json
import os
from pathlib import Path
from typing import Any, BinaryIO, Dict, Iterator, List, NamedTuple, Tuple

import numpy as np

from pretrain.sentences import split_sentences
from pretrain.sources import Span, documents
from pretrain.words import WordEncoder
from run_folder import write_json

FORMAT = 1  # raise it when the columns or their meaning change
SPLITS = ("train", "validation")
_BATCH = 4 << 20  # characters that are encoded at a time: words that recur are encoded once


class Job(NamedTuple):
    """Some spans of text; `held_out` is the part of the documents that validation gets, 0 to 1."""

    number: int
    spans: Tuple[Span, ...]
    held_out: float


class Plan(NamedTuple):
    """All that a shard's bytes depend on, but for its text."""

    folder: Path
    tokenizer: Any  # the library's, fast
    max_seq_length: int

    @property
    def capacity(self) -> int:
        """Text tokens of one window: [CLS] A [SEP] B [SEP] takes three more."""
        return self.max_seq_length - 3

    @property
    def dtype(self) -> str:
        return "<u2" if len(self.tokenizer) <= 1 << 16 else "<u4"


def group_spans(spans: List[Span], part_bytes: int) -> List[Tuple[Span, ...]]:
    """Neighbouring spans together until they have `part_bytes` bytes: many small files, one job."""
    groups: List[List[Span]] = []
    size = part_bytes
    for span in spans:
        if size >= part_bytes:
            groups.append([])
            size = 0
        groups[-1].append(span)
        size += span.end - span.begin
    return [tuple(group) for group in groups]


def record_path(folder: Path, number: int) -> Path:
    return folder / "jobs" / f"{number:05d}.json"


def is_done(folder: Path, number: int) -> bool:
    """Whether a job's record is there and its shards have the sizes that it names."""
    try:
        record = json.loads(record_path(folder, number).read_text())
        return all((folder / s["name"]).stat().st_size == s["bytes"] for s in record.values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def run_job(plan: Plan, job: Job, encoder: WordEncoder) -> Iterator[int]:
    """Write a job's shards and record; yields bytes of text as they are done."""
    writers = {split: _Writer(plan, f"{split}-{job.number:05d}.bin") for split in SPLITS}
    try:
        for texts, size in _batches(job):
            _write_batch(plan, job, encoder, texts, writers)
            yield size
        record = {split: writer.finish() for split, writer in writers.items()}
    finally:
        for writer in writers.values():
            writer.discard()
    record = {split: facts for split, facts in record.items() if facts["examples"]}
    write_json(record_path(plan.folder, job.number), record)


def _batches(job: Job) -> Iterator[Tuple[List[str], int]]:
    texts: List[str] = []
    characters = size = 0
    for text, read in itertools.chain.from_iterable(map(documents, job.spans)):
        texts.append(text)
        characters += len(text)
        size += read
        if characters >= _BATCH:
            yield texts, size
            texts, characters, size = [], 0, 0
    yield texts, size


def _write_batch(
    plan: Plan,
    job: Job,
    encoder: WordEncoder,
    texts: List[str],
    writers: Dict[str, "_Writer"],
) -> None:
    held = [is_held_out(text, job.held_out) for text in texts]
    for split, wanted in zip(SPLITS, (False, True), strict=True):
        chosen = [text for text, out in zip(texts, held, strict=True) if out == wanted]
        if chosen:
            writers[split].add(*tokenize(plan, encoder, chosen), documents=len(chosen))


def is_held_out(text: str, part: float) -> bool:
    """Whether a document is validation's: by a hash of its text, so that copies stay together."""
    if part in (0.0, 1.0):
        return bool(part)
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") < part * 2**64


def tokenize(
    plan: Plan, encoder: WordEncoder, texts: List[str]
) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens of all sentences end to end, tokens per sentence, sentences per example.

    An example is as many sentences in a row of one document as a window holds. A sentence that is
    longer than a window counts as several.
    """
    sentences, last = [], []
    for text in texts:
        found = split_sentences(text)
        sentences += found
        last += [False] * (len(found) - 1) + [True] * bool(found)
    ids, tokens = encoder(sentences)
    lengths, counts = cut_examples(tokens.tolist(), last, plan.capacity)
    return ids.astype(plan.dtype), lengths, counts


def cut_examples(
    sentences: List[int], last: List[bool], capacity: int
) -> Tuple[np.ndarray, np.ndarray]:
    """Tokens per sentence, none over `capacity`, uint16; and sentences per example, int64.

    Args: sentences: tokens of each; last: whether it ends its document.
    """
    lengths: List[int] = []
    counts: List[int] = []
    count = used = 0
    for length, ends in zip(sentences, last, strict=True):
        while length > 0:
            piece = min(length, capacity)
            length -= piece
            if count and used + piece > capacity:
                counts.append(count)
                count = used = 0
            lengths.append(piece)
            count += 1
            used += piece
        if ends and count:
            counts.append(count)
            count = used = 0
    return np.array(lengths, "<u2"), np.array(counts, np.int64)


class _Writer:
    """One shard: the tokens go to the disk as they come, the small columns behind them."""

    def __init__(self, plan: Plan, name: str) -> None:
        self.path = plan.folder / name
        self.aside = plan.folder / f".{name}.{os.getpid()}"
        self.dtype = plan.dtype
        self.file: BinaryIO = self.aside.open("wb")
        self.sum = hashlib.sha256()
        self.tokens = self.documents = 0
        self.sentences: List[np.ndarray] = []
        self.counts: List[np.ndarray] = []

    def add(
        self, tokens: np.ndarray, lengths: np.ndarray, counts: np.ndarray, documents: int
    ) -> None:
        self._write(tokens)
        self.tokens += len(tokens)
        self.documents += documents
        self.sentences.append(lengths)
        self.counts.append(counts)

    def finish(self) -> Dict[str, Any]:
        """Close and rename the shard; returns its facts. A shard without examples is dropped."""
        sentences = np.concatenate([np.zeros(0, "<u2"), *self.sentences])
        counts = np.concatenate([np.zeros(0, np.int64), *self.counts])
        sentence_ptr = np.append(0, np.cumsum(counts)).astype("<i8")
        token_ptr = np.append(0, np.cumsum(sentences, dtype=np.int64))[sentence_ptr].astype("<i8")
        columns = {"tokens": [self.dtype, 0, self.tokens]}
        parts = {"sentences": sentences, "sentence_ptr": sentence_ptr, "token_ptr": token_ptr}
        for name, column in parts.items():
            self._write(np.zeros(-self.file.tell() % 64, np.uint8))
            columns[name] = [column.dtype.str, self.file.tell(), len(column)]
            self._write(column)
        size = self.file.tell()
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        if len(counts):
            os.replace(self.aside, self.path)
        return {
            "name": self.path.name,
            "bytes": size,
            "sha256": self.sum.hexdigest(),
            "examples": len(counts),
            "documents": self.documents,
            "sentences": len(sentences),
            "tokens": self.tokens,
            "columns": columns,
        }

    def discard(self) -> None:
        self.file.close()
        self.aside.unlink(missing_ok=True)

    def _write(self, array: np.ndarray) -> None:
        content = np.ascontiguousarray(array).tobytes()
        self.sum.update(content)
        self.file.write(content)

"""Text -> tokens on the disk: our shards beside two maps of `datasets`; memory as the text grows.

Both read the same file, a document a line, with the same tokenizer, one process a core. Ours also
finds where sentences end, keeps that, and packs no example over the end of a document, as sentence
order needs; the peer tokenizes, joins and cuts, like the library's masked-language-model example.
"""

import importlib.metadata
import multiprocessing
import os
import resource
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import Different, Options, growth, interleave, rates, ratio_of
from detalbert.corpus import api_text
from detalbert.corpus.reader import Corpus
from detalbert.corpus.writer import write_corpus
from detalbert.errors import UserError, first_line
from detalbert.settings.text import TextConfig, parse_text_config
from detalbert.squad.tokenizer import named_tokenizer

PROCESSES = len(os.sched_getaffinity(0))
LENGTH = 128
TIMES = (1, 4, 16)  # as much text, for the memory


def documents_of(options: Options) -> Iterator[str]:
    """One line each: those of `--text`, or of the API reference that botocore carries."""
    if options.text is None:
        found = chain.from_iterable(map(api_text.read_service, api_text.find_services()))
    else:
        try:
            found = iter(options.text.read_text(encoding="utf-8").splitlines())
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"--text {options.text}: cannot read it: {first_line(error)}") from None
    lines = (" ".join(text.split()) for text in found)
    return islice((line for line in lines if line), options.examples)


def write_text(options: Options, path: Path, times: int = 1) -> Path:
    """The documents, `times` times; none is a mere copy: it is turned round and has new words."""
    documents = list(documents_of(options))
    if not documents:
        raise UserError(f"--text {options.text}: no text in it")
    with path.open("w", encoding="utf-8") as file:
        for copy in range(times):
            for number, document in enumerate(documents):
                words = document.split()
                turn = 7 * copy % len(words)
                added = [f"{copy}x{number}."] * bool(copy)
                file.write(" ".join([*words[turn:], *words[:turn], *added]) + "\n")
    return path


def data_of(path: Path, cache: Path, options: Options) -> TextConfig:
    """The config of a corpus made of the text at `path`."""
    return parse_text_config(
        {"text": str(path), "tokenizer": options.tokenizer, "cache_dir": str(cache),
         "validation_fraction": 0.0}
    )  # fmt: skip


def map_way(path: Path, folder: Path, tokenizer: Any) -> Any:
    """The peer: tokenized rows, and the windows of LENGTH made of them; both are on the disk."""
    import datasets

    datasets.disable_progress_bars()
    rows = datasets.load_dataset("text", data_files=str(path), cache_dir=str(folder), split="train")

    def tokenize(batch: dict[str, list[str]]) -> Any:
        return tokenizer(
            batch["text"], return_attention_mask=False, return_token_type_ids=False, verbose=False
        )

    def group(batch: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
        joined = list(chain(*batch["input_ids"]))
        total = len(joined) // LENGTH * LENGTH
        return {"input_ids": [joined[i : i + LENGTH] for i in range(0, total, LENGTH)]}

    tokens = rows.map(tokenize, batched=True, num_proc=PROCESSES, remove_columns=["text"])
    return tokens, tokens.map(group, batched=True, num_proc=PROCESSES)


def check_tokens(corpus: Corpus, rows: Any) -> None:
    """Raises Different unless the shards hold the peer's tokens, less [CLS] and [SEP], in order."""
    shards = range(len(corpus.shards))
    ours = np.concatenate([corpus.columns(shard)["tokens"] for shard in shards])
    lists = (ids[1:-1] for batch in rows.iter(1000) for ids in batch["input_ids"])
    theirs = np.fromiter(chain.from_iterable(lists), np.int64)
    if not np.array_equal(ours, theirs):
        raise Different(f"shards: {len(ours)} tokens are not the peer's {len(theirs)}")


def shards(options: Options) -> dict[str, Any]:
    """MB of text a second of both ways, and peak memory at several sizes of the text."""
    tokenizer = named_tokenizer(options.tokenizer)
    with tempfile.TemporaryDirectory() as name:
        folder, number = Path(name), count()
        path = write_text(options, folder / "text.txt")

        def ours() -> Path:
            data = data_of(path, folder / f"ours-{next(number)}", options)
            return write_corpus(data, tokenizer, LENGTH)

        def theirs() -> Any:
            return map_way(path, folder / f"peer-{next(number)}", tokenizer)

        corpus = Corpus(str(ours()), "train", data_of(path, folder, options))
        check_tokens(corpus, theirs()[0])
        seconds = interleave({"ours": ours, "peer": theirs}, options.repeats, warm_up=0)
        megabytes = path.stat().st_size / 1e6
        memory = {f"{times}x": memory_of(options, times) for times in TIMES}
    results = rates(seconds, megabytes=megabytes)
    return {
        "results": results,
        "ratio": {"megabytes_per_second": ratio_of(results, "megabytes_per_second")},
        "memory": memory,
        "settings": {
            "text": str(options.text or "botocore"),
            "text_megabytes": megabytes,
            "tokenizer": Path(options.tokenizer).name,
            "processes": PROCESSES,
            "datasets": importlib.metadata.version("datasets"),
            **corpus.counts,
        },
    }


def memory_of(options: Options, times: int) -> dict[str, float]:
    """MiB by which a fresh process grows at most while it shards the text, `times` times, and the
    peak of its greatest worker."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as name, ProcessPoolExecutor(1, context) as pool:
        path = write_text(options, Path(name) / "text.txt", times)
        found = pool.submit(_memory, data_of(path, Path(name), options)).result()
        return {"text_megabytes": path.stat().st_size / 1e6, **found}


def _memory(data: TextConfig) -> dict[str, float]:
    grown = growth(partial(write_corpus, data, named_tokenizer(data.tokenizer), LENGTH))
    worker = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return {"process_grows_mib": grown / 2**20, "worker_peak_mib": worker / 2**10}

"""The tokenizer of a corpus: which one, and how the process that writes shards gets it.

That process imports no torch: its workers are forks of it.
"""

from concurrent.futures import ProcessPoolExecutor
from pkgutil import resolve_name

from transformers import PreTrainedTokenizerBase

from detalbert.corpus.index import fetch_tokenizer
from detalbert.corpus.learn_tokenizer import own_tokenizer
from detalbert.processes import CHILDREN
from detalbert.settings.text import CorpusConfig


def find_tokenizer(data: CorpusConfig, held_out: float, positions: int | None = None) -> str:
    """Return the name of `data.tokenizer`, or the folder of the one beside `data.shards`, or of one
    trained on the text (`own_tokenizer`).
    """
    if data.tokenizer:
        return data.tokenizer
    if data.shards:
        return str(fetch_tokenizer(data))
    return str(own_tokenizer(data, held_out, positions))


def load_in_child(name: str, *needed: str, kind: str) -> PreTrainedTokenizerBase:
    """Return `named_tokenizer` of the arguments, loaded by a child process: transformers imports
    torch to find a tokenizer's class, some 450 MiB. Raises UserError as it does.
    """
    with ProcessPoolExecutor(1, CHILDREN) as pool:
        return pool.submit(_load, name, *needed, kind=kind).result()


def _load(name: str, *needed: str, kind: str) -> PreTrainedTokenizerBase:
    load = resolve_name("detalbert.squad.tokenizer:named_tokenizer")
    return load(name, *needed, kind=kind)

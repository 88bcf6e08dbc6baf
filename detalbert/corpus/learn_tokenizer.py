"""Tokenizers trained on text: byte-pair encoding (Sennrich et al. 2016, arXiv:1508.07909).

For ALBERT, tokens are lower-case without accents, '▁' begins a word, and special tokens are laid
out as ALBERT's, so code that reads ALBERT's tokenizer reads these. For a causal language model,
tokens consist of bytes and are lossless. The same text gives the same tokens.
"""

import hashlib
import itertools
import json
import logging
import math
from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

from detalbert.atomic import alone, whole_folder, writing
from detalbert.corpus.blocks import cut_segments, find_space
from detalbert.corpus.held_out import decide
from detalbert.corpus.index import fetch_tokenizer
from detalbert.corpus.opened import open_training
from detalbert.corpus.read_text import TextReader
from detalbert.corpus.shards import is_held_out
from detalbert.corpus.sources import Part, Text, cut_parts, size_of, unpack_sizes
from detalbert.integrity import SUMS, find_change, write_facts
from detalbert.settings.text import CorpusConfig
from detalbert.waiting import waiting

SPECIALS = {
    "pad_token": "<pad>",
    "unk_token": "<unk>",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
END_OF_TEXT = "<|endoftext|>"
_FORMAT = 1  # raise it when the same text gives other pieces
_SAMPLE = 64 << 20  # bytes of text that are read, spread over all of it
_PART = 1 << 20  # bytes
_SEGMENT = 1 << 16  # characters; the trainer takes 256 segments at a time
_ALPHABET = 1000  # letters; rarer ones are <unk>
log = logging.getLogger(__name__)


def train_bpe(texts: Iterable[str], size: int, positions: int | None) -> PreTrainedTokenizerFast:
    """Train a tokenizer of at most `size` tokens, with the special ones and printable ASCII, for
    texts of at most `positions` tokens.
    """
    tokenizer = Tokenizer(models.BPE(unk_token=SPECIALS["unk_token"]))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
    )
    # White space is first, so that words are encoded apart from one another: see words.py.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Metaspace(),
            pre_tokenizers.Punctuation(),
        ]
    )
    printable = [chr(code) for code in range(33, 127)]
    letters = [letter for letter in printable if not letter.isupper()]
    trainer = BpeTrainer(
        vocab_size=size,
        show_progress=False,
        special_tokens=list(SPECIALS.values()),
        initial_alphabet=letters,
        limit_alphabet=_ALPHABET,
    )
    tokenizer.train_from_iterator(texts, trainer)

    # As ALBERT's: [CLS] A [SEP] B [SEP].
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=positions,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **SPECIALS,
    )


def train_byte_bpe(texts: Iterable[str], size: int) -> PreTrainedTokenizerFast:
    """Train a lossless tokenizer of at most `size` tokens over bytes.

    As Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", 2.2. END_OF_TEXT,
    token 0, ends a document, and starts generation without a prompt.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=size,
        show_progress=False,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
    )


def find_tokenizer(data: CorpusConfig, held_out: float, positions: int | None = None) -> str:
    """Return the name of `data.tokenizer`, or the folder of the one beside `data.shards`, or of one
    trained on the text (`own_tokenizer`).
    """
    if data.shards and not data.tokenizer:
        return str(fetch_tokenizer(data))
    if data.tokenizer:
        return data.tokenizer
    return str(own_tokenizer(data, held_out, positions))


def own_tokenizer(data: CorpusConfig, held_out: float, positions: int | None = None) -> Path:
    """Return the folder of a tokenizer of `data.vocab_size` tokens, trained on the text without the
    fraction `held_out` of its documents: for ALBERT with `positions` tokens, or of bytes.

    It is trained once and cached below `data.cache_dir`; the ranks of a machine wait for the first.
    Raises UserError if text cannot be read or the folder cannot be written.
    """
    size = data.vocab_size
    assert size is not None
    of_bytes = positions is None
    texts = [opened.text for opened in open_training(data, exact=of_bytes)]

    # The folder's name is a sum of all that the tokenizer depends on.
    stamp = "+".join(text.fingerprint for text in texts)
    key = [_FORMAT, stamp, size, held_out]
    recipe = ["bytes", *key] if of_bytes else [*key, positions]
    digest = hashlib.sha256(json.dumps(recipe).encode()).hexdigest()
    folder = Path(data.cache_dir) / f"tokenizer-{digest[:24]}"
    with writing(folder, what="the tokenizer"), alone(folder):
        # It is there already, or not as it was written.
        changed_file = find_change(folder / SUMS, key=digest)
        if changed_file is None:
            return folder
        if folder.is_dir():
            log.warning("%s: %s is not as it was written; it is learned anew", folder, changed_file)
        documents = _open_sample(texts, of_bytes, held_out=held_out, cache=folder.parent)
        with waiting(f"training a tokenizer of {size:,} tokens"):
            if of_bytes:
                bpe = train_byte_bpe(documents, size)
            else:
                bpe = train_bpe(documents, size, positions)
        with whole_folder(folder) as temporary:
            bpe.save_pretrained(temporary)
            write_facts(temporary / SUMS, {}, digest)
    return folder


def _open_sample(texts: list[Text], of_bytes: bool, held_out: float, cache: Path) -> Iterator[str]:
    """Return the sample of some texts: see `_sample`."""
    parts: list[Part] = []
    for text in texts:
        parts += unpack_sizes(text, cache)
    total = size_of(parts)
    if not of_bytes:
        # Rows of the hub are not counted in bytes.
        hub_parts = [part for part in parts if part.form == "hub"]
        total += sum(part.end for part in hub_parts) - size_of(hub_parts)
    return _sample(parts, total, held_out, cache)


def _sample(parts: list[Part], total: int, held_out: float, cache: Path) -> Iterator[str]:
    """Yield the training documents in every n-th MiB of `parts`, which have `total` bytes; long
    documents in segments. Temporary files are in the folder `cache`.
    """
    step = math.ceil(max(total, 1) / _SAMPLE)  # every step-th part is in the sample
    with waiting("reading text for a tokenizer", total=total // step, unit="B") as wait:
        reader = TextReader(wait.update)
        small_parts = cut_parts(parts, part_bytes=_PART)
        sample = itertools.islice(small_parts, 0, None, step)
        blocks = itertools.chain.from_iterable(map(reader.read, sample))
        segments = cut_segments(blocks, find_space, longest=_SEGMENT)
        for share, segment in decide(segments, held_out, cache):
            if not is_held_out(segment.text, share):
                yield segment.text

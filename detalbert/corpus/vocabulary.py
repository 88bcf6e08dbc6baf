"""Tokenizers learned from text: byte-pair encoding (Sennrich et al. 2016, arXiv:1508.07909).

For an encoder, tokens are lower-case, '▁' begins a word, and special tokens are laid out as
ALBERT's, so code that reads ALBERT's tokenizer reads these. Accents and vowel signs stay, as they
make words of most languages; the price is that an English text spends some tokens on letters of
names. For a causal language model, tokens consist of bytes and are lossless. The same text gives
the same tokens.
"""

import logging
import string
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

from detalbert.corpus.index import fetch_tokenizer
from detalbert.corpus.text import Unit, fingerprint, is_held_out, open_texts, read_documents
from detalbert.files import cached_folder
from detalbert.progress import waiting
from detalbert.settings.text import CorpusConfig
from detalbert.sums import json_sum

SPECIALS = {
    "pad_token": "<pad>",
    "unk_token": "<unk>",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
END_OF_TEXT = "<|endoftext|>"
_FORMAT = 2  # raise it when the same text gives other tokens
_SAMPLE = 64 << 20  # characters of text that are read, of all files
log = logging.getLogger(__name__)


def train_bpe(
    texts: Iterable[str], size: int, positions: int | None = None
) -> PreTrainedTokenizerFast:
    """Train a tokenizer of at most `size` tokens, with the special ones and printable ASCII, for
    texts of at most `positions` tokens.
    """
    tokenizer = Tokenizer(models.BPE(unk_token=SPECIALS["unk_token"]))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    # White space is first, so that words are encoded apart from one another: see words.py.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Metaspace(),
            pre_tokenizers.Punctuation(),
        ]
    )
    trainer = BpeTrainer(
        vocab_size=size,
        show_progress=False,
        special_tokens=list(SPECIALS.values()),
        initial_alphabet=list(string.ascii_lowercase + string.digits + string.punctuation),
        # Rarer letters are <unk>. Chinese needs more than a thousand.
        limit_alphabet=max(1000, size // 10),
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


def find_tokenizer(data: CorpusConfig, positions: int | None = None) -> str:
    """Return the name of `data.tokenizer`, or the folder of the one beside `data.shards`, or of one
    that is learned from the text: for an encoder with `positions` tokens, or of bytes.

    It is learned once and cached below `data.cache_dir`; the ranks of a machine wait for the first.
    Held-out documents teach it nothing.

    Raises:
        UserError: text cannot be read, or the folder cannot be written.
        Unavailable: a server fails.
    """
    if data.tokenizer:
        return data.tokenizer
    if data.shards:
        return str(fetch_tokenizer(data))
    size = data.vocab_size
    assert size is not None
    texts = [units for units in open_texts(data) if units[0].held_out < 1.0]

    def build(folder: Path) -> None:
        with waiting(f"training a tokenizer of {size:,} tokens"):
            documents = sample([unit for units in texts for unit in units])
            if positions is None:
                tokenizer = train_byte_bpe(documents, size)
            else:
                tokenizer = train_bpe(documents, size, positions)
        if len(tokenizer) < size:
            log.warning(
                "data.vocab_size: the text has words for %d tokens of %d only", len(tokenizer), size
            )
        tokenizer.save_pretrained(folder)

    # The folder's name is a sum of all that the tokenizer depends on.
    key = json_sum([_FORMAT, size, positions, fingerprint(texts)])
    folder = Path(data.cache_dir) / f"tokenizer-{key[:24]}"
    return str(cached_folder(folder, key=key, build=build, what="the tokenizer"))


def sample(units: list[Unit]) -> Iterator[str]:
    """Yield documents for training of about _SAMPLE characters: of a larger text, the same fraction
    of every file, from its start.
    """
    fraction = min(1.0, _SAMPLE / max(1, sum(unit.size for unit in units)))
    passed = taken = 0  # bytes
    for unit in units:
        passed += unit.size
        for document in read_documents(unit, Counter()):
            if fraction < 1.0 and taken > fraction * passed:
                break
            taken += len(document)
            if not is_held_out(document, unit.held_out):
                yield document

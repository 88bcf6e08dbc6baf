"""Learns a tokenizer from text: byte-pair encoding (Sennrich et al. 2016, arXiv:1508.07909).

Its pieces are lower-case and without accents, '▁' begins a word, and special tokens are laid out
as ALBERT's: what reads ALBERT's tokenizer reads this one. The same text gives the same pieces.
"""

import hashlib
import json
import math
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import filelock
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from tqdm import tqdm
from transformers import PreTrainedTokenizerFast

from detalbert.atomic import whole_folder
from detalbert.corpus.chunks import is_held_out
from detalbert.corpus.sources import Text, open_text, read_documents
from detalbert.corpus.storage import writing
from detalbert.settings.text import TextConfig

SPECIALS = {
    "pad_token": "<pad>",
    "unk_token": "<unk>",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
_FORMAT = 1  # raise it when the same text gives other pieces
_SAMPLE = 64 << 20  # bytes of text that are read, spread over all of it
_PART = 1 << 20  # bytes
_ALPHABET = 1000  # letters; rarer ones are <unk>


def train_bpe(texts: Iterable[str], size: int) -> Tokenizer:
    """A tokenizer of at most `size` pieces, the special ones and printable ASCII among them."""
    tokenizer = Tokenizer(models.BPE(unk_token=SPECIALS["unk_token"]))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
    )
    # White space comes first, so that words are encoded apart from one another: see words.py.
    kinds = pre_tokenizers.WhitespaceSplit, pre_tokenizers.Metaspace, pre_tokenizers.Punctuation
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([kind() for kind in kinds])
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(SPECIALS.values()),
        initial_alphabet=[chr(code) for code in range(33, 127) if not chr(code).isupper()],
        limit_alphabet=_ALPHABET,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")],
    )
    return tokenizer


def wrap(tokenizer: Tokenizer, positions: int) -> PreTrainedTokenizerFast:
    """The library's tokenizer around the bare one, for texts of at most `positions` tokens."""
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=positions,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **SPECIALS,
    )


def own_tokenizer(data: TextConfig, positions: int) -> Path:
    """The folder of a tokenizer with `data.vocab_size` pieces, learned from the training text.

    It is made once and kept below `data.cache_dir`; the processes of a machine wait for the first.
    Raises UserError for text that cannot be read and a folder that cannot be written.
    """
    text = open_text(data.text, "data.text", _PART, "train")
    held_out = 0.0 if data.validation is not None else data.validation_fraction
    facts = [_FORMAT, text.fingerprint, data.vocab_size, held_out, positions]
    key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]
    folder = Path(data.cache_dir) / f"tokenizer-{key}"
    with writing(folder, "the tokenizer"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(folder.with_name(f".{folder.name}.lock")):
            if not folder.is_dir():
                tokenizer = train_bpe(_sample(text, held_out), data.vocab_size)
                with whole_folder(folder) as aside:
                    wrap(tokenizer, positions).save_pretrained(aside)
    return folder


def _sample(text: Text, held_out: float) -> Iterator[str]:
    """The training documents of every n-th part of the text."""
    total = sum(part.end - part.begin for part in text.parts)
    parts = text.parts[:: math.ceil(max(total, 1) / _SAMPLE)]
    with tqdm(
        total=sum(part.end - part.begin for part in parts), unit="B", unit_scale=True,
        desc="vocabulary", file=sys.stderr, disable=None, dynamic_ncols=True,
    ) as bar:  # fmt: skip
        for part in parts:
            for document, size in read_documents(part):
                bar.update(size)
                if not is_held_out(document, held_out):
                    yield document

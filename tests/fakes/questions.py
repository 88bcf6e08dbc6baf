"""Made-up questions and logits, small tokenizers for them, and real files of questions."""

from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from hypothesis import strategies as st
from tokenizers import models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from detalbert.squad.decoding import Candidates, best_spans
from detalbert.squad.sources import open_source, read_examples
from detalbert.squad.windows import Example, Windows, build_windows

WORDS = ["river", "rivers", "the", "bank", "café", "(old)", "naïve,", "U.S.", "1066", "x", "東京"]


def read_squad(path: Path) -> list[Example]:
    return read_examples(open_source(str(path), "validation", path.parent))


def as_rows(examples: list[Example]) -> list[dict[str, Any]]:
    """Questions as a data set of the hub has them."""
    rows = [example._asdict() for example in examples]
    for row in rows:
        texts, starts = zip(*row["answers"], strict=True) if row["answers"] else ((), ())
        row["answers"] = {"text": [*texts], "answer_start": [*starts]}
    return rows


def bert_like() -> PreTrainedTokenizerFast:
    pieces = "[PAD] [UNK] [CLS] [SEP] river ##s the ban ##k old u ( ) , . 10 ##66 cafe s na ##ive"
    numbers = {piece: i for i, piece in enumerate(f"{pieces} x 東".split())}
    backend = tokenizers.Tokenizer(models.WordPiece(numbers, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )


def roberta_like() -> PreTrainedTokenizerFast:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special, alphabet = ["<s>", "<pad>", "</s>"], pre_tokenizers.ByteLevel.alphabet()
    # The bytes of "é" and "東" stay apart: tokens that share one character's offsets.
    backend.train_from_iterator(
        ["the river rivers bank"],
        trainers.BpeTrainer(
            vocab_size=275, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        ),
    )
    backend.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=False
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, cls_token="<s>", sep_token="</s>", pad_token="<pad>"
    )


TOKENIZERS = {"bert": bert_like(), "roberta": roberta_like()}


@st.composite
def cut_lists(draw: Any) -> tuple[list[Example], Any, int, int]:
    """Up to 6 questions, some blank, over up to 3 contexts, answers of any characters; a tokenizer,
    and a max_seq_length and an overlap that can cover every context."""
    words = st.sampled_from(WORDS)
    text = st.lists(words, min_size=1, max_size=40).map(" ".join)
    contexts, examples = draw(st.lists(text, min_size=1, max_size=3)), []
    for i in range(draw(st.integers(1, 6))):
        context = draw(st.sampled_from(contexts))
        question = draw(st.lists(words, max_size=3).map(" ".join))
        answers: tuple = ()
        if draw(st.booleans()):
            begin = draw(st.integers(0, len(context) - 1))
            end = draw(st.integers(begin + 1, len(context)))
            answers = ((context[begin:end], begin), ("decoy", 0))
        examples.append(Example(f"q{i}", "t", context, f" {question}", answers))
    tokenizer = TOKENIZERS[draw(st.sampled_from(sorted(TOKENIZERS)))]
    ids = [tokenizer(e.question.lstrip(), "x").input_ids for e in examples]  # "x" is one token
    stride = draw(st.integers(0, 8))
    return examples, tokenizer, max(map(len, ids)) + stride + draw(st.integers(0, 30)), stride


def tensors(row: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(column) for name, column in row.items()}


def plain_n_best(start: Any, end: Any, low: int, high: int, k: int, longest: int) -> list[tuple]:
    """(start, end) spans of one window, best first: the reference's two loops."""
    tokens = range(len(start))
    spans = [
        (start[i] + end[j], i, j)
        for i in sorted(tokens, key=lambda t: -start[t])[:k]
        for j in sorted(tokens, key=lambda t: -end[t])[:k]
        if low <= i and j < high and i <= j < i + longest
    ]
    return [(i, j) for _, i, j in sorted(spans, key=lambda span: -span[0])][:k]


@st.composite
def decoding_cases(draw: Any) -> tuple[Any, list[tuple], int, int]:
    """Windows and logits; half the time whole numbers, so that many scores are equal."""
    examples, tokenizer, length, stride = draw(cut_lists())
    windows = build_windows(examples, tokenizer, length, stride)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    make = draw(st.sampled_from([lambda n: rng.integers(-2, 3, n), rng.standard_normal]))
    logits = [tuple(make(n).astype(np.float32) for _ in range(2)) for n in windows.lengths]
    return (examples, windows), logits, draw(st.integers(1, 25)), draw(st.integers(1, 12))


def decode(windows: Windows, logits: list[tuple], chosen: Any, k: int, longest: int) -> Candidates:
    """The best spans of the chosen windows, packed into one row."""
    start, end = (np.concatenate([logits[w][side] for w in chosen]) for side in (0, 1))
    row: dict[str, Any] = tensors(windows.pack(np.array(chosen)))
    if len(chosen) % 2:  # told or found out
        row["max_length"] = int(windows.lengths[chosen].max())
    return best_spans(torch.from_numpy(start), torch.from_numpy(end), row, k, longest)

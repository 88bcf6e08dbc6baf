"""Made-up questions and logits, small tokenizers for them, and real files of questions."""

import gzip
import json
from pathlib import Path

import numpy as np
import tokenizers
import torch
from hypothesis import strategies as st
from tokenizers import models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from detalbert.squad.decoding import best_spans
from detalbert.squad.example import Example
from detalbert.squad.questions import read_examples
from detalbert.squad.sources import SHIPPED, open_source
from detalbert.squad.windows import build_windows

WORDS = ["river", "rivers", "the", "bank", "café", "(old)", "naïve,", "U.S.", "1066", "x", "東京"]
BERT_VOCABULARY = (
    "[PAD] [UNK] [CLS] [SEP] river ##s the ban ##k old u ( ) , . 10 ##66 cafe s na ##ive x 東"
)

Logits = tuple[np.ndarray, np.ndarray]  # of a window's starts and ends, float32 [tokens] each


def read_questions(file, reading=None):
    """Yield the questions of a file to answer."""
    source = open_source(str(file), "validation", cache_dir=Path(), reading=reading)
    return read_examples(source, answers_needed=False)


def read_squad(path):
    return list(read_examples(open_source(str(path), "validation", path.parent)))


def load_world(split):
    """Return the shipped questions of "train" or "validation", in SQuAD's shape."""
    with gzip.open(SHIPPED / f"world-{split}.json.gz") as file:
        return json.load(file)


def shipped(split, paragraphs, first=0):
    """Return some paragraphs of the shipped questions, as SQuAD has them; an article each."""
    articles = []
    for article in load_world(split)["data"]:
        for paragraph in article["paragraphs"]:
            articles.append({**article, "paragraphs": [paragraph]})
    return {"version": "v2.0", "data": articles[first : first + paragraphs]}


def as_rows(examples):
    """Return questions as a data set of the hub has them."""
    rows = []
    for example in examples:
        answers = example.answers or ()
        columns = {
            "text": [text for text, _ in answers],
            "answer_start": [start for _, start in answers],
        }
        rows.append({**example._asdict(), "answers": columns})
    return rows


def bert_like():
    ids = {token: number for number, token in enumerate(BERT_VOCABULARY.split())}
    backend = tokenizers.Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.BertProcessing(
        ("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"])
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )


def roberta_like():
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    # The bytes of "é" and "東" stay apart: tokens that share one character's offsets.
    trainer = trainers.BpeTrainer(
        vocab_size=275,
        special_tokens=["<s>", "<pad>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(["the river rivers bank"], trainer)
    backend.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=False
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, cls_token="<s>", sep_token="</s>", pad_token="<pad>"
    )


TOKENIZERS = {"bert": bert_like(), "roberta": roberta_like()}


@st.composite
def cut_lists(draw):
    """Draw up to 6 questions, some blank, over up to 3 contexts, answers of any characters; a
    tokenizer, and a max_seq_length and an overlap that can cover every context."""
    words = st.sampled_from(WORDS)
    text = st.lists(words, min_size=1, max_size=40).map(" ".join)
    contexts = draw(st.lists(text, min_size=1, max_size=3))

    examples = []
    for number in range(draw(st.integers(1, 6))):
        context = draw(st.sampled_from(contexts))
        question = draw(st.lists(words, max_size=3).map(" ".join))
        answers = ()
        if draw(st.booleans()):
            begin = draw(st.integers(0, len(context) - 1))
            end = draw(st.integers(begin + 1, len(context)))
            answers = ((context[begin:end], begin), ("decoy", 0))
        examples.append(Example(f"q{number}", "t", context, f" {question}", answers))

    name = draw(st.sampled_from(sorted(TOKENIZERS)))
    tokenizer = TOKENIZERS[name]
    stride = draw(st.integers(0, 8))
    # The longest question leaves room for a context token ("x") beside the overlap.
    lengths = []
    for example in examples:
        question_alone = tokenizer(example.question.lstrip(), "x")
        lengths.append(len(question_alone.input_ids))
    max_seq_length = max(lengths) + stride + draw(st.integers(0, 30))
    return examples, tokenizer, max_seq_length, stride


def tensors(row):
    return {name: torch.from_numpy(column) for name, column in row.items()}


def plain_n_best(start, end, low, high, k, longest):
    """Return (start, end) spans of one window, best first: the reference's two loops."""
    tokens = range(len(start))
    best_starts = sorted(tokens, key=lambda token: -start[token])[:k]
    best_ends = sorted(tokens, key=lambda token: -end[token])[:k]

    spans = []
    for first in best_starts:
        for last in best_ends:
            in_context = low <= first and last < high
            if in_context and first <= last < first + longest:
                spans.append((first, last))
    return sorted(spans, key=lambda span: -(start[span[0]] + end[span[1]]))[:k]


@st.composite
def decoding_cases(draw):
    """Draw windows and logits; half the time whole numbers, so that many scores are equal."""
    examples, tokenizer, length, stride = draw(cut_lists())
    windows = build_windows(examples, tokenizer, max_seq_length=length, doc_stride=stride)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))

    def whole_numbers(count):
        return rng.integers(-2, 3, count)

    distributions = [whole_numbers, rng.standard_normal]
    distribution = draw(st.sampled_from(distributions))
    logits = []
    for count in windows.lengths:
        start = distribution(count).astype(np.float32)
        end = distribution(count).astype(np.float32)
        logits.append((start, end))

    n_best_size = draw(st.integers(1, 25))
    max_answer_length = draw(st.integers(1, 12))
    return (examples, windows), logits, n_best_size, max_answer_length


def decode(windows, logits, chosen, k, longest):
    """Return the best spans of the chosen windows, packed into one row."""
    start = np.concatenate([logits[window][0] for window in chosen])
    end = np.concatenate([logits[window][1] for window in chosen])
    row = tensors(windows.pack(np.array(chosen)))
    # The longest window is given half the time; else it is computed.
    if len(chosen) % 2:
        row["max_length"] = int(windows.lengths[chosen].max())
    return best_spans(
        torch.from_numpy(start),
        torch.from_numpy(end),
        row,
        n_best_size=k,
        max_answer_length=longest,
    )

"""Windows: against the golden files and against the ordinary tokenizer call."""

from collections import Counter
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import tokenizers
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from detalbert.errors import UserError
from detalbert.squad import encoding
from detalbert.squad.decoding import best_spans
from detalbert.squad.example import Example
from detalbert.squad.windows import build_windows
from tests.conftest import max_examples
from tests.fakes.questions import TOKENIZERS, bert_like, cut_lists, read_squad, tensors


def label(example, offsets, null):
    """Return the answer's first and last token by the ordinary loop; `null` if it is outside.

    Args:
        offsets: characters of the window's context tokens, by their position.
    """
    if not example.answers or not offsets:
        return null, null
    text, first_char = example.answers[0]
    end_char = first_char + len(text)
    tokens = list(offsets)
    window_begin, _ = offsets[tokens[0]]
    _, window_end = offsets[tokens[-1]]
    if window_begin > first_char or window_end < end_char:
        return null, null
    starts = [token for token in tokens if offsets[token][0] <= first_char]
    ends = [token for token in tokens if offsets[token][1] >= end_char]
    return starts[-1], ends[0]


def ordinary_call(tokenizer, example, length, stride):
    """Return the windows of a question as transformers makes them."""
    return tokenizer(
        example.question.lstrip(),
        example.context,
        truncation="only_second",
        max_length=length,
        stride=stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        return_token_type_ids=True,
    )


def assert_pairwise(examples, tokenizer, length, stride):
    """Assert that the windows are those of the ordinary tokenizer call, labelled by the ordinary
    loop; return them, and how many context tokens of each example they hold."""
    windows = build_windows(examples, tokenizer, max_seq_length=length, doc_stride=stride)
    row = windows.pack(np.arange(len(windows)))
    assert row["cu_seqlens"].dtype == np.int32
    for name, column in row.items():
        assert column.dtype == np.int64 or name == "cu_seqlens", name

    window = 0
    tokens_held = []
    for index, example in enumerate(examples):
        call = ordinary_call(tokenizer, example, length, stride)
        context_tokens = set()
        for number in range(len(call["input_ids"])):
            assert windows.example_index[window] == index
            assert_window(windows, row, window, example, call, number)
            begin = windows.context_begin[window]
            context_tokens.update(range(begin, begin + windows.context_length[window]))
            window += 1
        tokens_held.append(len(context_tokens))

    assert window == len(windows)
    return windows, tokens_held


def assert_window(windows, row, window, example, call, number):
    """Compare a window, packed in `row`, with window `number` of the ordinary call."""
    ids = call["input_ids"][number]
    begin, end = row["cu_seqlens"][window : window + 2]
    assert windows.lengths[window] == len(ids)
    assert row["input_ids"][begin:end].tolist() == ids
    assert row["token_type_ids"][begin:end].tolist() == call["token_type_ids"][number]
    assert row["position_ids"][begin:end].tolist() == list(range(len(ids)))

    sequence_ids = call.sequence_ids(number)
    context = [token for token, sequence in enumerate(sequence_ids) if sequence == 1]
    offsets = {token: call["offset_mapping"][number][token] for token in context}
    null = row["null_positions"][window]
    start, end = label(example, offsets, null)
    assert row["start_positions"][window] == start
    assert row["end_positions"][window] == end

    assert windows.context_length[window] == len(context)
    first = windows.context_begin[window]
    stored_offsets = windows.context_offsets[first : first + len(context)]
    assert stored_offsets.tolist() == [list(pair) for pair in offsets.values()]
    if context:
        assert row["context_start"][window] == context[0]
        assert row["context_end"][window] == context[-1] + 1


@given(cut_lists(), st.integers(1, 3))
@max_examples(150)
def test_windows_are_those_of_the_pairwise_call(case, chunk):
    """With any number of texts encoded at a time, and every token in a window."""
    examples, tokenizer, length, stride = case
    with mock.patch.object(encoding, "_CHUNK", chunk):
        windows, tokens_held = assert_pairwise(examples, tokenizer, length, stride)

    assert windows.lengths.max() <= length
    contexts = [tokenizer(e.context, add_special_tokens=False).input_ids for e in examples]
    assert tokens_held == [len(ids) for ids in contexts]
    assert len(windows.context_ids) == sum(
        len(tokenizer(context, add_special_tokens=False).input_ids)
        for context in {e.context for e in examples}
    )


def test_long_questions_are_cut():
    tokenizer = TOKENIZERS["bert"]
    tokenizer.backend_tokenizer.enable_truncation(3)  # which windows ignore
    long = Example("q", "t", context="bank", question="river the old x", answers=())
    notes = Counter()
    windows = build_windows(
        [long, long._replace(question="x")],
        tokenizer,
        max_seq_length=32,
        doc_stride=4,
        max_query_length=2,
        notes=notes,
    )
    assert windows.pack([0])["input_ids"].tolist() == tokenizer("river the", "bank").input_ids
    assert notes == {"questions are cut to 2 tokens": 1}


def test_windows_may_cut_inside_a_character():
    """Each "東" is three tokens of one character's offsets; windows of 4 tokens split them."""
    tokenizer = TOKENIZERS["roberta"]
    assert len(tokenizer("東", add_special_tokens=False).input_ids) == 3
    examples = [
        Example(f"q{start}", "t", context="東" * 5, question="x", answers=(("東", start),))
        for start in range(5)
    ]
    for stride in (0, 1, 2):
        assert_pairwise(examples, tokenizer, length=9, stride=stride)


def test_a_question_that_leaves_too_little_room():
    tokenizer = TOKENIZERS["bert"]
    fits = Example("fine", "t", context="x", question="x", answers=())
    long = Example("q7", "t", context="x " * 40, question="the x", answers=())
    problem = "^question q7: max_seq_length leaves 8 tokens to a context of 40, .* doc_stride 8 "
    with pytest.raises(UserError, match=problem):
        build_windows([fits, long], tokenizer, max_seq_length=13, doc_stride=8)

    assert len(build_windows([long], tokenizer, max_seq_length=14, doc_stride=8)) > 2
    # A context that fits in one window needs no overlap.
    short = long._replace(context="x " * 8)
    assert len(build_windows([short], tokenizer, max_seq_length=13, doc_stride=8)) == 1


def with_pairs(pair):
    """Return a tokenizer that lays pairs out so."""
    backend = tokenizers.Tokenizer.from_str(TOKENIZERS["bert"].backend_tokenizer.to_str())
    backend.post_processor = processors.TemplateProcessing(
        pair=pair, special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names)


@pytest.mark.parametrize(
    "pair",
    [
        "$A [SEP] $B:1 [SEP]:1 [CLS]:2",  # XLNet
        "[CLS]:2 $A [SEP] $B:1 [SEP]:1",  # Funnel
    ],
)
def test_layouts_of_other_families(pair):
    context = "the river bank, old cafe"
    answered = Example("0", "", context, "the x", answers=(("river", 4),))
    unanswered = Example("1", "", context, "the x", answers=())

    windows, _ = assert_pairwise([answered, unanswered], with_pairs(pair), length=11, stride=2)

    # The null score is that of [CLS].
    row = windows.pack([1])
    place = row["input_ids"].tolist().index(2)
    assert row["null_positions"].tolist() == [place]
    logits = torch.zeros(len(row["input_ids"]))
    logits[place] = 7
    spans = best_spans(logits, logits, tensors(row), n_best_size=3, max_answer_length=4)
    assert spans.null_scores.tolist() == [14]


@pytest.mark.parametrize("pair", ["$A [SEP] $B", "[CLS] $B [SEP] $A"])
def test_which_tokenizers_are_refused(pair):
    with pytest.raises(UserError, match="lay a pair out"):
        build_windows([], with_pairs(pair))
    with pytest.raises(UserError, match="SimpleNamespace is not a fast one"):
        build_windows([], SimpleNamespace(is_fast=False))


def test_a_tokenizer_that_panics_is_one_line():
    """As one with a regex that takes exponential time."""
    tokenizer = bert_like()
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Split(
        tokenizers.Regex("(a+)+$"), behavior="isolated"
    )
    text = "a" * 40 + "!"
    with pytest.raises(UserError, match=r"^the tokenizer fails on a text \(.*\); give another$"):
        build_windows([Example("1", "", context=text, question="What?", answers=())], tokenizer)


def test_golden_windows(golden_dir, albert, dev):
    train = read_squad(golden_dir / "train.json")
    splits = {"train": (train, build_windows(train, albert)), "dev": dev}
    for split, (examples, windows) in splits.items():
        golden = np.load(golden_dir / f"windows_{split}.npz")
        row = windows.pack(np.arange(len(windows)))

        assert [example.id for example in examples] == golden["example_ids"].tolist()
        assert np.array_equal(windows.lengths, golden["lengths"])
        assert np.array_equal(windows.example_index, golden["example_index"])
        for name in ("input_ids", "token_type_ids", "start_positions", "end_positions"):
            assert np.array_equal(row[name], golden[name]), name
        assert np.array_equal(row_offsets(windows, row), golden["offsets"])


def row_offsets(windows, row):
    """Return the characters of every token of a row of all windows; -1 outside of contexts."""
    offsets = np.full((len(row["input_ids"]), 2), -1)
    for window, begin in enumerate(row["cu_seqlens"][:-1]):
        low = begin + row["context_start"][window]
        high = begin + row["context_end"][window]
        first = windows.context_begin[window]
        offsets[low:high] = windows.context_offsets[first : first + high - low]
    return offsets

"""Windows: against the golden files and against the ordinary tokenizer call."""

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import sentencepiece
import tokenizers
import torch
from hypothesis import given
from tokenizers import processors
from transformers import BatchEncoding, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from detalbert.errors import UserError
from detalbert.squad import encoding
from detalbert.squad.decoding import best_spans
from detalbert.squad.tokenizer import named_tokenizer
from detalbert.squad.windows import Example, Windows, build_windows
from tests.conftest import max_examples
from tests.fakes.questions import TOKENIZERS, WORDS, bert_like, cut_lists, read_squad, tensors


def label(example: Example, offsets: dict[int, tuple[int, int]], null: int) -> tuple[int, int]:
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


def ordinary_call(
    tokenizer: PreTrainedTokenizerBase, example: Example, length: int, stride: int
) -> BatchEncoding:
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


def assert_pairwise(
    examples: list[Example], tokenizer: PreTrainedTokenizerBase, length: int, stride: int
) -> tuple[Windows, list[int]]:
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
        context_tokens: set[int] = set()
        for number in range(len(call["input_ids"])):
            assert windows.example_index[window] == index
            assert_window(windows, row, window, example, call, number)
            begin = windows.context_begin[window]
            context_tokens.update(range(begin, begin + windows.context_length[window]))
            window += 1
        tokens_held.append(len(context_tokens))

    assert window == len(windows)
    return windows, tokens_held


def assert_window(
    windows: Windows,
    row: dict[str, np.ndarray],
    window: int,
    example: Example,
    call: BatchEncoding,
    number: int,
) -> None:
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


@given(cut_lists())
@max_examples(150)
def test_windows_are_those_of_the_pairwise_call(
    case: tuple[list[Example], PreTrainedTokenizerBase, int, int],
) -> None:
    examples, tokenizer, length, stride = case
    windows, tokens_held = assert_pairwise(examples, tokenizer, length, stride)

    assert windows.lengths.max() <= length
    contexts = [tokenizer(e.context, add_special_tokens=False).input_ids for e in examples]
    assert tokens_held == [len(ids) for ids in contexts]  # every token is in a window


def test_long_questions_are_cut_and_texts_are_stored_once() -> None:
    tokenizer = TOKENIZERS["bert"]
    example = Example("q", "t", context="bank", question="river the old x", answers=())
    windows = build_windows(
        [example], tokenizer, max_seq_length=32, doc_stride=4, max_query_length=2
    )
    cut_question = tokenizer("river the", "bank").input_ids
    assert windows.pack([0])["input_ids"].tolist() == cut_question

    examples = [
        Example(f"q{number}", "t", context="the river bank", question="x the", answers=())
        for number in range(4)
    ]
    windows = build_windows(examples, tokenizer, max_seq_length=32, doc_stride=4)
    assert len(windows.context_ids) == 4  # the river ban ##k, once
    assert windows.question_ptr.tolist() == [4, 6, 8, 10, 12]
    assert windows.part_types.tolist() == [0, 0, 0, 1, 1]


def test_windows_may_cut_inside_a_character() -> None:
    """Each "東" is three tokens of one character's offsets; windows of 4 tokens split them."""
    tokenizer = TOKENIZERS["roberta"]
    assert len(tokenizer("東", add_special_tokens=False).input_ids) == 3
    examples = [
        Example(f"q{start}", "t", context="東" * 5, question="x", answers=(("東", start),))
        for start in range(5)
    ]
    for stride in (0, 1, 2):
        assert_pairwise(examples, tokenizer, length=9, stride=stride)


def test_windows_ignore_a_tokenizers_settings_and_the_size_of_chunks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizer = bert_like()
    tokenizer.backend_tokenizer.enable_truncation(3)
    tokenizer.backend_tokenizer.enable_padding(length=50)
    example = Example("q", "t", context=" ".join(WORDS), question="the x", answers=())
    assert_pairwise([example], tokenizer, length=16, stride=4)

    examples = []
    for number in range(9):
        context = " ".join(WORDS[number:])
        examples.append(Example(f"q{number}", "t", context, question=WORDS[number], answers=()))
    roberta = TOKENIZERS["roberta"]
    at_once = build_windows(examples, roberta, max_seq_length=32, doc_stride=4).columns()
    monkeypatch.setattr(encoding, "_CHUNK", 2)
    chunked = build_windows(examples, roberta, max_seq_length=32, doc_stride=4).columns()
    for name, column in chunked.items():
        assert np.array_equal(column, at_once[name]), name
        assert column.dtype == at_once[name].dtype, name


def test_a_question_that_leaves_too_little_room() -> None:
    tokenizer = TOKENIZERS["bert"]
    fits = Example("fine", "t", context="x", question="x", answers=())
    long = Example("q7", "t", context="x " * 40, question="the x", answers=())
    with pytest.raises(UserError, match="q7.*max_seq_length.*doc_stride 8") as error:
        build_windows([fits, long], tokenizer, max_seq_length=13, doc_stride=8)
    assert "\n" not in str(error.value)

    windows = build_windows([fits, long], tokenizer, max_seq_length=14, doc_stride=8)
    assert len(windows) > 2

    # A context that fits in one window needs no overlap.
    short = Example("q8", "t", context="x " * 8, question="the x", answers=())
    windows = build_windows([short], tokenizer, max_seq_length=13, doc_stride=8)
    assert len(windows) == 1


def xlnet_like(**names: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer whose pairs end with [CLS], of a type of its own."""
    backend = tokenizers.Tokenizer.from_str(TOKENIZERS["bert"].backend_tokenizer.to_str())
    backend.post_processor = processors.TemplateProcessing(
        pair="$A [SEP] $B:1 [SEP]:1 [CLS]:2", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names)


def test_cls_may_come_last() -> None:
    """As of XLNet, with a type of its own."""
    tokenizer = xlnet_like(unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]")
    context = "the river bank, old cafe"
    answered = Example("0", "", context, "the x", answers=(("river", 4),))
    unanswered = Example("1", "", context, "the x", answers=())

    windows, _ = assert_pairwise([answered, unanswered], tokenizer, length=9, stride=2)

    row = windows.pack([1])
    ids = row["input_ids"].tolist()
    assert row["null_positions"].tolist() == [ids.index(2)] == [len(ids) - 1]
    # The null score is that of [CLS].
    logits = torch.zeros(len(ids))
    logits[-1] = 7
    spans = best_spans(logits, logits, tensors(row), n_best_size=3, max_answer_length=4)
    assert spans.null_scores.tolist() == [14]


def test_a_tokenizer_of_a_sentencepiece_model_alone(tmp_path: Path) -> None:
    """As DeBERTa-v3's on the hub, which has no tokenizer.json."""
    text = tmp_path / "text.txt"
    lines = [" ".join(words) for words in itertools.product(WORDS, repeat=3)]
    text.write_text("\n".join(lines))
    sentencepiece.SentencePieceTrainer.train(
        input=str(text),
        model_prefix=str(tmp_path / "spm"),
        vocab_size=60,
        hard_vocab_limit=False,
        pad_id=0,
        pad_piece="[PAD]",
        bos_id=1,
        bos_piece="[CLS]",
        eos_id=2,
        eos_piece="[SEP]",
        unk_id=3,
        unk_piece="[UNK]",
        minloglevel=2,
    )
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "DebertaV2Tokenizer"}')
    (tmp_path / "config.json").write_text('{"model_type": "deberta-v2"}')

    tokenizer = named_tokenizer(str(tmp_path))

    assert len(tokenizer) > 40
    assert tokenizer.convert_tokens_to_ids("[SEP]") == 2
    example = Example("q", "t", context=" ".join(WORDS * 3), question="the x", answers=())
    assert_pairwise([example], tokenizer, length=24, stride=4)


def test_which_tokenizers_are_refused() -> None:
    slow: Any = SimpleNamespace(is_fast=False)
    with pytest.raises(UserError, match="SimpleNamespace.*fast"):
        build_windows([], slow)

    without_cls = xlnet_like(unk_token="[UNK]")
    with pytest.raises(UserError, match="lay a pair out"):
        build_windows([], without_cls)


def test_golden_windows(
    shared: Path, albert: PreTrainedTokenizerBase, dev: tuple[list[Example], Windows]
) -> None:
    train = read_squad(shared / "squad" / "train.json")
    splits = {"train": (train, build_windows(train, albert)), "dev": dev}
    for split, (examples, windows) in splits.items():
        golden = np.load(shared / "golden" / f"windows_{split}.npz")
        row = windows.pack(np.arange(len(windows)))

        assert [example.id for example in examples] == golden["example_ids"].tolist()
        assert np.array_equal(windows.lengths, golden["lengths"])
        assert np.array_equal(windows.example_index, golden["example_index"])
        for name in ("input_ids", "token_type_ids", "start_positions", "end_positions"):
            assert np.array_equal(row[name], golden[name]), name
        assert np.array_equal(row_offsets(windows, row), golden["offsets"])


def row_offsets(windows: Windows, row: dict[str, np.ndarray]) -> np.ndarray:
    """Return the characters of every token of a row of all windows; -1 outside of contexts."""
    offsets = np.full((len(row["input_ids"]), 2), -1)
    for window, begin in enumerate(row["cu_seqlens"][:-1]):
        low = begin + row["context_start"][window]
        high = begin + row["context_end"][window]
        first = windows.context_begin[window]
        offsets[low:high] = windows.context_offsets[first : first + high - low]
    return offsets

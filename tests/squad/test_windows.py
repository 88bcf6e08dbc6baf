"""Windows: against the golden files and against the ordinary tokenizer call."""

import pickle
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import processors
from transformers import PreTrainedTokenizerFast

from detalbert.errors import UserError
from detalbert.squad import encoding
from detalbert.squad.windows import Example, Windows, build_windows
from tests.conftest import max_examples
from tests.fakes.questions import TOKENIZERS, WORDS, bert_like, cut_lists, read_squad


def pairwise_windows(
    examples: list[Example], tokenizer: Any, length: int, stride: int
) -> list[dict[str, Any]]:
    """The windows of the ordinary tokenizer call, labelled by the ordinary loop."""
    rows = []
    for index, example in enumerate(examples):
        call = tokenizer(
            example.question.lstrip(),
            example.context,
            truncation="only_second",
            max_length=length,
            stride=stride,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            return_token_type_ids=True,
        )
        for i, ids in enumerate(call["input_ids"]):
            context = [t for t, s in enumerate(call.sequence_ids(i)) if s == 1]
            offsets = {t: call["offset_mapping"][i][t] for t in context}
            start, end = label(example, offsets)
            rows.append(
                {
                    "input_ids": ids,
                    "token_type_ids": call["token_type_ids"][i],
                    "offsets": list(offsets.values()),
                    "context": (context[0], context[-1] + 1) if context else None,
                    "labels": (start, end),
                    "example": index,
                }
            )
    return rows


def label(example: Example, offsets: dict[int, tuple[int, int]]) -> tuple[int, int]:
    if not example.answers or not offsets:
        return 0, 0
    text, first = example.answers[0]
    tokens, last = list(offsets), first + len(text)
    if offsets[tokens[0]][0] > first or offsets[tokens[-1]][1] < last:
        return 0, 0
    start = [t for t in tokens if offsets[t][0] <= first][-1]
    end = [t for t in tokens if offsets[t][1] >= last][0]
    return start, end


def assert_windows_equal(windows: Windows, expected: list[dict[str, Any]]) -> None:
    assert len(windows) == len(expected)
    row = windows.pack(np.arange(len(windows)))
    for i, want in enumerate(expected):
        part = slice(row["cu_seqlens"][i], row["cu_seqlens"][i + 1])
        assert row["input_ids"][part].tolist() == want["input_ids"]
        assert row["token_type_ids"][part].tolist() == want["token_type_ids"]
        assert row["position_ids"][part].tolist() == list(range(len(want["input_ids"])))
        assert windows.lengths[i] == len(want["input_ids"])
        assert (row["start_positions"][i], row["end_positions"][i]) == want["labels"]
        assert windows.example_index[i] == want["example"]
        first, count = windows.context_begin[i], windows.context_length[i]
        offsets = windows.context_offsets[first : first + count]
        assert offsets.tolist() == [list(pair) for pair in want["offsets"]]
        if want["context"]:
            assert (row["context_start"][i], row["context_end"][i]) == want["context"]


@given(cut_lists())
@max_examples(150)
def test_windows_are_those_of_the_pairwise_call(case: Any) -> None:
    examples, tokenizer, length, stride = case
    windows = build_windows(examples, tokenizer, length, stride)
    assert_windows_equal(windows, pairwise_windows(examples, tokenizer, length, stride))
    assert windows.lengths.max() <= length


@given(cut_lists())
@max_examples(60)
def test_every_context_token_is_in_a_window(case: Any) -> None:
    examples, tokenizer, length, stride = case
    windows = build_windows(examples, tokenizer, length, stride)
    for e, example in enumerate(examples):
        mine = np.flatnonzero(windows.example_index == e)
        pairs = zip(windows.context_begin[mine], windows.context_length[mine], strict=True)
        seen = {t for begin, count in pairs for t in range(begin, begin + count)}
        assert len(seen) == len(tokenizer(example.context, add_special_tokens=False).input_ids)


@given(cut_lists(), st.integers(0, 2**32 - 1))
@max_examples(60)
def test_pack_takes_windows_in_any_order(case: Any, seed: int) -> None:
    windows = build_windows(*case)
    chosen = np.random.default_rng(seed).integers(0, len(windows), size=5)
    row = windows.pack(chosen)
    alone = [windows.pack(chosen[i : i + 1]) for i in range(len(chosen))]
    for name in row.keys() - {"cu_seqlens"}:
        assert np.array_equal(row[name], np.concatenate([one[name] for one in alone])), name
        assert row[name].dtype == np.int64
    assert row["cu_seqlens"].tolist() == [0, *np.cumsum(windows.lengths[chosen])]
    assert row["cu_seqlens"].dtype == np.int32


@pytest.mark.parametrize("kind", sorted(TOKENIZERS))
def test_an_answer_of_whole_words_comes_back_as_text(kind: str) -> None:
    context = "the river bank (old) café the bank 1066"
    answers = ["river bank", "(old) café", "1066", context]
    examples = [
        Example(f"q{i}", "t", context, "x", ((text, context.index(text)),))
        for i, text in enumerate(answers)
    ]
    windows = build_windows(examples, TOKENIZERS[kind], 128, 4)
    assert len(windows) == len(examples)
    shift = windows.context_begin - windows.context_starts(np.arange(len(windows)))
    begin = windows.context_offsets[windows.start_positions + shift, 0]
    end = windows.context_offsets[windows.end_positions + shift, 1]
    assert [context[b:e] for b, e in zip(begin, end, strict=True)] == answers


def test_long_questions_are_cut() -> None:
    tokenizer = TOKENIZERS["bert"]
    ids = tokenizer("river the", "bank").input_ids
    windows = build_windows([Example("q", "t", "bank", "river the old x", ())], tokenizer, 32, 4, 2)
    assert windows.pack([0])["input_ids"].tolist() == ids


def test_contexts_and_questions_are_stored_once() -> None:
    examples = [Example(f"q{i}", "t", "the river bank", "x the", ()) for i in range(4)]
    windows = build_windows(examples, TOKENIZERS["bert"], 32, 4)
    assert len(windows.context_ids) == 4 and len(windows.question_ids) == 8
    assert windows.segments.tolist() == [0, 0, 0, 1, 1]


@pytest.mark.parametrize("stride", [0, 1, 2])
def test_windows_cut_inside_a_character(stride: int) -> None:
    """Each "東" is three tokens of one character's offsets; windows of 4 tokens split them."""
    tokenizer = TOKENIZERS["roberta"]
    examples = [Example(f"q{i}", "t", "東" * 5, "x", (("東", i),)) for i in range(5)]
    assert len(tokenizer("東", add_special_tokens=False).input_ids) == 3
    windows = build_windows(examples, tokenizer, 9, stride)
    assert_windows_equal(windows, pairwise_windows(examples, tokenizer, 9, stride))


def test_truncation_and_padding_of_the_tokenizer_file_are_ignored() -> None:
    examples = [Example("q", "t", " ".join(WORDS), "the x", ())]
    tokenizer = bert_like()
    tokenizer.backend_tokenizer.enable_truncation(3)
    tokenizer.backend_tokenizer.enable_padding(length=50)
    windows = build_windows(examples, tokenizer, 16, 4)
    assert_windows_equal(windows, pairwise_windows(examples, tokenizer, 16, 4))


def test_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    examples = [Example(f"q{i}", "t", " ".join(WORDS[i:]), WORDS[i], ()) for i in range(9)]
    whole = build_windows(examples, TOKENIZERS["roberta"], 32, 4).columns()
    monkeypatch.setattr(encoding, "_CHUNK", 2)
    for name, column in build_windows(examples, TOKENIZERS["roberta"], 32, 4).columns().items():
        assert np.array_equal(column, whole[name]) and column.dtype == whole[name].dtype, name


def test_columns_can_be_saved_mapped_and_pickled(tmp_path: Any) -> None:
    examples = [Example("q", "t", " ".join(WORDS * 3), "the x", (("bank", 17),))]
    windows = build_windows(examples, TOKENIZERS["bert"], 24, 4)
    for name, column in windows.columns().items():
        np.save(tmp_path / f"{name}.npy", column)
    mapped = Windows(
        **{name: np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in windows.columns()}
    )
    chosen = np.arange(len(windows))
    for copy in (mapped, pickle.loads(pickle.dumps(windows))):
        assert np.array_equal(copy.lengths, windows.lengths)
        for name, column in copy.pack(chosen).items():
            assert np.array_equal(column, windows.pack(chosen)[name]), name


def test_a_question_that_leaves_too_little_room() -> None:
    examples = [Example("fine", "t", "x", "x", ()), Example("q7", "t", "x " * 40, "the x", ())]
    with pytest.raises(UserError, match="q7.*max_seq_length 13.*doc_stride 8") as error:
        build_windows(examples, TOKENIZERS["bert"], 13, 8)
    assert "\n" not in str(error.value)
    assert len(build_windows(examples, TOKENIZERS["bert"], 14, 8)) > 2
    short = [Example("q8", "t", "x " * 8, "the x", ())]  # fits in one window: no overlap needed
    assert len(build_windows(short, TOKENIZERS["bert"], 13, 8)) == 1


def test_slow_tokenizers_are_refused() -> None:
    class SlowTokenizer:
        is_fast = False

    with pytest.raises(UserError, match="SlowTokenizer.*fast"):
        build_windows([], SlowTokenizer())


def test_pairs_that_do_not_start_with_cls_are_refused() -> None:
    backend = tokenizers.Tokenizer.from_str(TOKENIZERS["bert"].backend_tokenizer.to_str())
    backend.post_processor = processors.TemplateProcessing(
        pair="$A [SEP] $B:1 [SEP]:1 [CLS]:2", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    with pytest.raises(UserError, match="lay a pair out"):
        build_windows([], PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]"))


def assert_golden(examples: list[Example], windows: Windows, path: Any) -> None:
    row = windows.pack(np.arange(len(windows)))
    golden = np.load(path)
    assert [e.id for e in examples] == golden["example_ids"].tolist()
    assert np.array_equal(windows.lengths, golden["lengths"])
    assert np.array_equal(windows.example_index, golden["example_index"])
    for name in ("input_ids", "token_type_ids", "start_positions", "end_positions"):
        assert np.array_equal(row[name], golden[name]), name
    offsets = np.full((len(row["input_ids"]), 2), -1)
    for w, at in enumerate(row["cu_seqlens"][:-1]):
        low, high = at + row["context_start"][w], at + row["context_end"][w]
        begin = windows.context_begin[w]
        offsets[low:high] = windows.context_offsets[begin : begin + windows.context_length[w]]
    assert np.array_equal(offsets, golden["offsets"])


def test_golden_windows_of_train(shared: Any, albert: Any) -> None:
    examples = read_squad(shared / "squad" / "train.json")
    windows = build_windows(examples, albert)
    assert_golden(examples, windows, shared / "golden" / "windows_train.npz")


def test_golden_windows_of_dev(shared: Any, dev: Any) -> None:
    assert_golden(*dev, shared / "golden" / "windows_dev.npz")

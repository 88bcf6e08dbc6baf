"""Windows: against the golden files and against the ordinary tokenizer call."""

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
from transformers import PreTrainedTokenizerFast

from detalbert.errors import UserError
from detalbert.squad import encoding
from detalbert.squad.decoding import best_spans
from detalbert.squad.tokenizer import named_tokenizer
from detalbert.squad.windows import Example, build_windows
from tests.conftest import max_examples
from tests.fakes.questions import TOKENIZERS, WORDS, bert_like, cut_lists, read_squad, tensors


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


NAMES = ("overflowing_tokens", "offsets_mapping", "token_type_ids")
RETURNED = {f"return_{name}": True for name in NAMES}


def assert_pairwise(examples: Any, tokenizer: Any, length: int, stride: int) -> tuple[Any, Any]:
    """Assert that the windows are those of the ordinary tokenizer call, labelled by the ordinary
    loop; the windows, and how many context tokens of each example they hold."""
    windows = build_windows(examples, tokenizer, length, stride)
    row, held = windows.pack(np.arange(len(windows))), []
    numbers = iter(range(len(windows)))
    bounds = row.pop("cu_seqlens")
    assert bounds.dtype == np.int32
    assert {column.dtype for column in row.values()} == {np.dtype(np.int64)}
    for index, example in enumerate(examples):
        how = {"truncation": "only_second", "max_length": length, "stride": stride, **RETURNED}
        call = tokenizer(example.question.lstrip(), example.context, **how)
        seen: set[int] = set()
        for i, ids in enumerate(call["input_ids"]):
            w = next(numbers)
            part = slice(*bounds[w : w + 2])
            assert row["input_ids"][part].tolist() == ids
            assert row["token_type_ids"][part].tolist() == call["token_type_ids"][i]
            assert row["position_ids"][part].tolist() == list(range(len(ids)))
            assert (windows.lengths[w], windows.example_index[w]) == (len(ids), index)
            context = [t for t, s in enumerate(call.sequence_ids(i)) if s == 1]
            offsets = {t: call["offset_mapping"][i][t] for t in context}
            assert (row["start_positions"][w], row["end_positions"][w]) == label(example, offsets)
            tokens = range(windows.context_begin[w], windows.context_begin[w] + len(context))
            assert windows.context_length[w] == len(context)
            found = windows.context_offsets[list(tokens)].tolist()
            assert found == [list(pair) for pair in offsets.values()]
            if context:
                place = (context[0], context[-1] + 1)
                assert (row["context_start"][w], row["context_end"][w]) == place
            seen.update(tokens)
        held.append(len(seen))
    assert not list(numbers)
    return windows, held


@given(cut_lists())
@max_examples(150)
def test_windows_are_those_of_the_pairwise_call(case: Any) -> None:
    examples, tokenizer, length, stride = case
    windows, held = assert_pairwise(examples, tokenizer, length, stride)
    assert windows.lengths.max() <= length
    contexts = [tokenizer(e.context, add_special_tokens=False).input_ids for e in examples]
    assert held == list(map(len, contexts))  # every token is in a window


def test_long_questions_are_cut_and_texts_are_stored_once() -> None:
    tokenizer = TOKENIZERS["bert"]
    ids = tokenizer("river the", "bank").input_ids
    windows = build_windows([Example("q", "t", "bank", "river the old x", ())], tokenizer, 32, 4, 2)
    assert windows.pack([0])["input_ids"].tolist() == ids
    examples = [Example(f"q{i}", "t", "the river bank", "x the", ()) for i in range(4)]
    windows = build_windows(examples, TOKENIZERS["bert"], 32, 4)
    assert len(windows.context_ids) == 4 and len(windows.question_ids) == 8
    assert windows.segments.tolist() == [0, 0, 0, 1, 1]


def test_windows_cut_inside_a_character_and_ignore_settings_and_chunks(monkeypatch: Any) -> None:
    """Each "東" is three tokens of one character's offsets; windows of 4 tokens split them."""
    examples = [Example(f"q{i}", "t", "東" * 5, "x", (("東", i),)) for i in range(5)]
    assert len(TOKENIZERS["roberta"]("東", add_special_tokens=False).input_ids) == 3
    for stride in (0, 1, 2):
        assert_pairwise(examples, TOKENIZERS["roberta"], 9, stride)
    tokenizer = bert_like()
    tokenizer.backend_tokenizer.enable_truncation(3)
    tokenizer.backend_tokenizer.enable_padding(length=50)
    assert_pairwise([Example("q", "t", " ".join(WORDS), "the x", ())], tokenizer, 16, 4)
    examples = [Example(f"q{i}", "t", " ".join(WORDS[i:]), WORDS[i], ()) for i in range(9)]
    whole = build_windows(examples, TOKENIZERS["roberta"], 32, 4).columns()
    monkeypatch.setattr(encoding, "_CHUNK", 2)
    for name, column in build_windows(examples, TOKENIZERS["roberta"], 32, 4).columns().items():
        assert np.array_equal(column, whole[name]) and column.dtype == whole[name].dtype, name


def test_a_question_that_leaves_too_little_room() -> None:
    examples = [Example("fine", "t", "x", "x", ()), Example("q7", "t", "x " * 40, "the x", ())]
    with pytest.raises(UserError, match="q7.*max_seq_length 13.*doc_stride 8") as error:
        build_windows(examples, TOKENIZERS["bert"], 13, 8)
    assert "\n" not in str(error.value)
    assert len(build_windows(examples, TOKENIZERS["bert"], 14, 8)) > 2
    short = [Example("q8", "t", "x " * 8, "the x", ())]  # fits in one window: no overlap needed
    assert len(build_windows(short, TOKENIZERS["bert"], 13, 8)) == 1


def xlnet_like(**names: str) -> PreTrainedTokenizerFast:
    backend = tokenizers.Tokenizer.from_str(TOKENIZERS["bert"].backend_tokenizer.to_str())
    backend.post_processor = processors.TemplateProcessing(
        pair="$A [SEP] $B:1 [SEP]:1 [CLS]:2", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names)


def test_cls_may_come_last() -> None:
    """As of XLNet, with a type of its own."""
    tokenizer = xlnet_like(unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]")
    context = "the river bank, old cafe"
    answers = (("river", 4),), ()
    examples = [Example(str(n), "", context, "the x", each) for n, each in enumerate(answers)]
    windows = build_windows(examples, tokenizer, 9, 2)
    rows = [windows.pack([n]) for n in range(len(windows))]
    how = {"max_length": 9, "truncation": "only_second", "stride": 2}
    wanted = tokenizer("the x", context, return_overflowing_tokens=True, **how)
    half = len(wanted["input_ids"])
    assert len(rows) == 2 * half > 2
    for row, n in zip(rows, 2 * [*range(half)], strict=True):
        ids = wanted["input_ids"][n]
        assert row["input_ids"].tolist() == ids
        types = [0] * 3 + [1] * (len(ids) - 4) + [2]
        assert row["token_type_ids"].tolist() == types
        assert row["null_positions"].tolist() == [ids.index(2)] == [len(ids) - 1]
    labels = [int(row["start_positions"][0]) for row in rows]
    assert rows[0]["input_ids"][labels[0]] == tokenizer.convert_tokens_to_ids("river")
    assert labels[half:] == [len(row["input_ids"]) - 1 for row in rows[half:]]
    logits = torch.zeros(len(rows[1]["input_ids"]))
    logits[-1] = 7
    assert best_spans(logits, logits, tensors(rows[1]), 3, 4).null_scores.tolist() == [14]


def test_a_tokenizer_of_a_sentencepiece_model_alone(tmp_path: Path) -> None:
    """As DeBERTa-v3's on the hub, which has no tokenizer.json."""
    text, special = tmp_path / "text.txt", {"pad": "[PAD]", "bos": "[CLS]", "eos": "[SEP]"}
    text.write_text("\n".join(f"{a} {b} {c}" for a in WORDS for b in WORDS for c in WORDS))
    keys: dict[str, Any] = {f"{name}_piece": piece for name, piece in special.items()}
    keys |= {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3, "unk_piece": "[UNK]"}
    keys |= {"input": str(text), "model_prefix": str(tmp_path / "spm"), "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(vocab_size=60, hard_vocab_limit=False, **keys)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "DebertaV2Tokenizer"}')
    (tmp_path / "config.json").write_text('{"model_type": "deberta-v2"}')
    tokenizer = named_tokenizer(str(tmp_path))
    assert len(tokenizer) > 40 and tokenizer.convert_tokens_to_ids("[SEP]") == 2
    assert_pairwise([Example("q", "t", " ".join(WORDS * 3), "the x", ())], tokenizer, 24, 4)


def test_which_tokenizers_are_refused() -> None:
    with pytest.raises(UserError, match="SimpleNamespace.*fast"):
        build_windows([], SimpleNamespace(is_fast=False))
    with pytest.raises(UserError, match="lay a pair out"):  # it does not start with [CLS]
        build_windows([], xlnet_like(unk_token="[UNK]"))


def test_golden_windows(shared: Any, albert: Any, dev: Any) -> None:
    train = read_squad(shared / "squad" / "train.json")
    for split, examples, windows in (("train", train, build_windows(train, albert)), ("dev", *dev)):
        row = windows.pack(np.arange(len(windows)))
        golden = np.load(shared / "golden" / f"windows_{split}.npz")
        assert [e.id for e in examples] == golden["example_ids"].tolist()
        assert np.array_equal(windows.lengths, golden["lengths"])
        assert np.array_equal(windows.example_index, golden["example_index"])
        for name in ("input_ids", "token_type_ids", "start_positions", "end_positions"):
            assert np.array_equal(row[name], golden[name]), name
        offsets = np.full((len(row["input_ids"]), 2), -1)
        for w, at in enumerate(row["cu_seqlens"][:-1]):
            low, high = at + row["context_start"][w], at + row["context_end"][w]
            begin = windows.context_begin[w]
            offsets[low:high] = windows.context_offsets[begin : begin + high - low]
        assert np.array_equal(offsets, golden["offsets"])

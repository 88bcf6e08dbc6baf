"""Windows, span decoding and merging: against the golden files and against plain loops."""

import hashlib
import json
import pickle
from typing import Any, Dict, List, Tuple

import numpy as np
import pytest
import tokenizers
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

import decoding
import encoding
from decoding import Candidates, best_spans, merge_answers, n_best_list
from hparams import UserError
from squad_utils import Example, Windows, build_windows

WORDS = ["river", "rivers", "the", "bank", "café", "(old)", "naïve,", "U.S.", "1066", "x", "東京"]


def read_squad(path: Any) -> List[Example]:
    return [
        Example(
            qa["id"],
            article["title"],
            paragraph["context"],
            qa["question"],
            tuple((a["text"], a["answer_start"]) for a in qa["answers"]),
        )
        for article in json.loads(path.read_text())["data"]
        for paragraph in article["paragraphs"]
        for qa in paragraph["qas"]
    ]


def bert_like() -> PreTrainedTokenizerFast:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "river", "##s", "the", "ban", "##k", "old", "u"]
    pieces += ["(", ")", ",", ".", "10", "##66", "cafe", "s", "na", "##ive", "x", "東"]
    backend = tokenizers.Tokenizer(
        models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]")
    )
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )


def roberta_like() -> PreTrainedTokenizerFast:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=275,
        special_tokens=["<s>", "<pad>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # The bytes of "é" and "東" stay apart: tokens that share one character's offsets.
    backend.train_from_iterator(["the river rivers bank"], trainer)
    backend.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=False
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, cls_token="<s>", sep_token="</s>", pad_token="<pad>"
    )


TOKENIZERS = {"bert": bert_like(), "roberta": roberta_like()}


# ---- plain loops, to be equal to -----------------------------------------------------------


def pairwise_windows(
    examples: List[Example], tokenizer: Any, length: int, stride: int
) -> List[Dict[str, Any]]:
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


def label(example: Example, offsets: Dict[int, Tuple[int, int]]) -> Tuple[int, int]:
    if not example.answers or not offsets:
        return 0, 0
    text, first = example.answers[0]
    tokens, last = list(offsets), first + len(text)
    if offsets[tokens[0]][0] > first or offsets[tokens[-1]][1] < last:
        return 0, 0
    start = [t for t in tokens if offsets[t][0] <= first][-1]
    end = [t for t in tokens if offsets[t][1] >= last][0]
    return start, end


def assert_windows_equal(windows: Windows, expected: List[Dict[str, Any]]) -> None:
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


def plain_n_best(start: Any, end: Any, low: int, high: int, k: int, longest: int) -> List[Tuple]:
    """(start, end) spans of one window, best first: the reference's two loops."""
    tokens = range(len(start))
    spans = [
        (start[i] + end[j], i, j)
        for i in sorted(tokens, key=lambda t: -start[t])[:k]
        for j in sorted(tokens, key=lambda t: -end[t])[:k]
        if low <= i and j < high and i <= j < i + longest
    ]
    return [(i, j) for _, i, j in sorted(spans, key=lambda span: -span[0])][:k]


def plain_answers(
    examples: List[Example], windows: Windows, logits: List[Tuple], k: int, longest: int
) -> Dict[str, Tuple[str, float]]:
    """Text and null odds per question, window by window in Python."""
    pools: Dict[int, List[Tuple]] = {}
    nulls: Dict[int, float] = {}
    starts = windows.context_starts(np.arange(len(windows)))
    for w, (start, end) in enumerate(logits):
        e, low = int(windows.example_index[w]), int(starts[w])
        high = low + int(windows.context_length[w])
        nulls[e] = min(nulls.get(e, float("inf")), start[0] + end[0])
        offsets = windows.context_offsets[windows.context_begin[w] :]
        for i, j in plain_n_best(start, end, low, high, k, longest):
            text = examples[e].context[offsets[i - low, 0] : offsets[j - low, 1]]
            pools.setdefault(e, []).append((start[i] + end[j], text))
    result = {}
    for e, null in nulls.items():
        spans = sorted((s for s in pools.get(e, []) if s[1]), key=lambda span: -span[0])
        score, text = spans[0] if spans else (0.0, "empty")
        result[examples[e].id] = ("" if null - score > 0 else text, null - score)
    return result


def tensors(row: Dict[str, np.ndarray]) -> Dict[str, torch.Tensor]:
    return {name: torch.from_numpy(column) for name, column in row.items()}


# ---- made-up questions ---------------------------------------------------------------------


@st.composite
def example_lists(draw: Any) -> List[Example]:
    """Up to 6 questions, some blank, over up to 3 contexts; answers are any characters."""
    text = st.lists(st.sampled_from(WORDS), min_size=1, max_size=40).map(" ".join)
    contexts = draw(st.lists(text, min_size=1, max_size=3))
    examples = []
    for i in range(draw(st.integers(1, 6))):
        context = draw(st.sampled_from(contexts))
        question = draw(st.lists(st.sampled_from(WORDS), max_size=3).map(" ".join))
        answers: Tuple = ()
        if draw(st.booleans()):
            begin = draw(st.integers(0, len(context) - 1))
            end = draw(st.integers(begin + 1, len(context)))
            answers = ((context[begin:end], begin), ("decoy", 0))
        examples.append(Example(f"q{i}", "t", context, f" {question}", answers))
    return examples


@st.composite
def cut_lists(draw: Any) -> Tuple[List[Example], Any, int, int]:
    """Questions, a tokenizer, and a max_seq_length and overlap that can cover every context."""
    examples = draw(example_lists())
    tokenizer = TOKENIZERS[draw(st.sampled_from(sorted(TOKENIZERS)))]
    ids = [tokenizer(e.question.lstrip(), "x").input_ids for e in examples]  # "x" is one token
    stride = draw(st.integers(0, 8))
    return examples, tokenizer, max(map(len, ids)) + stride + draw(st.integers(0, 30)), stride


@given(cut_lists())
@settings(deadline=None, max_examples=150, derandomize=True)
def test_windows_are_those_of_the_pairwise_call(case: Any) -> None:
    examples, tokenizer, length, stride = case
    windows = build_windows(examples, tokenizer, length, stride)
    assert_windows_equal(windows, pairwise_windows(examples, tokenizer, length, stride))
    assert windows.lengths.max() <= length


@given(cut_lists())
@settings(deadline=None, max_examples=60, derandomize=True)
def test_every_context_token_is_in_a_window(case: Any) -> None:
    examples, tokenizer, length, stride = case
    windows = build_windows(examples, tokenizer, length, stride)
    for e, example in enumerate(examples):
        mine = np.flatnonzero(windows.example_index == e)
        pairs = zip(windows.context_begin[mine], windows.context_length[mine], strict=True)
        seen = {t for begin, count in pairs for t in range(begin, begin + count)}
        assert len(seen) == len(tokenizer(example.context, add_special_tokens=False).input_ids)


@given(cut_lists(), st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=60, derandomize=True)
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


def test_no_windows_at_all() -> None:
    windows = build_windows([], TOKENIZERS["bert"])
    assert len(windows) == 0 and windows.lengths.shape == (0,)
    row = windows.pack(np.array([], np.int64))
    assert row["cu_seqlens"].tolist() == [0] and row["input_ids"].shape == (0,)
    found = best_spans(torch.zeros(0), torch.zeros(0), tensors(row), 20, 30)
    assert found.starts.shape == (0, 20)
    assert merge_answers([], windows, [found]) == ({}, {})
    assert n_best_list([], windows, []) == {}


# ---- mistakes ------------------------------------------------------------------------------


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


@pytest.mark.parametrize("version", ["0.23.1", "0.23.2"])
def test_tokenizers_that_lose_windows_are_refused(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizers, "__version__", version)
    with pytest.raises(UserError, match=rf"{version}.*0\.23\.3"):
        build_windows([], TOKENIZERS["bert"])


def test_pairs_that_do_not_start_with_cls_are_refused() -> None:
    backend = tokenizers.Tokenizer.from_str(TOKENIZERS["bert"].backend_tokenizer.to_str())
    backend.post_processor = processors.TemplateProcessing(
        pair="$A [SEP] $B:1 [SEP]:1 [CLS]:2", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    with pytest.raises(UserError, match="lay a pair out"):
        build_windows([], PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]"))


# ---- decoding ------------------------------------------------------------------------------


@st.composite
def decoding_cases(draw: Any) -> Tuple[Any, List[Tuple], int, int]:
    """Windows and logits; half the time whole numbers, so that many scores are equal."""
    examples, tokenizer, length, stride = draw(cut_lists())
    windows = build_windows(examples, tokenizer, length, stride)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    make = draw(st.sampled_from([lambda n: rng.integers(-2, 3, n), rng.standard_normal]))
    logits = [tuple(make(n).astype(np.float32) for _ in range(2)) for n in windows.lengths]
    return (examples, windows), logits, draw(st.integers(1, 25)), draw(st.integers(1, 12))


def decode(windows: Windows, logits: List[Tuple], chosen: Any, k: int, longest: int) -> Candidates:
    start, end = (np.concatenate([logits[w][side] for w in chosen]) for side in (0, 1))
    row: Dict[str, Any] = tensors(windows.pack(np.array(chosen)))
    if len(chosen) % 2:  # told or found out
        row["max_length"] = int(windows.lengths[chosen].max())
    return best_spans(torch.from_numpy(start), torch.from_numpy(end), row, k, longest)


@given(decoding_cases())
@settings(deadline=None, max_examples=100, derandomize=True)
def test_best_spans_are_those_of_the_plain_loops(case: Any) -> None:
    (_, windows), logits, k, longest = case
    found = decode(windows, logits, range(len(windows)), k, longest)
    row = windows.pack(np.arange(len(windows)))
    assert found.starts.shape == found.scores.shape == (len(windows), k)
    assert found.scores.dtype == found.null_scores.dtype == np.float32
    assert found.starts.dtype == found.ends.dtype == np.int32 and found.windows.dtype == np.int64
    for w, (start, end) in enumerate(logits):
        spans = plain_n_best(start, end, row["context_start"][w], row["context_end"][w], k, longest)
        real = int(np.isfinite(found.scores[w]).sum())
        pairs = list(zip(found.starts[w].tolist(), found.ends[w].tolist(), strict=True))
        assert pairs[:real] == spans
        assert found.scores[w, :real].tolist() == [start[i] + end[j] for i, j in spans]
        assert np.isneginf(found.scores[w, real:]).all()
        assert found.null_scores[w] == start[0] + end[0]


@given(decoding_cases())
@settings(deadline=None, max_examples=100, derandomize=True)
def test_a_device_finds_the_spans_that_the_host_finds(case: Any) -> None:
    (_, windows), logits, k, longest = case
    row: Dict[str, Any] = tensors(windows.pack(np.arange(len(windows))))
    sides = [torch.from_numpy(np.concatenate(side)) for side in zip(*logits, strict=True)]
    host = decoding._spans_on_host(*sides, row, k, longest)
    device = decoding._spans_on_device(*sides, row, k, longest)
    for a, b in zip(host, device, strict=True):
        assert np.array_equal(a, b.numpy()) and a.dtype == b.numpy().dtype


def test_half_precision_logits_are_added_in_fp32() -> None:
    examples = [Example("q", "t", " ".join(WORDS), "x", ())]
    windows = build_windows(examples, TOKENIZERS["bert"], 64, 4)
    row = tensors(windows.pack(np.arange(1)))
    start, end = torch.randn(2, len(row["input_ids"]), generator=torch.Generator().manual_seed(0))
    start, end = start.bfloat16(), 100 * end.bfloat16()
    half = best_spans(start, end, row, 5, 30)
    whole = best_spans(start.float(), end.float(), row, 5, 30)
    assert all(np.array_equal(a, b) for a, b in zip(half, whole, strict=True))
    assert half.null_scores[0] == start[0].float() + end[0].float()


@given(decoding_cases(), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=100, derandomize=True)
def test_answers_do_not_depend_on_batches_or_their_order(case: Any, random: Any) -> None:
    (examples, windows), logits, k, longest = case
    whole = [decode(windows, logits, range(len(windows)), k, longest)]
    order = list(range(len(windows)))
    random.shuffle(order)
    cut = random.randint(0, len(order) - 1)
    # The second part overlaps the first by a window, as a sampler that pads would do.
    parts = [decode(windows, logits, part, k, longest) for part in (order[: cut + 1], order[cut:])]
    answers = merge_answers(examples, windows, whole)
    assert merge_answers(examples, windows, parts) == answers
    assert n_best_list(examples, windows, parts, k) == n_best_list(examples, windows, whole, k)
    plain = plain_answers(examples, windows, logits, k, longest)
    assert answers.predictions == {id_: text for id_, (text, _) in plain.items()}
    assert answers.null_odds == pytest.approx({i: odds for i, (_, odds) in plain.items()}, abs=1e-5)


def hand_made() -> Tuple[List[Example], Windows]:
    """One question over two windows: [CLS] x [SEP] the river ban ##k [SEP], then ##k old."""
    examples = [Example("q", "t", "the river bank old", "x", ())]
    windows = build_windows(examples, TOKENIZERS["bert"], 8, 1)
    assert windows.context_length.tolist() == [4, 2]
    return examples, windows


def hand_made_candidates(null: Tuple[float, float], **changes: Any) -> Candidates:
    columns = {
        "windows": np.array([0, 1]),
        "starts": np.array([[4, 3], [4, 0]], np.int32),  # river bank; the | old; none
        "ends": np.array([[6, 3], [4, 0]], np.int32),
        "start_logits": np.array([[1, 0], [2, -np.inf]], np.float32),
        "end_logits": np.array([[1, 0], [1, -np.inf]], np.float32),
        "null_scores": np.array(null, np.float32),
    }
    return Candidates(**{**columns, **changes})


def test_the_best_window_answers_and_the_lowest_null_score_counts() -> None:
    examples, windows = hand_made()
    candidates = [hand_made_candidates((9.0, 2.5))]
    answers = merge_answers(examples, windows, candidates)
    assert answers == ({"q": "old"}, {"q": -0.5})
    assert merge_answers(examples, windows, candidates, -0.5).predictions == {"q": "old"}
    assert merge_answers(examples, windows, candidates, -0.6).predictions == {"q": ""}


def test_a_question_without_spans_gets_the_placeholder_of_the_reference() -> None:
    examples, windows = hand_made()
    none = np.full((2, 2), -np.inf, np.float32)
    low = [hand_made_candidates((-1.0, -2.0), start_logits=none, end_logits=none)]
    assert merge_answers(examples, windows, low) == ({"q": "empty"}, {"q": -2.0})
    high = [hand_made_candidates((1.0, 2.0), start_logits=none, end_logits=none)]
    assert merge_answers(examples, windows, high) == ({"q": ""}, {"q": 1.0})


def test_spans_of_no_characters_are_no_answers() -> None:
    examples, windows = hand_made()
    offsets = windows.context_offsets.copy()
    offsets[4] = offsets[4, 0]  # "old", the best span, is now zero characters wide
    hollow = Windows(**{**windows.columns(), "context_offsets": offsets})
    answers = merge_answers(examples, hollow, [hand_made_candidates((0.0, 0.0))])
    assert answers == ({"q": "river bank"}, {"q": -2.0})


def test_n_best_list() -> None:
    examples, windows = hand_made()
    best = n_best_list(examples, windows, [hand_made_candidates((9.0, 2.5))], 2)["q"]
    assert [(b["text"], b["start"], b["end"], b["score"]) for b in best] == [
        ("old", 15, 18, 3.0),
        ("", 0, 0, 2.5),
    ]
    weights = np.exp([3.0, 2.5])
    assert [b["probability"] for b in best] == pytest.approx(weights / weights.sum(), rel=1e-6)
    one = n_best_list(examples, windows, [hand_made_candidates((9.0, 2.5))], 1)["q"]
    assert [b["text"] for b in one] == ["old", ""]


# ---- the real files ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def albert(shared: Any) -> Any:
    return AutoTokenizer.from_pretrained(str(shared / "albert-tokenizer"))


@pytest.fixture(scope="module")
def dev(shared: Any, albert: Any) -> Tuple[List[Example], Windows]:
    examples = read_squad(shared / "squad" / "dev.json")
    return examples, build_windows(examples, albert)


def assert_golden(examples: List[Example], windows: Windows, path: Any) -> None:
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


def test_golden_predictions(shared: Any, dev: Any) -> None:
    """The golden decoding ran over padded rows: logits of padding take places among the top 20,
    as those of any token outside the context do. So each window is given as 384 tokens here."""
    examples, windows = dev
    golden = json.loads((shared / "golden" / "predictions_dev.json").read_text())
    rng, shape = np.random.default_rng(golden["seed"]), golden["shape"]
    start = rng.standard_normal(shape, dtype=np.float32) * np.float32(golden["scale"])
    end = rng.standard_normal(shape, dtype=np.float32) * np.float32(golden["scale"])
    assert hashlib.sha256(start.tobytes()).hexdigest() == golden["start_sha256"]
    assert hashlib.sha256(end.tobytes()).hexdigest() == golden["end_sha256"]
    candidates = []
    for chosen in np.array_split(np.random.default_rng(0).permutation(len(windows)), 7):
        row = tensors(windows.pack(chosen))
        row["cu_seqlens"] = torch.arange(len(chosen) + 1) * shape[1]
        logits = (torch.from_numpy(side[chosen]).view(-1) for side in (start, end))
        k, longest = golden["n_best_size"], golden["max_answer_length"]
        candidates.append(best_spans(*logits, row, k, longest))
    threshold = golden["null_score_diff_threshold"]
    answers = merge_answers(examples, windows, candidates, threshold)
    assert answers.predictions == golden["predictions"]
    assert answers.null_odds == golden["null_odds"]

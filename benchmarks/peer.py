"""The peer: what this package is measured against, the ordinary library way of doing each thing.

Features as the library's question-answering example makes them (one batched call for pairs,
padded, labelled feature by feature), n-best lists in Python loops, the official scorer's way of
scoring. Written to be what a careful user would run, not to be slow.
"""

import collections
import re
import string
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from detalbert.squad.windows import Example

BATCH = 1000  # questions in one tokenizer call, as `datasets.map` hands them out


class Limits(NamedTuple):
    """How questions are cut and answers chosen."""

    max_seq_length: int = 384
    doc_stride: int = 128  # tokens that two neighbours share
    n_best_size: int = 20
    max_answer_length: int = 30


def features(
    examples: Sequence[Example], tokenizer: Any, limits: Limits, pad: bool = True
) -> Iterator[dict[str, list[Any]]]:
    """One batch of `BATCH` questions after another, as columns of lists.

    Yields: input_ids, token_type_ids, attention_mask, offset_mapping (None outside the context),
        start_positions, end_positions (0 where the first answer is not inside), example_index,
        and context, the half-open range of tokens that is context.
    """
    for first in range(0, len(examples), BATCH):
        batch = examples[first : first + BATCH]
        columns = tokenizer(
            [example.question.lstrip() for example in batch],
            [example.context for example in batch],
            truncation="only_second",
            max_length=limits.max_seq_length,
            stride=limits.doc_stride,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            return_token_type_ids=True,
            padding="max_length" if pad else False,
        )
        sample = columns.pop("overflow_to_sample_mapping")
        labels: dict[str, list[Any]] = {"start_positions": [], "end_positions": [], "context": []}
        for i, offsets in enumerate(columns["offset_mapping"]):
            sides = columns.sequence_ids(i)
            low, high, start, end = _label(batch[sample[i]], offsets, sides)
            columns["offset_mapping"][i] = [
                pair if side == 1 else None for pair, side in zip(offsets, sides, strict=True)
            ]
            labels["start_positions"].append(start)
            labels["end_positions"].append(end)
            labels["context"].append((low, high))
        yield {**columns, **labels, "example_index": [first + s for s in sample]}


def _label(
    example: Example, offsets: list[tuple[int, int]], sides: list[Any]
) -> tuple[int, int, int, int]:
    """First context token, the one after the last, first and last token of the answer or 0, 0."""
    low, high = 0, len(sides)
    while low < high and sides[low] != 1:
        low += 1
    while high > low and sides[high - 1] != 1:
        high -= 1
    if not example.answers or low == high:
        return low, high, 0, 0
    text, begin = example.answers[0]
    finish = begin + len(text)
    if offsets[low][0] > begin or offsets[high - 1][1] < finish:
        return low, high, 0, 0
    start, end = low, high - 1
    while start + 1 < high and offsets[start + 1][0] <= begin:
        start += 1
    while end > low and offsets[end - 1][1] >= finish:
        end -= 1
    return low, high, start, end


def decode(
    examples: Sequence[Example],
    features_of: Mapping[int, Sequence[int]],
    offsets: Sequence[list[Any]],
    start_logits: np.ndarray,
    end_logits: np.ndarray,
    limits: Limits,
) -> tuple[dict[str, str], dict[str, float], dict[str, list[dict[str, Any]]]]:
    """Answer, null odds and n-best list of every question: loops over features, starts and ends.

    The lists come without probabilities, which ours leaves to those who ask for them, too.

    Args: features_of: numbers of an example's features; offsets: per feature, None outside the
        context; start_logits, end_logits: float32 [features, max_seq_length].
    """
    predictions, odds, lists = {}, {}, {}
    for number, example in enumerate(examples):
        null, spans = None, []
        for feature in features_of[number]:
            start, end = start_logits[feature], end_logits[feature]
            score = start[0] + end[0]
            null = score if null is None or score < null else null
            spans += _spans(start, end, offsets[feature], limits)
        best = sorted(spans, key=lambda span: span["score"], reverse=True)[: limits.n_best_size]
        for span in best:
            begin, finish = span.pop("offsets")
            span["text"] = example.context[begin:finish]
        answer = next((span for span in best if span["text"]), None)
        answer = answer or {"text": "empty", "start_logit": 0.0, "end_logit": 0.0}
        difference = float(null - answer["start_logit"] - answer["end_logit"])
        predictions[example.id] = "" if difference > 0.0 else answer["text"]
        odds[example.id] = difference
        lists[example.id] = best
    return predictions, odds, lists


def _spans(
    start: np.ndarray, end: np.ndarray, offset: list[Any], limits: Limits
) -> list[dict[str, Any]]:
    """The spans of one feature, of its n_best_size best starts and ends."""
    k, spans = limits.n_best_size, []
    starts = np.argsort(start)[-1 : -k - 1 : -1].tolist()
    ends = np.argsort(end)[-1 : -k - 1 : -1].tolist()
    for i in starts:
        for j in ends:
            if i >= len(offset) or j >= len(offset):
                continue
            if offset[i] is None or offset[j] is None:
                continue
            if j < i or j - i + 1 > limits.max_answer_length:
                continue
            spans.append(
                {
                    "offsets": (offset[i][0], offset[j][1]),
                    "score": start[i] + end[j],
                    "start_logit": start[i],
                    "end_logit": end[j],
                }
            )
    return spans


_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = set(string.punctuation)


def _normal(text: str) -> str:
    text = "".join(letter for letter in text.lower() if letter not in _PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def _overlap(gold: str, guess: str) -> float:
    truth, said = _normal(gold).split(), _normal(guess).split()
    if not truth or not said:
        return float(truth == said)
    common = sum((collections.Counter(truth) & collections.Counter(said)).values())
    if not common:
        return 0.0
    precision, recall = common / len(said), common / len(truth)
    return 2 * precision * recall / (precision + recall)


def score(
    examples: Sequence[Example], predictions: Mapping[str, str], odds: Mapping[str, float]
) -> dict[str, float]:
    """EM, F1 and the best thresholds, question by question, as the official scorer has them."""
    tables: tuple[dict[str, float], ...] = ({}, {})  # exact match, F1
    for example in examples:
        gold = [text for text, _ in example.answers if _normal(text)] or [""]
        guess = predictions[example.id]
        tables[0][example.id] = max(float(_normal(g) == _normal(guess)) for g in gold)
        tables[1][example.id] = max(_overlap(g, guess) for g in gold)
    answerable = {example.id: bool(example.answers) for example in examples}
    result: dict[str, float] = {}
    for name, table in zip(("exact", "f1"), tables, strict=True):
        shown = {i: float(not answerable[i]) if odds[i] > 0.0 else x for i, x in table.items()}
        for prefix, wanted in (("", (True, False)), ("HasAns_", (True,)), ("NoAns_", (False,))):
            group = [shown[i] for i, has in answerable.items() if has in wanted]
            if group or not prefix:
                result[prefix + name] = 100.0 * sum(group) / max(len(group), 1)
                result[prefix + "total"] = len(group)
        result[f"best_{name}"], result[f"best_{name}_thresh"] = _best_threshold(
            table, predictions, odds, answerable
        )
    return result


def _best_threshold(
    table: Mapping[str, float],
    predictions: Mapping[str, str],
    odds: Mapping[str, float],
    answerable: Mapping[str, bool],
) -> tuple[float, float]:
    best = current = float(sum(not has for has in answerable.values()))
    threshold = 0.0
    for id_ in sorted(odds, key=lambda i: odds[i]):
        if answerable[id_]:
            current += table[id_]
        elif predictions[id_]:
            current -= 1
        if current > best:
            best, threshold = current, odds[id_]
    return 100.0 * best / max(len(answerable), 1), threshold

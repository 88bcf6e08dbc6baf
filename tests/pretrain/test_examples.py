"""Examples: rates, order, one document each; functions of (seed, epoch, number). Their order."""

import itertools
from collections import Counter

import numpy as np
import pytest

from detalbert.squad.encoding import named_tokenizer
from pretrain.data import PretrainText
from pretrain.examples import NO_LABEL, ExampleOrder
from tests.fakes.text import (
    TOKENIZER,
    contexts,
    make_examples,
    read_examples,
    text_config,
    tiny,
    write,
)


def assert_of_document(example, tokens, vocabulary):
    """Assert that an example shows all of `tokens`, in order, in two segments at most."""
    special_ids = [*vocabulary.prefix, *vocabulary.suffix]
    assert not np.isin(example["mlm_labels"], special_ids).any()
    special = np.flatnonzero(np.isin(example["input_ids"], special_ids))
    assert set(special).isdisjoint(example["masked"])

    ids = example["input_ids"].copy()  # as before masking
    ids[example["masked"]] = example["mlm_labels"]
    text = np.delete(ids, special)
    types = np.delete(example["token_type_ids"], special)
    first = text[types == 0]
    second = text[types == 1]
    swapped = example["sop_labels"] == 1
    in_order = [second, first] if swapped else [first, second]
    assert np.array_equal(np.concatenate(in_order), tokens)
    if example["sop_labels"] != NO_LABEL:
        assert len(first)
        assert len(second)


def test_examples_keep_to_their_document(tmp_path):
    examples = make_examples(tmp_path)
    tokenizer = named_tokenizer(TOKENIZER)
    labels = Counter()
    masked_tokens = total_tokens = 0
    for epoch, number in itertools.product(range(3), range(len(examples.corpus.table))):
        example = examples.make(epoch, number)
        tokens, _ = examples.corpus.example(number)
        assert len(example["input_ids"]) == examples.lengths[number] <= 96
        assert_of_document(example, tokens, examples.vocabulary)

        # A document's words are of one letter, beside "the" and "was".
        words = tokenizer.decode(tokens).replace("the", "").replace("was", "")
        assert len({letter for letter in words if letter.isalpha()}) == 1

        labels[example["sop_labels"]] += 1
        masked_tokens += len(example["masked"])
        total_tokens += len(tokens)
    assert 0.4 < labels[1] / (labels[0] + labels[1]) < 0.6
    assert 0.12 < masked_tokens / total_tokens <= 0.16


def test_that_few_windows_have_an_order_is_said(tmp_path):
    """Two of five have two sentences."""
    lines = [f"Ship {n}." + " It sank." * (n % 5 < 2) for n in range(200)]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    data = {"text": str(tmp_path / "a.txt"), "tokenizer": TOKENIZER, "cache_dir": str(tmp_path)}
    text = PretrainText.load({**data, "article": "line", "validation_fraction": 0.2}, tiny())
    assert "two sentences or more: " in text.summary().lines["order"]


def test_without_sentence_order_and_spans_an_example_is_one_segment(tmp_path):
    assert make_examples(tmp_path, sentence_order=False, span_fraction=0.1).pairs
    examples = make_examples(tmp_path, sentence_order=False)
    assert not examples.pairs
    example = examples.make(0, 0)
    assert example["sop_labels"] == NO_LABEL
    assert not example["token_type_ids"].any()
    tokens, _ = examples.corpus.example(0)
    assert len(example["input_ids"]) == len(tokens) + 2


@pytest.fixture
def sharded(tmp_path):
    """Examples of a corpus of many small shards."""
    text = tmp_path / "a.txt"
    text.write_text("\n".join(contexts(1200)))
    folder = write(text, tmp_path, shard_mib=0.02)
    return read_examples(folder, text_config(text, tmp_path))


def test_an_epoch_sees_every_example_once_at_every_slot_count(sharded):
    count = len(sharded.lengths)
    steps = {}
    for slots in (1, 4):
        order = ExampleOrder(sharded, 8, slots, seed=1)
        steps[slots] = []
        for step in range(2 * count // 8):
            batch = np.concatenate([order.share(step, slot) for slot in range(slots)])
            steps[slots].append(sorted(map(tuple, batch.tolist())))
    assert steps[1] == steps[4]

    tickets = list(itertools.chain.from_iterable(steps[1]))
    assert len(set(tickets)) == len(tickets)
    first_epoch = {number for epoch, number in tickets if epoch == 0}
    assert first_epoch == set(range(count))

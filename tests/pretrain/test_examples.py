"""Examples: rates, order, one document each; functions of (seed, epoch, number). Their order."""

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from detalbert.squad.tokenizer import named_tokenizer
from pretrain.examples import NO_LABEL, ExampleOrder
from tests.fakes.text import TOKENIZER, contexts, make_examples, read_examples, text_config, write
from tests.same_bits import of_value


def test_examples_keep_to_their_document(tmp_path: Path) -> None:
    examples, tokenizer = make_examples(tmp_path), named_tokenizer(TOKENIZER)
    special = [examples.vocabulary.cls, examples.vocabulary.sep]
    swapped: Counter = Counter()
    rate = []
    for epoch, number in itertools.product(range(3), range(len(examples.corpus))):
        made = examples.make(epoch, number)
        assert len(made["input_ids"]) == examples.lengths[number] <= 96
        assert not np.isin(made["mlm_labels"], special).any()
        places = np.flatnonzero(np.isin(made["input_ids"], special))
        assert not set(places) & set(made["masked"])
        ids = made["input_ids"].copy()  # as before masking
        ids[made["masked"]] = made["mlm_labels"]
        text, types = (np.delete(x, places) for x in (ids, made["token_type_ids"]))
        tokens, _ = examples.corpus.example(number)
        letters = tokenizer.decode(tokens).replace("the", "").replace("was", "")
        assert len(set(filter(str.isalpha, letters))) == 1  # of one document
        parts = [text[types == 0], text[types == 1]]
        order = parts[::-1] if made["sop_labels"] == 1 else parts
        assert np.array_equal(np.concatenate(order), tokens)  # all of it, in order
        assert made["sop_labels"] == NO_LABEL or all(map(len, parts))
        swapped[made["sop_labels"]] += 1
        rate.append((len(made["masked"]), len(tokens)))
    assert 0.4 < swapped[1] / (swapped[0] + swapped[1]) < 0.6
    hidden, total = np.sum(rate, axis=0)
    assert 0.12 < hidden / total <= 0.16


def test_examples_are_those_of_earlier_versions(tmp_path: Path) -> None:
    """So a run that one of them began goes on as it would have there; another seed has others."""
    kind: Any = {"text": "generated", "span_fraction": 0.5}
    for seed, same in ((42, True), (7, False)):
        examples = make_examples(tmp_path, seed=seed, **kind)
        made = [examples.make(epoch, number) for epoch in (0, 3) for number in range(300)]
        values = [{name: np.asarray(one[name]).tolist() for name in one} for one in made]
        assert (of_value(values)[:16] == "c6124f5699f3a5ee") == same


def test_without_sentence_order_an_example_is_one_segment(tmp_path: Path) -> None:
    examples = make_examples(tmp_path, sentence_order=False)
    made = examples.make(0, 0)
    assert made["sop_labels"] == NO_LABEL and not made["token_type_ids"].any()
    assert len(made["input_ids"]) == len(examples.corpus.example(0)[0]) + 2


def test_an_epoch_sees_every_example_once_at_every_slot_count(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n".join(contexts(1200)))
    folder = write(tmp_path / "a.txt", tmp_path, shard_mib=0.02)
    examples = read_examples(folder, text_config(tmp_path / "a.txt", tmp_path))
    count = len(examples.lengths)
    seen = {}
    for slots in (1, 4):
        order = ExampleOrder(examples, 8, slots, seed=1, group=2)
        shares = [
            np.concatenate([order.share(step, slot) for slot in range(slots)])
            for step in range(2 * count // 8)
        ]
        seen[slots] = [sorted(map(tuple, share.tolist())) for share in shares]
    assert seen[1] == seen[4]
    tickets = [ticket for share in seen[1] for ticket in share]
    assert len(set(tickets)) == len(tickets)
    assert {n for epoch, n in tickets if epoch == 0} == set(range(count))
    for epoch in range(4):
        order.permutation(epoch)
    assert set(order.permutations) == {(0, 2), (0, 3)}  # memory for two epochs
    # At any time only two groups of shards are read.
    order = ExampleOrder(examples, 8, 1, seed=1, group=2)
    numbers = [order.share(step, 0)[0, 1] for step in range(20)]
    assert set(map(examples.corpus.shard_of, numbers)) <= set(order.groups(0)[0])

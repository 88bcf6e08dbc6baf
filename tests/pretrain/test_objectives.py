"""The loss over packed rows against the library's own, padded; scores; heads; the start."""

import copy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import one_hot
from torch.nn.utils.rnn import pad_sequence
from transformers import AlbertForPreTraining, AlbertForQuestionAnswering

from detalbert.engine.rows import pack_rows
from detalbert.squad.encoding import named_tokenizer
from pretrain.encoders import build_encoder
from pretrain.examples import NO_LABEL
from pretrain.objectives import label_losses, score_row
from pretrain.trial import ScoreReducer
from tests.fakes.text import TOKENIZER, make_examples, make_forward, tickets, tiny


@pytest.fixture(scope="module")
def examples(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    return make_examples(folder, text="generated", span_fraction=0.5)


@pytest.fixture(scope="module")
def run():
    return make_forward(span_fraction=0.5)


Example = dict[str, Any]  # as `PretrainExamples.make` returns it


def library_loss(run, kind, examples, **labels):
    """Return transformers' loss of these examples, padded to one length; the model's weights."""
    config = copy.deepcopy(run.model.config)  # the library writes the attention's name into it
    library = kind._from_config(config, attn_implementation="eager")
    library.load_state_dict(run.model.state_dict(), strict=False)
    ids = [torch.from_numpy(example["input_ids"]) for example in examples]
    types = [torch.from_numpy(example["token_type_ids"]) for example in examples]
    output = library.eval()(
        input_ids=pad_sequence(ids, batch_first=True),
        token_type_ids=pad_sequence(types, batch_first=True),
        attention_mask=pad_sequence([torch.ones_like(row) for row in ids], batch_first=True),
        **labels,
    )
    return output.loss


def token_labels(examples):
    """Return labels as transformers takes them: -100 where no token is masked, and for padding."""
    columns = []
    for example in examples:
        labels = torch.full((len(example["input_ids"]),), -100)
        labels[example["masked"]] = torch.from_numpy(example["mlm_labels"])
        columns.append(labels)
    return pad_sequence(columns, batch_first=True, padding_value=-100)


@pytest.mark.parametrize("multiple", [1, 64])
def test_the_loss_is_the_librarys(multiple, run, examples, monkeypatch):
    monkeypatch.setattr(run, "multiple", multiple)  # with a padding window, as compiled layers have
    (row,) = pack_rows(examples, tickets(12), 4096)
    unpacked = [examples.make(0, number) for number in range(12)]

    mlm, sop, spans = run(row)
    token_losses, order_losses, span_losses = label_losses(row, mlm, sop, spans)

    # Masked tokens and the order of sentences.
    assert mlm.shape == (len(row["masked"]), run.model.config.vocab_size)
    assert sop.shape == (12, 2)
    pairs = int((row["sop_labels"] >= 0).sum())
    assert pairs > 0
    expected = library_loss(
        run,
        AlbertForPreTraining,
        unpacked,
        labels=token_labels(unpacked),
        sentence_order_label=torch.tensor([example["sop_labels"] for example in unpacked]),
    )
    loss = token_losses.mean() + order_losses.sum() / pairs
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-5)

    # Spans.
    assert spans.shape == (len(row["input_ids"]), 2)
    has_span = row["start_positions"] != NO_LABEL
    assert 2 < has_span.sum() < 12
    assert not span_losses[~has_span].any()
    for number in np.flatnonzero(has_span).tolist():
        example = unpacked[number]
        expected = library_loss(
            run,
            AlbertForQuestionAnswering,
            [example],
            start_positions=torch.tensor([example["start_positions"]]),
            end_positions=torch.tensor([example["end_positions"]]),
        )
        torch.testing.assert_close(span_losses[number], expected, rtol=0, atol=1e-5)


def test_scores_sum_the_losses(run, examples):
    (row,) = pack_rows(examples, tickets(12), 4096)
    with torch.no_grad():
        logits = run(row)

    sums = score_row(row, *logits)

    losses = [float(losses.sum()) for losses in label_losses(row, *logits)]
    assert sums[:, 0].tolist() == pytest.approx(losses, rel=1e-5)


def test_scores_count_correct_predictions(run, examples):
    (row,) = pack_rows(examples, tickets(12), 4096)
    vocab_size = run.model.config.vocab_size

    # Logits that are right about everything.
    has_span = row["start_positions"] != NO_LABEL
    window_begins = row["cu_seqlens"][:-1]
    first = (window_begins + row["start_positions"])[has_span]
    last = (window_begins + row["end_positions"])[has_span]
    spans = torch.zeros(len(row["input_ids"]), 2)
    spans[first, 0] = 20.0
    spans[last, 1] = 20.0
    mlm = one_hot(row["mlm_labels"], vocab_size).float()
    sop = one_hot(row["sop_labels"].clamp(min=0), 2).float()

    sums = score_row(row, mlm, sop, spans)

    pairs = int((row["sop_labels"] >= 0).sum())
    counts = [len(row["mlm_labels"]), pairs, int(has_span.sum())]
    assert min(counts) > 0
    assert counts[2] > 2
    assert sums[:, 1].tolist() == counts
    assert sums[:, 2].tolist() == counts
    assert sums[2, 0] < 1e-3

    # All windows are of the first source.
    two_sources = SimpleNamespace(names=["a", "none"], sources=[0], shard_of=lambda number: 0)
    reducer = ScoreReducer(two_sources)
    reducer.reset()
    reducer.update(row, sums)
    scores = reducer.cross_slot_reduce([reducer.per_slot_reduce()])
    for name in ("mlm_accuracy", "sop_accuracy", "span_accuracy", "mlm_accuracy_a"):
        assert scores[name] == 100.0
    assert "mlm_accuracy_none" not in scores

    # One source has no scores of its own.
    one_source = SimpleNamespace(names=["a"], sources=[0], shard_of=lambda number: 0)
    reducer = ScoreReducer(one_source)
    reducer.reset()
    reducer.update(row, sums)
    assert "mlm_accuracy_a" not in reducer.cross_slot_reduce([reducer.per_slot_reduce()])

    # Both ends must be right.
    spans[last[0], 1] = -20.0
    assert score_row(row, mlm, sop, spans)[2, 1] == has_span.sum() - 1


def test_without_sentence_order_its_head_is_frozen():
    model = build_encoder(tiny(sentence_order=False), named_tokenizer(TOKENIZER))
    frozen = {name for name, value in model.named_parameters() if not value.requires_grad}
    assert {name.split(".")[0] for name in frozen} == {"albert", "sop_classifier"}
    assert all("pooler" in name or "sop" in name for name in frozen)

"""The loss over packed rows against the library's own, padded; scores; heads; the start."""

import copy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import one_hot
from torch.nn.utils.rnn import pad_sequence
from transformers import AlbertConfig, AlbertForPreTraining, AlbertForQuestionAnswering

from detalbert.engine.forward import Forward, dummy_row
from detalbert.engine.rows import pack_rows
from detalbert.squad.tokenizer import named_tokenizer
from pretrain.examples import NO_LABEL, PretrainExamples
from pretrain.hparams import parse_pretrain_hparams
from pretrain.matching import start_matching
from pretrain.objectives import label_losses, score_row
from pretrain.trial import ScoreReducer, build_albert
from tests.fakes.text import TOKENIZER, make_examples, make_forward, tickets, tiny


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> PretrainExamples:
    folder = tmp_path_factory.mktemp("text")
    return make_examples(folder, text="generated", span_fraction=0.5)


@pytest.fixture(scope="module")
def run() -> Forward:
    return make_forward(span_fraction=0.5)


def library_loss(run: Forward, kind: Any, made: list[Any], **labels: torch.Tensor) -> torch.Tensor:
    """The library's own loss of these examples, padded to one length; the model's weights."""
    config = copy.deepcopy(run.model.config)  # the library writes the attention's name into it
    library = kind._from_config(config, attn_implementation="eager")
    library.load_state_dict(run.model.state_dict(), strict=False)
    columns = {name: [torch.from_numpy(one[name]) for one in made] for name in INPUTS}
    columns["attention_mask"] = [torch.ones_like(ids) for ids in columns["input_ids"]]
    given = {name: pad_sequence(column, batch_first=True) for name, column in columns.items()}
    return library.eval()(**given, **labels).loss


INPUTS = "input_ids", "token_type_ids"


def token_labels(one: Any) -> torch.Tensor:
    labels = torch.full((len(one["input_ids"]),), -100)
    labels[one["masked"]] = torch.from_numpy(one["mlm_labels"])
    return labels


@pytest.mark.parametrize("multiple", [1, 64])
def test_the_loss_is_the_librarys(multiple: int, run: Any, examples: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(run, "multiple", multiple)  # with a padding window, as compiled layers have
    (row,) = pack_rows(examples, tickets(12), 4096)
    made = [examples.make(0, number) for number in range(12)]
    mlm, sop, spans = run(row)
    assert mlm.shape == (len(row["masked"]), run.model.config.vocab_size) and sop.shape == (12, 2)
    pairs = int((row["sop_labels"] >= 0).sum())
    assert pairs > 0
    tokens, order_losses, losses = label_losses(row, mlm, sop, spans)
    loss = tokens.mean() + order_losses.sum() / pairs
    labels = pad_sequence(list(map(token_labels, made)), batch_first=True, padding_value=-100)
    order = torch.tensor([one["sop_labels"] for one in made])
    given = {"labels": labels, "sentence_order_label": order}
    wanted = library_loss(run, AlbertForPreTraining, made, **given)
    torch.testing.assert_close(loss, wanted, rtol=0, atol=1e-5)

    asked = row["start_positions"] != NO_LABEL
    assert 2 < asked.sum() < 12 and spans.shape == (len(row["input_ids"]), 2)
    assert not losses[~asked].any()
    for number in np.flatnonzero(asked).tolist():
        one = made[number]
        names = "start_positions", "end_positions"
        ends = {name: torch.tensor([one[name]]) for name in names}
        wanted = library_loss(run, AlbertForQuestionAnswering, [one], **ends)
        torch.testing.assert_close(losses[number], wanted, rtol=0, atol=1e-5)


def test_scores_count_what_the_losses_sum(run: Forward, examples: Any) -> None:
    (row,) = pack_rows(examples, tickets(12), 4096)
    with torch.no_grad():
        mlm, sop, spans = run(row)
    sums = score_row(row, mlm, sop, spans)
    losses = [float(of.sum()) for of in label_losses(row, mlm, sop, spans)]
    assert sums[:, 0].tolist() == pytest.approx(losses, rel=1e-5)
    asked = row["start_positions"] != NO_LABEL
    first, last = (row["cu_seqlens"][:-1] + row[f"{end}_positions"] for end in ("start", "end"))
    perfect = torch.zeros(len(row["input_ids"]), 2)
    perfect[first[asked], 0] = perfect[last[asked], 1] = 20.0
    right = one_hot(row["mlm_labels"], mlm.shape[1]).float()
    order = one_hot(row["sop_labels"].clamp(min=0), 2).float()
    sums = score_row(row, right, order, perfect)
    counts = [len(row["mlm_labels"]), int((row["sop_labels"] >= 0).sum()), int(asked.sum())]
    assert sums[:, 1].tolist() == sums[:, 2].tolist() == counts and min(counts) > 0
    assert counts[2] > 2 and sums[2, 0] < 1e-3
    two: Any = SimpleNamespace(names=["a", "none"], source_of=lambda number: 0)
    reducer = ScoreReducer(mlm.shape[1], two)
    reducer.reset()
    reducer.update(row, sums)
    found = reducer.cross_slot_reduce([reducer.per_slot_reduce()])
    assert {found[f"{part}_accuracy"] for part in ("mlm", "sop", "span")} == {100.0}
    assert found["mlm_accuracy_a"] == 100.0 and "mlm_accuracy_none" not in found
    perfect[last[asked][0], 1] = -20.0  # both ends must be right
    assert score_row(row, right, order, perfect)[2, 1] == asked.sum() - 1
    mlm, sop, _ = run(dummy_row(200, 96, torch.device("cpu")))  # of no labels
    assert mlm.shape[0] == 29 and sop.shape == (3, 2)


def test_without_sentence_order_its_head_is_frozen_and_a_size_is_the_papers() -> None:
    model = build_albert(tiny(sentence_order=False), named_tokenizer(TOKENIZER))
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    assert {name.split(".")[0] for name in frozen} == {"albert", "sop_classifier"}
    assert all("pooler" in name or "sop" in name for name in frozen)
    keys = parse_pretrain_hparams({"size": "base"}).model_keys()
    paper = {"hidden_size": 768, "num_hidden_layers": 12, "intermediate_size": 3072}
    assert keys.items() >= {**paper, "hidden_dropout_prob": 0.0}.items()


def test_half_of_the_heads_find_equal_pieces_the_others_near_positions() -> None:
    torch.manual_seed(0)
    keys = {"embedding_size": 128, "hidden_size": 128, "intermediate_size": 64}
    sizes = {"vocab_size": 500, "num_hidden_layers": 1, "max_position_embeddings": 64, **keys}
    config = AlbertConfig(num_attention_heads=4, initializer_range=0.05, **sizes)
    config._attn_implementation = "eager"
    albert = AlbertForPreTraining(config).eval().albert
    start_matching(albert)
    ids = torch.randperm(500)[:32].repeat(2)  # every piece again, 32 places later
    with torch.no_grad():
        weights = albert(ids[None], output_attentions=True).attentions[0][0]
    layer = albert.encoder.albert_layer_groups[0].albert_layers[0].attention
    for half, channels in ((slice(64), slice(96)), (slice(64, None), slice(96, None))):
        read = layer.query.weight[half].abs().amin(0) > 0  # by every head of this half
        assert read[channels].all() and int(read.sum()) == len(range(128)[channels])
    at = torch.arange(32)
    again = weights[:, at + 32, at].mean(1)  # [heads]: looks back at its own piece
    near, far = weights[2:, at[1:], at[:-1]], weights[2:, at[:8], at[:8] + 20]
    assert again[:2].mean() > 2 / 64 > 1.5 * again[2:].mean()
    assert near.mean() > 1.5 * far.mean()
    assert all(parameter.requires_grad for parameter in albert.parameters())

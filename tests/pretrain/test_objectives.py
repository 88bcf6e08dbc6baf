"""The loss over packed rows against the library's own, padded; steps against micro-batches."""

import copy

import pytest
import torch
from transformers import AlbertForPreTraining

from detalbert.engine.forward import Forward, made_up_row
from detalbert.squad.tokenizer import named_tokenizer
from pretrain.hparams import parse_pretrain_hparams
from pretrain.objectives import order_losses, score_row, token_losses
from pretrain.trial import build_model
from tests.fakes.text import TOKENIZER, make_examples, make_forward, tickets, tiny


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory):
    return make_examples(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def run() -> Forward:
    return make_forward()


def library_loss(run: Forward, examples, count: int) -> torch.Tensor:
    """AlbertForPreTraining's own loss of the same examples, padded to one length."""
    made = [examples.make(0, number) for number in range(count)]
    shape = count, max(len(one["input_ids"]) for one in made)
    ids, types, mask = (torch.zeros(shape, dtype=torch.int64) for _ in range(3))
    labels = torch.full(shape, -100)
    for i, one in enumerate(made):
        for padded, name in ((ids, "input_ids"), (types, "token_type_ids")):
            padded[i, : len(one[name])] = torch.from_numpy(one[name])
        mask[i, : len(one["input_ids"])] = 1
        labels[i, one["masked"]] = torch.from_numpy(one["mlm_labels"])
    config = copy.deepcopy(run.model.config)  # the library writes the attention's name into it
    eager = AlbertForPreTraining._from_config(config, attn_implementation="eager")
    eager.load_state_dict(run.model.state_dict())
    order = torch.tensor([one["sop_label"] for one in made])
    given = {"input_ids": ids, "token_type_ids": types, "attention_mask": mask}
    return eager.eval()(**given, labels=labels, sentence_order_label=order).loss


@pytest.mark.parametrize("multiple", [1, 64])
def test_the_loss_is_the_librarys(run: Forward, examples, multiple: int, monkeypatch) -> None:
    monkeypatch.setattr(run, "multiple", multiple)  # with a padding window, as compiled layers have
    row = examples.row(tickets(9))
    mlm, sop = run(row)
    assert mlm.shape == (len(row["masked"]), run.model.config.vocab_size) and sop.shape == (9, 2)
    pairs = int((row["sop_labels"] >= 0).sum())
    assert pairs > 0
    loss = token_losses(mlm, row).mean() + order_losses(sop, row).sum() / pairs
    wanted = library_loss(run, examples, 9)
    torch.testing.assert_close(loss, wanted, rtol=0, atol=1e-5)


def test_scores_count_what_the_losses_sum(run: Forward, examples) -> None:
    row = examples.row(tickets(9))
    with torch.no_grad():
        mlm, sop = run(row)
    sums = score_row(row, mlm, sop)
    assert float(sums["mlm_loss"]) == pytest.approx(float(token_losses(mlm, row).sum()), rel=1e-5)
    assert int(sums["tokens"]) == len(row["mlm_labels"])
    perfect = torch.nn.functional.one_hot(row["mlm_labels"], mlm.shape[1]).float()
    order = torch.nn.functional.one_hot(row["sop_labels"].clamp(min=0), 2).float()
    sums = score_row(row, perfect, order)
    assert sums["mlm_hits"] == sums["tokens"] and sums["sop_hits"] == sums["pairs"] > 0


def test_a_made_up_row_runs(run: Forward) -> None:
    mlm, sop = run(made_up_row(200, 96, torch.device("cpu")))
    assert mlm.shape[0] == 29 and sop.shape == (3, 2)


def test_without_sentence_order_its_head_is_frozen() -> None:
    model = build_model(tiny(sentence_order=False), named_tokenizer(TOKENIZER))
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    assert {name.split(".")[0] for name in frozen} == {"albert", "sop_classifier"}
    assert all("pooler" in name or "sop" in name for name in frozen)


def test_a_size_is_the_papers() -> None:
    keys = parse_pretrain_hparams({"size": "base"}).model_keys()
    paper = {"hidden_size": 768, "num_hidden_layers": 12, "intermediate_size": 3072}
    assert keys.items() >= {**paper, "hidden_dropout_prob": 0.0}.items()

"""Prompts: the library's own greedy text, seeded draws, whole characters, and where a text ends."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from detalbert.corpus.learn_tokenizer import train_byte_bpe
from detalbert.errors import UserError
from lm.inference import complete as module
from lm.inference.complete import Sampling, choose, complete, encode
from tests.lm.ranks import SHAPES, tiny

GREEDY = Sampling(max_new_tokens=40, temperature=0)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return train_byte_bpe(["the ship sank", "the crew swam to the shore"] * 5, 300)


def model(family: str, **keys: Any) -> PreTrainedModel:
    torch.manual_seed(1)
    config = tiny(family, vocab_size=300, **keys)
    made = AutoModelForCausalLM.from_config(config).eval()
    for parameter in made.parameters():  # so large that no two tokens are about as likely
        parameter.data += 0.1 * torch.randn_like(parameter)
    return made


def text(steps: Iterator[Any]) -> tuple[str, str]:
    steps = list(steps)
    assert [step.ended for step in steps[:-1]] == [None] * (len(steps) - 1)
    return "".join(step.text for step in steps), steps[-1].ended


@pytest.mark.parametrize("family", SHAPES)
def test_greedy_text_is_the_librarys(family: str, tokenizer: Any) -> None:
    library = model(family)
    ids, end = torch.tensor([encode(tokenizer, "the ship")]), tokenizer.eos_token_id
    expected = library.generate(ids, do_sample=False, max_new_tokens=40, eos_token_id=end)
    expected = expected[0, ids.shape[1] :]
    assert len(set(expected.tolist())) > 2
    made, ended = text(complete(library, tokenizer, "the ship", GREEDY))
    assert made == tokenizer.decode(expected, skip_special_tokens=True)
    assert ended == ("end of text" if end in expected else "max_new_tokens")


def test_the_seed_makes_the_text(tokenizer: Any) -> None:
    llama = model("llama")
    texts = [text(complete(llama, tokenizer, "the", Sampling(seed=s)))[0] for s in (0, 1, 0)]
    assert texts[0] == texts[2] != texts[1] and len(texts[0]) > 40


def test_draws_follow_temperature_and_top_p() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0])
    generator = torch.Generator().manual_seed(0)

    def shares(**values: float) -> torch.Tensor:
        drawn = [choose(logits, Sampling(**values), generator) for _ in range(1500)]
        return torch.bincount(torch.tensor(drawn), minlength=4) / 1500

    assert torch.allclose(shares(temperature=1.0, top_p=1.0), logits.softmax(0), atol=0.05)
    assert torch.allclose(shares(temperature=2.0, top_p=1.0), (logits / 2).softmax(0), atol=0.05)
    two = shares(temperature=1.0, top_p=0.8)  # 0.64 and 0.24 are more than 0.8 together
    assert two[2:].sum() == 0 and float(two[0]) == pytest.approx(0.73, abs=0.05)
    assert shares(temperature=1e-300)[0] == shares(top_p=1e-9)[0] == 1


def test_characters_come_whole(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens are bytes here: a character of three is shown with its last."""
    written = "東京 – the 🚢 sank"
    tokens = iter([*encode(tokenizer, written), tokenizer.eos_token_id])
    monkeypatch.setattr(module, "choose", lambda *_: next(tokens))
    steps = list(complete(model("gpt2"), tokenizer, "ship ", Sampling()))
    pieces = [step.text for step in steps]
    assert "".join(pieces) == written and not any("\ufffd" in piece for piece in pieces)
    assert pieces[:3] == ["", "", "東"] and steps[-1].ended == "end of text"


def test_where_a_text_ends(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gpt2, long = model("gpt2"), Sampling(max_new_tokens=500, temperature=0)
    monkeypatch.setattr(tokenizer, "_special_tokens_map", {})  # no end of text
    prompt = "the ship"
    steps = list(complete(gpt2, tokenizer, prompt, long))
    assert len(steps) == 64 - len(encode(tokenizer, prompt)) + 1
    assert steps[-1].ended == "positions"
    with pytest.raises(UserError, match="the prompt has .* tokens, and the model 64 positions"):
        next(complete(gpt2, tokenizer, "x" * 65, long))
    assert len(list(complete(gpt2, tokenizer, "x" * 64, long))) == 1


def test_prompts_that_are_odd(tokenizer: Any) -> None:
    end = tokenizer.eos_token_id
    assert encode(tokenizer, "") == [end]
    assert end not in encode(tokenizer, "a<|endoftext|>b")
    with pytest.raises(UserError, match="not UTF-8"):
        encode(tokenizer, "\udce9")
    bare = copy.deepcopy(tokenizer)
    bare.eos_token = None
    with pytest.raises(UserError, match="the prompt is empty"):
        encode(bare, "")


def test_weights_that_diverged_are_told_of(tokenizer: Any) -> None:
    broken = model("llama")
    broken.lm_head.weight.data.fill_(float("nan"))
    with pytest.raises(UserError, match="diverged"):
        next(complete(broken, tokenizer, "a", Sampling()))

"""Text generation after a prompt, one token at a time."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation.logits_process import TemperatureLogitsWarper, TopPLogitsWarper

from detalbert.errors import UserError
from detalbert.settings.sections import Section, limited

_CONTEXT = 8  # tokens before a new one that its text may depend on: a leading space, a character


@dataclass(frozen=True)
class Sampling(Section):
    """Sampling parameters. The same prompt, model and values give the same text."""

    max_new_tokens: int = limited(200, above=0)
    temperature: float = limited(0.8, least=0)  # 0: always the likeliest token
    # Of the likeliest tokens that together have this probability (Holtzman 2020, arXiv:1904.09751).
    top_p: float = limited(0.95, above=0, most=1)
    seed: int = limited(0, least=0, below=2**63)


class Step(NamedTuple):
    """The result of one generated token."""

    text: str  # "" where it is only a part of a character
    ended: str | None = None  # why it is the last: end of text, max_new_tokens, positions


@torch.no_grad()
def complete(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompt: str, sampling: Sampling
) -> Iterator[Step]:
    """Yield the text generated after `prompt`, which begins a document.

    Training puts no token before a document; an empty prompt is an end-of-text token, as in GPT-2.
    Ends at the end-of-text token, `max_new_tokens`, or the model's last position. `model` is of
    load.load_model. Raises UserError before the first step if the prompt is not text or too long.
    """
    fed = encode(tokenizer, prompt)
    positions = getattr(model.config, "max_position_embeddings", None) or 1 << 62
    if len(fed) > positions:
        raise UserError(
            f"the prompt has {len(fed):,} tokens, and the model {positions:,} positions; cut it"
        )
    positions -= len(fed)
    generator = torch.Generator().manual_seed(sampling.seed)
    text, cache = _Text(tokenizer, fed), DynamicCache(config=model.config)
    for made in range(1, sampling.max_new_tokens + 1):
        ids = torch.tensor([fed], device=model.device)  # [1, T], after the first time [1, 1]
        output = model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        token = choose(output.logits[0, -1], sampling, generator)
        ended = "max_new_tokens" if made == sampling.max_new_tokens else None
        if token == tokenizer.eos_token_id:
            ended = "end of text"
        elif made > positions:
            ended = "positions"
        yield Step(text.add(token, last=ended is not None), ended)
        if ended:
            return
        fed = [token]


def encode(tokenizer: PreTrainedTokenizerBase, prompt: str) -> list[int]:
    """Return the tokens of a prompt that begins a document; "<|endoftext|>" in it is plain text."""
    try:
        prompt.encode()
    except UnicodeEncodeError:
        raise UserError("the prompt is not UTF-8 text") from None
    ids = tokenizer(prompt, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    if not ids and tokenizer.eos_token_id is None:
        raise UserError(
            "the prompt is empty, and the tokenizer has no end-of-text token; give text"
        )
    return ids or [tokenizer.eos_token_id]


def choose(logits: Tensor, sampling: Sampling, generator: torch.Generator) -> int:
    """Return a token drawn by its logits [V], on the CPU, so that all devices draw alike."""
    logits = logits.double().cpu()[None]  # [1, V]; double, for temperatures near 0
    if not logits.isfinite().all():
        raise UserError("the model's logits are no numbers: it diverged; give another checkpoint")
    if not sampling.temperature:
        return int(logits.argmax())
    logits = TemperatureLogitsWarper(sampling.temperature)(None, logits - logits.max())
    if sampling.top_p < 1:
        logits = TopPLogitsWarper(sampling.top_p)(None, logits)
    return int(torch.multinomial(logits.softmax(dim=-1), 1, generator=generator))


class _Text:
    """Incremental decoding of tokens; holds back a character's bytes until it is complete."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, before: list[int]) -> None:
        self.tokenizer, self.ids = tokenizer, before[-_CONTEXT:]
        self.shown = len(self._decode())  # characters

    def add(self, token: int, last: bool) -> str:
        self.ids.append(token)
        text = self._decode()
        if text.endswith("\ufffd") and not last:
            return ""
        new, self.shown = text[self.shown :], len(text)
        return new

    def _decode(self) -> str:
        return self.tokenizer.decode(
            self.ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )

"""Text generation after a prompt, by transformers' `generate`, shown as it comes."""

import sys
from collections.abc import Callable
from typing import Any

import torch
from pydantic import Field
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation import BaseStreamer

from detalbert.corpus.documents import begin_tokens
from detalbert.errors import UserError
from detalbert.escapes import escape_controls, json_line
from detalbert.settings.sections import Section, Whole, parse_section, section
from detalbert.squad.encoding import tokenizing
from detalbert.squad.questions import is_unicode
from lm.inference.load import SavedLm, load_model

_CONTEXT = 8  # tokens before a new one that its text may depend on: a leading space, a character
_GREEDY = 1e-6  # a temperature that chooses as 0 does; below it fp32 would overflow


@section
class Sampling(Section):
    """Sampling parameters. The same prompt, model, device and values give the same text."""

    max_new_tokens: Whole = Field(200, gt=0)
    temperature: float = Field(0.8, ge=0)  # 0: always the likeliest token
    # Of the likeliest tokens that together have this probability (Holtzman 2020, arXiv:1904.09751).
    top_p: float = Field(0.95, gt=0, le=1)
    seed: Whole = Field(0, ge=0)


def print_completion(source: SavedLm, prompt: str, options: dict[str, Any], as_json: bool) -> None:
    """Print the text after `prompt` as it is generated, or one line of JSON.

    Args:
        source: the language model.
        prompt: see `complete`.
        options: values of `Sampling`, whose defaults are used for the others.
        as_json: print one line of JSON.

    Raises:
        UserError: if a value is out of its range, or the prompt cannot be continued.
    """
    try:
        sampling = parse_section(Sampling, "--prompt", options)
    except UserError as error:
        _, _, name = error.key.partition(".")
        raise error.under(f"--{name.replace('_', '-')}") from None
    if not prompt:
        _check_empty_prompt(source)
    model = load_model(source)
    if as_json:
        text, ended = complete(model, source.tokenizer, prompt, sampling)
        reply = {"prompt": prompt, "text": text, "ended": ended, **vars(sampling)}
        print(json_line(reply))
    else:
        complete(model, source.tokenizer, prompt, sampling, show=_show)
        print()


def _check_empty_prompt(source: SavedLm) -> None:
    """Raise UserError if the model was trained here, but not to begin a document: an end-of-text
    token came before none, and no other token stands there.
    """
    trained_here = source.steps is not None
    within_documents = not source.hparams.across_documents
    if trained_here and within_documents and not begin_tokens(source.tokenizer):
        raise UserError(
            "it is empty, and training has never shown the model how a document begins",
            key="--prompt",
            cure="give the first words, or train with hyperparameters.across_documents: true",
        )


def _show(text: str) -> None:
    """Print text as it comes; what a terminal would obey, only into a pipe or a file."""
    print(escape_controls(text) if sys.stdout.isatty() else text, end="", flush=True)


def complete(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompt: str,
    sampling: Sampling,
    show: Callable[[str], object] = str,
) -> tuple[str, str]:
    """Generate the text after `prompt`, which begins a document.

    It begins with the tokens that the tokenizer puts before a text, as in training; without any, an
    empty prompt is an end-of-text token, as in GPT-2. The model's generation config is replaced.

    Args:
        model: of load.load_model.
        tokenizer: its own.
        prompt: the beginning of a document.
        sampling: how tokens are chosen, and how many at most.
        show: receives the text as it comes, in complete characters.

    Returns:
        The text, and why it ended: end of text, max_new_tokens or positions (the model's last).

    Raises:
        UserError: if the prompt is not text or is too long, or the model diverged.
    """
    ids = torch.tensor([encode_prompt(tokenizer, prompt)], device=model.device)  # [1, T]
    # The last new token needs no position: it is not read.
    positions = getattr(model.config, "max_position_embeddings", None) or 1 << 62
    room = positions + 1 - ids.shape[1]
    if room < 1:
        raise UserError(
            f"the prompt has {ids.shape[1]:,} tokens, and the model {positions:,} positions",
            cure="cut it",
        )

    # The model's own folder decides none of the settings.
    end = tokenizer.eos_token_id
    model.generation_config = GenerationConfig(
        max_new_tokens=min(sampling.max_new_tokens, room),
        eos_token_id=end,
        pad_token_id=end,
        **_sampling_options(sampling),
    )
    # The same seed gives the same text.
    torch.manual_seed(sampling.seed)
    text = _Text(tokenizer, show)
    tokens = model.generate(
        ids,
        streamer=text,
        attention_mask=torch.ones_like(ids),
        logits_processor=[_check],
    )
    if tokens[0, -1] == end:
        ended = "end of text"
    elif room <= sampling.max_new_tokens:
        ended = "positions"
    else:
        ended = "max_new_tokens"
    return text.text[text.first :], ended


def _sampling_options(sampling: Sampling) -> dict[str, Any]:
    """Return transformers' options; greedy decoding has none."""
    if sampling.temperature <= _GREEDY:
        return {}
    return {
        "do_sample": True,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": 0,  # no limit
    }


def encode_prompt(tokenizer: PreTrainedTokenizerBase, prompt: str) -> list[int]:
    """Return the tokens of a prompt that begins a document; "<|endoftext|>" in it is plain text."""
    if not is_unicode(prompt):
        raise UserError("the prompt is not UTF-8 text")
    with tokenizing():
        encoding = tokenizer(prompt, add_special_tokens=False, split_special_tokens=True)
    ids = begin_tokens(tokenizer) + encoding["input_ids"]
    # A model needs at least one token to begin with.
    if ids:
        return ids
    if tokenizer.eos_token_id is None:
        raise UserError(
            "the prompt is empty, and the tokenizer has no end of text", cure="give text"
        )
    return [tokenizer.eos_token_id]


def _check(ids: Tensor, logits: Tensor) -> Tensor:
    """Return the logits [1, V]. Raises UserError if they are not numbers."""
    if not logits.isfinite().all():
        raise UserError(
            "the model's logits are no numbers: it diverged", cure="give another checkpoint"
        )
    return logits


class _Text(BaseStreamer):
    """Incremental decoding of what `generate` streams; holds back incomplete characters."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, show: Callable[[str], object]) -> None:
        self.tokenizer = tokenizer
        self.show = show
        self.ids: list[int] = []  # the last of the prompt, then all new ones
        self.text = ""  # of these
        self.first = 0  # characters of the prompt's tokens in `text`
        self.shown = 0  # characters of `text` that need not be shown any more

    def put(self, value: Tensor) -> None:
        """Receive the prompt [1, T], then each new token [1]."""
        self.ids += value.flatten()[-_CONTEXT:].tolist()
        self.text = self.tokenizer.decode(
            self.ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        # A character may take several tokens: until it is complete it decodes as U+FFFD.
        is_prompt = value.dim() > 1
        if is_prompt:
            self.first = len(self.text)
            self.shown = self.first
        elif not self.text.endswith("\ufffd"):
            self.end()

    def end(self) -> None:
        """Show what is new."""
        self.show(self.text[self.shown :])
        self.shown = len(self.text)

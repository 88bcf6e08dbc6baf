"""Continuations of held-out text that are printed at validations, the same with every layout."""

import functools
import json
import logging
import random
from typing import Any

import torch
from determined import pytorch
from torch import Tensor
from torch.distributed.tensor import DTensor

from detalbert.engine.rows import to_device
from lm.packed import CausalRow, hidden_states, pack
from lm.windows import LmWindows

PROMPT, NEW = 16, 24  # tokens of each, at most
log = logging.getLogger(__name__)


class Samples(pytorch.PyTorchCallback):
    """Callback that prints what the model of `trial`, an LmTrial, makes of `samples` prompts."""

    def __init__(self, trial: Any) -> None:
        self.trial, hparams = trial, trial.hparams
        draw = random.Random(hparams.known_seed), hparams.samples, hparams.max_seq_length // 2
        self.prompts = draw_prompts(trial.data.validation, *draw)
        self.new = min(NEW, hparams.max_seq_length - max(map(len, self.prompts)))

    def on_validation_end(self, metrics: dict[str, Any]) -> None:
        """Generate on all ranks, which each have a shard of the model; print on rank 0."""
        decode = functools.partial(self.trial.data.tokenizer.decode, skip_special_tokens=True)
        made = continue_greedily(self.trial.model, self.prompts, self.new)
        for prompt, text in zip(self.prompts, made, strict=True):
            parts = decode(prompt), decode(text[len(prompt) :])
            if self.trial.rank == 0:
                log.info("sample: %s -> %s", *(json.dumps(p, ensure_ascii=False) for p in parts))


def draw_prompts(
    windows: LmWindows, draw: random.Random, count: int, longest: int
) -> list[Tensor]:
    """Return the beginnings of the longest segments of `count` windows, int64 [tokens] each."""
    chosen = set(draw.sample(range(len(windows)), min(count, len(windows))))
    found = [windows[place] for i, place in enumerate(windows.in_order()) if i in chosen]
    segments = [max(tokens.split(lengths.tolist()), key=len) for tokens, lengths in found]
    return [segment[: min(PROMPT, longest)] for segment in segments]


@torch.no_grad()
def continue_greedily(model: Any, texts: list[Tensor], count: int) -> list[Tensor]:
    """Return `texts`, each with its `count` likeliest next tokens, one after the other. Collective:
    as many forwards on all ranks.
    """
    was_training, scores = model.training, model.forward
    model.eval()
    model.forward = functools.partial(_next_tokens, model)
    for _ in range(count):
        row = pack([(torch.cat([t, t[:1]]), torch.tensor([len(t) + 1])) for t in texts])
        found = model(to_device(row, model.device)).cpu()
        texts = [torch.cat(pair) for pair in zip(texts, found.split(1), strict=True)]
    model.forward = scores
    model.reshard()
    model.train(was_training)
    return texts


def _next_tokens(model: Any, row: CausalRow) -> Tensor:
    """Return the likeliest token after each segment of `row`, int64 [n]."""
    last = hidden_states(model, row)[row["cu_seqlens"][1:].long() - 1]  # [n, hidden]
    weight = model.get_output_embeddings().weight
    weight = weight.full_tensor() if isinstance(weight, DTensor) else weight  # [V, hidden]
    return (last @ weight.t()).float().argmax(1)

"""Continuations of held-out text that are printed at validations, the same with every layout."""

import json
from functools import partial
from typing import Any

import numpy as np
import torch
from determined import pytorch
from torch import Tensor
from torch.distributed.tensor import DTensor

from detalbert.engine.rows import to_device
from lm.packed import CausalRow, hidden_states, pack

PROMPT, NEW = 16, 24  # tokens of each, at most


class Samples(pytorch.PyTorchCallback):
    """Callback that prints what the model of an `LmTrial` makes of `samples` prompts: beginnings of
    the longest document segments of held-out windows.
    """

    def __init__(self, trial: Any) -> None:
        self.trial, windows, length = trial, trial.data.validation, trial.hparams.max_seq_length
        places = np.concatenate(windows.draw(trial.hparams.samples))
        found = [windows[place] for place in places]
        segments = (max(tokens.split(lengths.tolist()), key=len) for tokens, lengths in found)
        self.prompts = [segment[: min(PROMPT, length // 2)] for segment in segments]
        self.new = min(NEW, length - length // 2)

    def on_validation_end(self, metrics: dict[str, Any]) -> None:
        """Generate on all ranks, which each have a shard of the model; print on rank 0."""
        decode = partial(self.trial.data.tokenizer.decode, skip_special_tokens=True)
        made = continue_greedily(self.trial.model, self.prompts, self.new)
        for prompt, text in zip(self.prompts, made, strict=True):
            parts = (decode(tokens) for tokens in (prompt, text[len(prompt) :]))
            said = " -> ".join(json.dumps(part, ensure_ascii=False) for part in parts)
            self.trial.progress.say(f"sample: {said}")


@torch.no_grad()
def continue_greedily(model: Any, texts: list[Tensor], count: int) -> list[Tensor]:
    """Return `texts`, int64 [tokens] each, with their `count` likeliest next tokens. Collective.
    Every forward has the places of all new tokens, so that the model is compiled for one length.
    """
    was_training, scores = model.training, model.forward
    model.eval()
    model.forward = partial(_next_tokens, model)
    made = [torch.cat([text, text.new_zeros(count + 1)]) for text in texts]
    for new in range(count):
        row = to_device(pack([(text, torch.tensor([len(text)])) for text in made]), model.device)
        likeliest = model(row).cpu().split([len(text) - 1 for text in made])
        for text, begun, found in zip(made, texts, likeliest, strict=True):
            text[len(begun) + new] = found[len(begun) + new - 1]
    model.forward = scores
    model.reshard()
    model.train(was_training)
    return [text[:-1] for text in made]


def _next_tokens(model: Any, row: CausalRow) -> Tensor:
    """Return the likeliest token after each of `row`, int64 [T]."""
    weight = model.get_output_embeddings().weight
    weight = weight.full_tensor() if isinstance(weight, DTensor) else weight  # [V, hidden]
    return (hidden_states(model, row) @ weight.t()).float().argmax(1)

"""Small encoders of several kinds from random weights, rows for them, and compilers to plant."""

import copy

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForQuestionAnswering

from detalbert.engine import attention, kernel
from detalbert.engine.attention import PACKED
from detalbert.engine.forward import Forward

LENGTHS = [37, 9, 5, 21, 1, 30]  # 5 is [CLS] q [SEP] c [SEP]
SHAPE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
    "intermediate_size": 64,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
DISTILBERT = {
    "dim": 32,
    "n_layers": 2,
    "n_heads": 4,
    "hidden_dim": 64,
    "vocab_size": 100,
    "initializer_range": 0.2,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "qa_dropout": 0.0,
}
MODELS = {
    "albert": {**SHAPE, "embedding_size": 16, "pad_token_id": 0},
    "bert": {**SHAPE, "pad_token_id": 0},
    "roberta": {**SHAPE, "pad_token_id": 1, "type_vocab_size": 1},
    "electra": {**SHAPE, "embedding_size": 16, "pad_token_id": 0},
    "distilbert": {**DISTILBERT, "pad_token_id": 0},
}


def make_model(name="albert", implementation=PACKED, seed=0, **keys):
    """Return one of MODELS with other config keys, in training mode."""
    torch.manual_seed(seed)
    values = {**copy.deepcopy(MODELS[name]), **keys}
    config = AutoConfig.for_model(name, **values)
    model = AutoModelForQuestionAnswering.from_config(config, attn_implementation=implementation)
    for parameter in model.parameters():  # biases too, or a lost one would not be seen
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, parameter.mean().item(), 0.1)
    return model.train()


def make_row(lengths, seed=0):
    """Return windows of these lengths: random tokens, two segments, an answer in each."""
    generator = torch.Generator().manual_seed(seed)
    zeros = torch.zeros(len(lengths), dtype=torch.int64)
    positions = [torch.arange(length) for length in lengths]
    second = [position >= len(position) // 2 for position in positions]
    return {
        "input_ids": torch.randint(5, 100, (sum(lengths),), generator=generator),
        "token_type_ids": torch.cat(second).long(),
        "position_ids": torch.cat(positions),
        "cu_seqlens": torch.tensor([0, *lengths]).cumsum(0).int(),
        "max_length": max(lengths),
        "windows": torch.arange(len(lengths)),
        "start_positions": torch.tensor([length // 3 for length in lengths]),
        "end_positions": torch.tensor([length - 1 - length // 4 for length in lengths]),
        "context_start": zeros,
        "context_end": zeros + torch.tensor(lengths),
        "null_positions": zeros,
    }


def compile_with(backend, monkeypatch):
    """Have `nn.Module.compile` use `backend`."""

    def compiled(layer, **how):
        layer._compiled_call_impl = torch.compile(layer._call_impl, backend=backend, **how)

    monkeypatch.setattr(nn.Module, "compile", compiled)


def broken_compiler(graph, inputs):
    raise RuntimeError("Failed to find C compiler.")


def use_kernel(monkeypatch):
    """Have attention use the flash kernel as on a GPU, by a stand-in that keeps its contract."""
    monkeypatch.setattr(attention, "has_kernel", lambda device: True)
    monkeypatch.setattr(kernel, "DTYPES", (torch.float32,))
    monkeypatch.setattr(kernel, "varlen_attn", _kernel)


def _kernel(
    q, k, v, cu_seq_q, cu_seq_k, max_q, max_k, scale=None, window_size=None, enable_gqa=False
):
    """Compute what torch's varlen_attn documents, by its own operators: [T, heads, d] each."""
    groups = q.shape[1] // k.shape[1]
    k = k.repeat_interleave(groups, dim=1)
    v = v.repeat_interleave(groups, dim=1)
    token = torch.arange(len(q))
    window = torch.searchsorted(cu_seq_q[1:].long(), token, right=True)
    hidden = window[:, None] != window[None]
    if window_size == (-1, 0):  # causal
        hidden |= token[:, None] < token[None]
    scores = torch.einsum("qhd,khd->hqk", q, k) * (scale or q.shape[-1] ** -0.5)
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, v)


def assert_runs_uncompiled(forward, log):
    """Assert that `forward` runs plain layers of `make_model()`, and that `log` says so."""
    assert "layers run uncompiled" in log
    assert "C compiler" in log
    row = make_row([12, 20])
    plain = Forward(make_model(), "fp32", forward.device)
    logits = torch.stack(forward(row))
    torch.testing.assert_close(logits, torch.stack(plain(row)), rtol=1e-5, atol=1e-5)

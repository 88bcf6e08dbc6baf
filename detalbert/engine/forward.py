"""Execution of a model: precision, compiled layers, the row lengths they run on, losses and spans.

Compiled code is made for rows of any length, on a dummy row before the first step. Its price is a
padding of every row to a multiple of 64 tokens: less than 1 % of the work. Losses and spans are
taken over a grid of windows, which only logits are padded to: a few bytes per token, where a padded
batch would run the whole model on padding.
"""

import contextlib
import logging
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx.experimental import _config
from transformers.activations import GELUTanh, NewGELUActivation

from detalbert.engine.cpu import CpuDropout, CpuGelu, keep_freed_memory
from detalbert.engine.inputs import is_padded, read_spans
from detalbert.engine.precision import StepLinear, convert_layers
from detalbert.engine.rows import AnyRow, ReadLogits, Row, SpanRow, SquadRow, dummy_row, to_device
from detalbert.errors import UserError
from detalbert.progress import waiting
from detalbert.settings.hparams import HParams
from detalbert.squad.decoding import Candidates, best_spans
from detalbert.squad.windows import window_grid

ROW_MULTIPLE = 64  # tokens: compiled code takes few kinds of row, with less than 1 % of padding
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Forward:
    """Runs packed rows through a transformers encoder; `forward(row)` returns the result of
    `read_logits`.

    Layers are compiled on a dummy row (`compile_layers`), never on the data: so the code depends
    only on config and machine, which an exact restart needs.

    Args:
        model: on `device`, float32, packed or padded (see inputs.py); changed in place.
        precision: auto, fp32, bf16 or fp16.
        compiled: compile the layers; default: of packed models on CUDA GPUs from Volta on.
        read_logits: calls the model and its heads; default: start and end logits [T]. Must accept
            `dummy_row`.
    """

    def __init__(
        self,
        model: nn.Module,
        precision: str,
        device: torch.device,
        compiled: bool | None = None,
        read_logits: ReadLogits = read_spans,
    ) -> None:
        self.model = model
        self.device = device
        self.padded = is_padded(model)  # its rows hold windows of like lengths
        self.read_logits = read_logits
        self.dtype = resolve_precision(precision, device)
        self.required = bool(compiled)
        self.layers: list[nn.Module] = []  # those that are compiled
        self.multiple = 1  # tokens of a row, after padding
        self.linears: list[StepLinear] = []  # those with a half-precision copy

        # Converted before they are compiled: the code is that of the converted layers.
        layers = encoder_layers(model)
        if self.dtype is not torch.float32:
            self.linears = convert_layers(layers, self.dtype)
        if compiled is None:
            # Fast code is made for GPUs from Volta on; padded rows were not tried.
            volta = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (7, 0)
            compiled = volta and not self.padded
        if compiled:
            self.layers = layers
            self.multiple = ROW_MULTIPLE
        use_fast_functions(model, by_torch=compiled or device.type != "cpu")
        for layer in self.layers:
            layer.compile(dynamic=True)

    def refresh(self) -> None:
        """Copy weights that have changed; call before the first row of a step or a validation."""
        for linear in self.linears:
            linear.refresh()

    def __call__(self, row: Row) -> tuple[Tensor, ...]:
        """Return the result of `read_logits` for a row on the device, float32 or half precision."""
        tokens = len(row["input_ids"])
        half = self.dtype is not torch.float32
        with torch.autocast(self.device.type, self.dtype, enabled=half):
            return self.read_logits(self.model, pad_row(row, self.multiple), tokens)

    def zero_loss_backward(self, row: Row) -> None:
        """Run forward and backward with the loss times zero, to compile or to measure memory."""
        total = sum(output.sum() for output in self(row))
        cast(Tensor, total * 0).backward()

    def compile_layers(self, tokens: int, longest: int, training: bool = True) -> None:
        """Compile on a dummy row for training and validation, or for validation alone.

        If compilation fails, logs a warning and runs uncompiled.

        Args:
            tokens: of the row.
            longest: tokens of its windows.
            training: whether to compile for training, too.

        Raises:
            UserError: compilation for training fails, and the config sets `compile: true`.
        """
        if not self.layers:
            return
        was_training = self.model.training
        # Two windows at least: torch.compile takes a size of one for a constant.
        row = dummy_row(tokens, longest=min(longest, tokens - 1), device=self.device)
        try:
            with waiting("compiling the layers"), for_any_sizes():
                self._run_dummy(row, training)
        except Exception as error:  # whatever the compiler and the tools behind it raise
            if self.required and training:
                raise not_compiled(error) from None
            logging.warning(
                "layers run uncompiled, as torch.compile fails here: %s", _reason(error)
            )
            self.run_uncompiled(self.multiple)
        self.model.train(was_training)

    def run_uncompiled(self, multiple: int) -> None:
        """Run the layers uncompiled from now on, on rows padded to a multiple of `multiple`."""
        for layer in self.layers:
            layer._compiled_call_impl = None  # private: nn.Module has no way back
        self.layers = []
        self.multiple = multiple

    def _run_dummy(self, row: Row, training: bool) -> None:
        # Each mode is code of its own.
        self.refresh()
        if training:
            self.model.train()
            self.zero_loss_backward(row)
        self.model.eval()
        with torch.no_grad():
            self(row)


def resolve_precision(precision: str, device: torch.device) -> torch.dtype:
    """Return the dtype to compute in. Raises UserError if the device does not support it. "auto" is
    bf16 on Ampere and newer, fp16 on older NVIDIA GPUs and fp32 on a CPU.
    """
    on_a_gpu = device.type == "cuda"
    ampere = on_a_gpu and torch.cuda.get_device_capability(device) >= (8, 0)
    if precision == "auto":
        if not on_a_gpu:
            return torch.float32
        return torch.bfloat16 if ampere else torch.float16
    if precision == "fp16" and not on_a_gpu:
        raise UserError(
            "fp16 needs a GPU", key="hyperparameters.precision", cure="use auto, bf16 or fp32"
        )
    if precision == "bf16" and on_a_gpu and not ampere:
        raise UserError(
            "this GPU has no bf16", key="hyperparameters.precision", cure="use auto or fp16"
        )
    return _DTYPES[precision]


def for_any_sizes() -> contextlib.AbstractContextManager[object]:
    """Compile what runs within for any sizes, also if sizes of the dummy row happen to be equal.

    torch takes equal sizes for one: code for a row with as many tokens as the model has hidden
    units would be for that length alone, and every row of the data would be compiled anew.
    """
    return _config.patch(use_duck_shape=False)  # type: ignore[attr-defined]  # put there later


def not_compiled(error: Exception) -> UserError:
    """Return the error for layers that do not compile."""
    return UserError(
        f"the layers do not compile here: {_reason(error)}",
        key="hyperparameters.compile",
        cure="set it to false, or take an image with a C compiler",
    )


def _reason(error: Exception) -> str:
    first_lines = str(error).split("\n")[:2]
    return " ".join(first_lines) or type(error).__name__


def encoder_layers(model: nn.Module) -> list[nn.Module]:
    """Return the encoder's distinct blocks, those in its outermost module lists: 1 for ALBERT."""
    layers: list[nn.Module] = []
    for child in model.children():
        if isinstance(child, nn.ModuleList):
            layers += child
        else:
            layers += encoder_layers(child)
    return layers


def use_fast_functions(model: nn.Module, by_torch: bool) -> None:
    """Replace transformers' GELUs with tanh, eight kernels each, by torch's; unless `by_torch`, by
    those of cpu.py, and each dropout, too.
    """
    for module in model.modules():
        for name, child in module.named_children():
            if isinstance(child, (GELUTanh, NewGELUActivation)):
                setattr(module, name, nn.GELU(approximate="tanh") if by_torch else CpuGelu())
            elif type(child) is nn.Dropout and not by_torch:
                child.__class__ = CpuDropout
    if not by_torch:
        keep_freed_memory()


def pad_row(row: AnyRow, multiple: int) -> AnyRow:
    """Return `row` with windows of zeros added, no longer than its longest or 64 tokens; its tokens
    are then a multiple of `multiple`.
    """
    tokens = len(row["input_ids"])
    missing = -tokens % multiple
    if not missing:
        return row
    padded: dict[str, Any] = dict(row)
    for name in {"input_ids", "token_type_ids", "position_ids"} & row.keys():
        padded[name] = F.pad(row[name], (0, missing))

    # The added tokens are cut to windows from the end: the first of them may be shorter.
    bounds = row["cu_seqlens"]
    longest = max(row["max_length"], ROW_MULTIPLE)
    ends = torch.arange(
        tokens + missing, tokens, -longest, dtype=bounds.dtype, device=bounds.device
    )
    padded["cu_seqlens"] = torch.cat((bounds, ends.flip(0)))
    padded["max_length"] = max(row["max_length"], min(missing, longest))
    return cast(AnyRow, padded)


def evaluate_row(
    forward: Forward, row: SquadRow, hparams: HParams, labelled: bool = True
) -> tuple[Candidates, Tensor]:
    """Return the best spans of all n windows, and their losses, fp32 [n]; [0] if not `labelled`."""
    row = to_device(row, forward.device)
    start_logits, end_logits = forward(row)
    if labelled:
        losses = row_losses(row, start_logits, end_logits)
    else:
        losses = start_logits.new_empty(0)
    spans = best_spans(
        start_logits, end_logits, row, hparams.n_best_size, hparams.max_answer_length
    )
    return spans, losses


def row_losses(row: SpanRow, start_logits: Tensor, end_logits: Tensor) -> Tensor:
    """Return the mean of start and end cross-entropy in nats per window, over its tokens, fp32 [n].

    Equal to transformers' span loss of each window alone, without padding; 0 if the positions are
    -100. Logits are [T], any float type. Does not block on the device.
    """
    losses = []  # [n] each
    for logits, target in (
        (start_logits, row["start_positions"]),
        (end_logits, row["end_positions"]),
    ):
        # In float32: a sum over hundreds of tokens in half precision would lose the last digits.
        grid = window_grid(
            logits.float(), cu_seqlens=row["cu_seqlens"], max_length=row["max_length"]
        )
        losses.append(F.cross_entropy(grid, target, reduction="none"))
    return (losses[0] + losses[1]) / 2

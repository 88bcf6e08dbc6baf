"""How a model runs here: its precision, its compiled layers, and the row lengths they run on."""

from typing import Any, Dict, List, Mapping, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.activations import NewGELUActivation

from linears import StepLinear, take_over_layers
from modeling import resolve_precision
from packing import answer_logits

# Compiled code takes rows of any multiple of this: few kinds of row, and less than 1 % of padding
# on rows of some thousand tokens. Also a multiple of the 16 that fp8 products want.
ROW_MULTIPLE = 64


class Forward:
    """Runs packed rows through a library encoder: `forward(row)` gives start and end logits [T].

    In half precision the weights of the layers are copied once a step (`linears`), and everything
    else is autocast. Compiled layers are compiled once for rows of all lengths, on a made-up row
    (`compile_layers`), and never by the data: which code runs is then a function of the
    config and the machine, as an exact restart needs.

    Args:
        model: on `device`, float32, made with `attn_implementation=PACKED`; changed in place.
        precision: auto, fp32, bf16, fp16 or fp8.
        compiled: compile the layers; default: on CUDA GPUs from Volta on.
    """

    def __init__(
        self,
        model: nn.Module,
        precision: str,
        device: torch.device,
        compiled: Optional[bool] = None,
    ) -> None:
        self.model, self.device = model, device
        self.dtype = resolve_precision(precision, device)
        fp8 = precision == "fp8"
        use_fused_gelu(model)
        layers = encoder_layers(model)
        half = self.dtype is not torch.float32
        self.linears: List[StepLinear] = take_over_layers(layers, self.dtype, fp8) if half else []
        if compiled is None:
            compiled = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (7, 0)
        self.compiled = compiled
        self.multiple = ROW_MULTIPLE if compiled or fp8 else 1
        if compiled:
            for layer in layers:
                layer.compile(dynamic=True)

    def refresh(self) -> None:
        """Copy the weights that have changed; before the first row of a step or a validation."""
        for linear in self.linears:
            linear.refresh()

    def __call__(self, row: Mapping[str, Any]) -> Tuple[Tensor, Tensor]:
        """Logits of a row on the device, float32 or half precision; see packing.answer_logits."""
        tokens = len(row["input_ids"])
        half = self.dtype is not torch.float32
        with torch.autocast(self.device.type, self.dtype, enabled=half):
            start, end = answer_logits(self.model, pad_row(row, self.multiple))
        return start[:tokens], end[:tokens]

    def compile_layers(self, tokens: int, longest: int) -> None:
        """Compile for training and validation on a row of `tokens` tokens, windows of `longest`.

        Forward and backward, then forward alone. Gradients are left zero.
        """
        if not self.compiled:
            return
        row = made_up_row(tokens, longest, self.device)
        self.refresh()
        training = self.model.training
        self.model.train()
        start, end = self(row)
        ((start.sum() + end.sum()) * 0).backward()
        self.model.eval()
        with torch.no_grad():
            self(row)
        self.model.train(training)


def encoder_layers(model: nn.Module) -> List[nn.Module]:
    """The encoder's repeated blocks, each once: what its outermost module lists hold.

    One group of one layer for ALBERT, which uses it 12 times; 12 layers for BERT.
    """
    lists: List[nn.Module] = []
    for child in model.children():
        lists += list(child) if isinstance(child, nn.ModuleList) else encoder_layers(child)
    return lists


def use_fused_gelu(model: nn.Module) -> None:
    """Put torch's one-kernel tanh GELU where the library spells the same formula out in eight."""
    for module in model.modules():
        for name, child in module.named_children():
            if isinstance(child, NewGELUActivation):
                setattr(module, name, nn.GELU(approximate="tanh"))


def pad_row(row: Mapping[str, Any], multiple: int) -> Mapping[str, Any]:
    """`row` with one more window of zeros, so that its tokens are a multiple of `multiple`."""
    tokens = len(row["input_ids"])
    missing = -tokens % multiple
    if not missing:
        return row
    names = ("input_ids", "token_type_ids", "position_ids")
    padded: Dict[str, Any] = {name: F.pad(row[name], (0, missing)) for name in names}
    bounds = row["cu_seqlens"]
    padded["cu_seqlens"] = torch.cat((bounds, bounds.new_full((1,), tokens + missing)))
    padded["max_length"] = max(row["max_length"], missing)
    return padded


def made_up_row(tokens: int, longest: int, device: torch.device) -> Dict[str, Any]:
    """A packed row of `tokens` zeros in windows of `longest` tokens and what is left over."""
    bounds = [*range(0, tokens, longest), tokens]
    position = torch.arange(tokens, device=device)
    zeros = torch.zeros(tokens, dtype=torch.int64, device=device)
    return {
        "input_ids": zeros,
        "token_type_ids": zeros,
        "position_ids": position % longest,
        "cu_seqlens": torch.tensor(bounds, dtype=torch.int32, device=device),
        "max_length": min(longest, tokens),
    }

"""Weights with numbers that are not finite are neither loaded nor saved."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from detalbert.engine.gradients import local_part
from detalbert.errors import UserError

LARGEST = 1e18  # of a weight or a logit: float32 holds its square, which norms take, up to 1.8e19


def has_finite_weights(model: nn.Module) -> bool:
    """Return whether all weights of this rank are finite; blocks on the device."""
    for parameter in model.parameters():
        shard = local_part(parameter.detach())
        if not _peak(shard) < math.inf:  # NaN is not
            return False
    return True


def is_usable(tensor: Tensor) -> bool:
    """Return whether all numbers of a tensor are finite, and at most LARGEST."""
    return _peak(tensor) <= LARGEST


def check_finite_weights(place: str, weights: Iterable[tuple[str, Tensor]]) -> None:
    """Raise UserError for the first of the named weights, from the file or folder `place`, that is
    not usable.
    """
    for name, weight in weights:
        if not is_usable(local_part(weight.detach())):
            raise UserError(
                f"its weight {name!r} is not finite, or too large for float32",
                key=place,
                cure="give other weights",
            )


def _peak(tensor: Tensor) -> float:
    """Return the largest magnitude in a tensor, NaN if it has one. Makes no copy of the tensor;
    blocks on the device.
    """
    if tensor.numel() == 0 or not tensor.is_floating_point():
        return 0.0
    low, high = torch.aminmax(tensor)  # both NaN if one number is; eight times as fast as isfinite
    return max(-low.item(), high.item())

"""Orthogonalized matrices, for Muon: of one process, or sharded over ranks."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor


def orthogonal(matrices: list[Any]) -> Iterator[torch.Tensor]:
    """Yield `orthogonalize` of each unsharded matrix, bitwise identical on all ranks. Collective."""
    ranks, rank = (dist.get_world_size(), dist.get_rank()) if dist.is_initialized() else (1, 0)
    for start in range(0, len(matrices), ranks):
        some = [matrix.bfloat16() for matrix in matrices[start : start + ranks]]
        whole = [m.full_tensor() if isinstance(m, DTensor) else m for m in some]
        if rank < len(whole):
            whole[rank] = orthogonalize(whole[rank])
        for owner, matrix in enumerate(whole):
            if ranks > 1:
                dist.broadcast(matrix, owner)
            yield matrix


def orthogonalize(matrix: torch.Tensor) -> torch.Tensor:
    """Return a bfloat16 matrix [m, n] with its singular values near 1, by five iterations of Newton
    and Schulz: s -> 3.4445 s - 4.775 s^3 + 2.0315 s^5.
    """
    flat = matrix.T if len(matrix) > matrix.shape[1] else matrix
    flat = flat / flat.norm().clamp(min=1e-7)
    for _ in range(5):
        square = flat @ flat.T
        square = torch.addmm(square, square, square, beta=-4.775, alpha=2.0315)
        flat = torch.addmm(flat, square, flat, beta=3.4445)
    return flat.T.contiguous() if len(matrix) > matrix.shape[1] else flat

"""Randomness as a function of (seed, step, rank), and kernels that add up in one order."""

import hashlib

import torch


def seed_step(seed: int, step: int, rank: int) -> None:
    """Make every random draw of this optimizer step a function of (seed, step, rank).

    Determined starts all ranks with one seed, so they would draw the same dropout masks, and its
    checkpoints hold rank 0's generator state alone.
    """
    digest = hashlib.blake2b(f"{seed}/{step}/{rank}".encode(), digest_size=8).digest()
    torch.manual_seed(int.from_bytes(digest, "little"))


def choose_exact_kernels() -> None:
    """Have CUDA add up in one order: by default gradients of attention and embeddings do not.

    cuBLAS also wants CUBLAS_WORKSPACE_CONFIG, which train.py sets.
    """
    if torch.cuda.is_available():
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # it would cost, and buy no bit

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
    """Have every kernel take the same code path each time; once, before a process computes.

    On a CPU torch's sqrt, exp, tanh, erf and log of large tensors run in MKL's vector math, in many
    threads. Its first call in a process chooses the code path by the processor, and that is a race:
    about 1 process in 100 took another path for a half of one tensor, in the first rectified step
    of RAdam (step 6), and got it 1 ulp different. A first call so small that it runs on this thread
    alone chooses for all. Processes forked later inherit the choice.

    CUDA by default adds up the gradients of attention and embeddings in any order. cuBLAS also
    wants CUBLAS_WORKSPACE_CONFIG, which train.py sets.
    """
    torch.sqrt(torch.ones(8))
    if torch.cuda.is_available():
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # it would cost, and buy no bit

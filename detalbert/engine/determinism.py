"""Kernels with a fixed order of summation, so that a restart repeats every bit; the price is the
speed of those that sum in any order.
"""

import os

import torch


def choose_exact_kernels() -> None:
    """Make every kernel take the same code path each time; call once, before a process computes.

    On a CPU the first call of MKL's vector math (sqrt, exp, tanh, erf, log) in a process selects
    the code path, with a race: about 1 process in 100 took another one for half of one tensor, a
    difference of 1 ulp. A first call on a single thread, for it is small, selects it for all.

    CUDA by default sums the gradients of attention and embeddings in any order. With `warn_only`
    two runs of one config on an H100 differed by step 5.

    cuBLAS keeps its order if each stream has its own workspace, which torch sets up; versions
    before 2.11 require the variable all the same. It is costly: on an H100 a step of albert-base in
    4 micro-batches took 266 ms with it and 177 ms without.
    """
    torch.sqrt(torch.ones(8))
    if torch.cuda.is_available():
        major, minor, *_ = torch.__version__.split(".")
        if (int(major), int(minor)) < (2, 11):
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        # Filling costs time and does not affect results.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # a property
        _compile_exactly()


def _compile_exactly() -> None:
    """Make torch.compile generate the same code each time, for rows of every length.

    It would time kernels with different orders of summation. And it would fuse two sums of a
    layer's norm for long rows only: shorter rows are then compiled when the first one comes, for
    its length, and after a restart the first one differs.
    """
    from torch._inductor import config  # documented there only; imported here: it is slow

    if hasattr(config, "deterministic"):  # torch 2.9
        config.deterministic = True
    if hasattr(config.triton, "mix_order_reduction"):  # torch 2.10
        config.triton.mix_order_reduction = False

"""Randomness as a function of (seed, step, rank), and kernels that add up in one order."""

import hashlib
import os

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

    CUDA by default adds up the gradients of attention and embeddings in any order. `warn_only`
    would not do: with it flash attention stays as it is and only says so. On an H100 two runs of
    one config then differed by step 5. So an operation without an exact kernel is an error.

    cuBLAS keeps its order where each stream has its own workspace. torch gives it one; versions
    before 2.11 ask for the variable all the same. With it cuBLAS forgets which kernel it chose for
    a product, and looks for 0.07 to 0.2 ms each time: on an H100 a step of albert-base in 4
    micro-batches took 266 ms with it and 177 ms without.
    """
    torch.sqrt(torch.ones(8))
    if torch.cuda.is_available():
        if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 11):
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # a property; it would cost, and buy no bit
        _compile_exactly()


def _compile_exactly() -> None:
    """Have torch.compile make the same code each time, for rows of every length.

    Two of its ways depend on more than the model and the GPU. It times kernels that add up in
    different orders, and takes the faster. And it joins two sums of a layer's norm for long rows
    alone (from 8,192 tokens, where the layer is 4,096 wide): shorter rows are then compiled when
    the first of them comes, and as suits that one, which after a restart is another.
    """
    from torch._inductor import config  # documented there only; imported here: it is slow

    for owner, name, value in (
        (config, "deterministic", True),  # torch 2.9
        (config.triton, "mix_order_reduction", False),  # torch 2.10
    ):
        if hasattr(owner, name):
            setattr(owner, name, value)

"""Kernels that add up in one order; the first call of the CPU's vector math is a small one."""

import torch
import torch._inductor.config
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import predict
from tests.conftest import settings
from tests.fakes.runs import run


class VectorMath(TorchDispatchMode):
    NAMES = "acos asin atan cos erf erfc erfinv exp expm1 log log10 log1p log2 sin sqrt rsqrt tan"
    NAMES = {*NAMES.split(), "tanh", "_foreach_sqrt", "_foreach_exp", "_foreach_log"}

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, call, types, args=(), kwargs=None):
        name = call.overloadpacket.__name__.removesuffix("_")
        if name in self.NAMES:
            sizes = [leaf.numel() for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)]
            self.seen.append((name, max(sizes)))
        return call(*args, **(kwargs or {}))


def test_training_and_prediction_begin_with_a_small_one(tiny_config, tmp_path, finished):
    """A first call on one thread is no race: without it 3 to 11 of 600 processes took another
    square root on an Intel Xeon, none on an AMD EPYC."""
    with VectorMath() as training:
        assert run(tiny_config, tmp_path, *settings(max_steps=1, optimizer="adamw")) == 0
    question = ["--question", "Who?", "--context", "Ann is here."]
    with VectorMath() as prediction:  # it computes in another thread, later
        assert predict.main(["--model", str(finished / "out"), *question]) == 0
    for calls in (training, prediction):
        name, numbers = calls.seen[0]
        assert name == "sqrt"
        assert numbers <= 64
    assert training.seen[1:]  # the program itself calls it, too

"""What a step does on a GPU, as far as it shows without one: torch's fake tensors on `cuda`.

Every operation has an implementation that knows CUDA's shapes and types, nothing in a step waits
for the device, and the numbers have the types that `precision` says. torch's autograd asks the
driver for a stream of a tensor on CUDA. So to autograd the tensors here are on "meta", and to
everybody else on CUDA. The language model is not here: FSDP refuses what is on "meta".
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import torch._dynamo  # before torch is patched: it looks at what it finds
import torch.nn.functional as F
from torch._subclasses import fake_tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from detalbert.engine.finite import FiniteSteps
from detalbert.engine.precision import resolve_precision
from tests.conftest import NO_DROPOUT, TINY, TINY_PRETRAINING
from tests.engine.trials import config_file, trial_of
from tests.fakes.runs import change

GPU = torch.device("cuda", 0)
CAPABILITIES = {(7, 0): torch.float16, (8, 0): torch.bfloat16, (9, 0): torch.bfloat16}
pytestmark = pytest.mark.skipif(torch.version.cuda is None, reason="torch is built without CUDA")


class Autocast(TorchFunctionMode):
    """Casts what autocast casts, of what the models here call."""

    PRODUCTS = (F.linear, torch.matmul, torch.bmm, F.scaled_dot_product_attention)
    EXACT = (F.layer_norm, F.cross_entropy, F.softmax, F.log_softmax, F.binary_cross_entropy)

    def __init__(self, half: torch.dtype) -> None:
        super().__init__()
        self.half = half

    def __torch_function__(
        self, func: Callable, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        def cast(x: Any) -> Any:
            floats = isinstance(x, torch.Tensor) and x.is_floating_point()
            return x.to(self.half if func in self.PRODUCTS else torch.float32) if floats else x

        if func in self.PRODUCTS or func in self.EXACT:
            args, kwargs = tree_map(cast, (args, kwargs))
        return func(*args, **(kwargs or {}))


class Watch(TorchDispatchMode):
    """Notes what reads the device back, and the types of matrix products and of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []
        self.products: set[torch.dtype] = set()
        self.attention: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = func.overloadpacket.__name__
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        on_gpu = any(x.device.type == "cuda" for x in given)
        if on_gpu and name in ("_local_scalar_dense", "nonzero", "masked_select", "unique"):
            self.waits.append(name)
            if name == "_local_scalar_dense":
                return 0.0  # nobody knows; torch's scaler takes it for "no infinity"
        out = func(*args, **kwargs)
        made = [x for x in tree_leaves(out) if isinstance(x, torch.Tensor)]
        in_the_background = name == "copy_" and args[2:] == (True,)  # to the host, non_blocking
        if on_gpu and any(x.device.type == "cpu" for x in made) and not in_the_background:
            self.waits.append(name)
        # Without `non_blocking` a copy to the device waits for all that is queued there.
        to_gpu = name == "_to_copy" and not on_gpu and any(x.device.type == "cuda" for x in made)
        if to_gpu and not kwargs.get("non_blocking"):
            self.waits.append("copy to the device")
        if on_gpu and name in ("mm", "addmm"):
            self.products.add(given[-1].dtype)
        if on_gpu and "attention" in name or "attn" in name:
            self.attention.add(name)
        return out


_dispatch = fake_tensor.FakeTensorMode.dispatch


def dispatch(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """As a fake mode's, but what torch's own C++ makes is on the GPU, and the host's is real."""
    kwargs = dict(kwargs or {})
    if kwargs.get("device") is not None and torch.device(kwargs["device"]).type == "meta":
        kwargs["device"] = GPU
    given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    to_gpu = kwargs.get("device") is not None and torch.device(kwargs["device"]) == GPU
    if not to_gpu and not any(isinstance(x, fake_tensor.FakeTensor) for x in given):
        return func(*args, **kwargs)

    def fake(x: Any) -> Any:
        real = isinstance(x, torch.Tensor) and not isinstance(x, fake_tensor.FakeTensor)
        return self.from_tensor(x) if real else x

    return _dispatch(self, func, types, *tree_map(fake, (args, kwargs)))


@contextlib.contextmanager
def gpu(capability: tuple[int, int], patch: pytest.MonkeyPatch) -> Iterator[Any]:
    make, tensor = torch.Tensor._make_subclass, torch.tensor

    def make_subclass(cls: type, data: Any, grad: bool = False, **how: Any) -> Any:
        if cls is fake_tensor.FakeTensor:
            how["dispatch_device"] = False
        return make(cls, data, grad, **how)

    def make_tensor(data: Any, device: Any = None, **how: Any) -> torch.Tensor:
        return tensor(data, **how).to(device)

    patch.setattr(fake_tensor.FakeTensorMode, "dispatch", dispatch)
    patch.setattr(torch.Tensor, "_make_subclass", staticmethod(make_subclass))
    on_cuda = property(lambda x: x.fake_device.type == "cuda")
    patch.setattr(fake_tensor.FakeTensor, "is_cuda", on_cuda, raising=False)
    patch.setattr(torch, "tensor", make_tensor)
    numbers = {torch.float32: np.float32, torch.int32: np.int32, torch.int64: np.int64}
    patch.setattr(fake_tensor.FakeTensor, "numpy", lambda x: np.zeros(x.shape, numbers[x.dtype]))
    facts = {"is_available": True, "device_count": 1, "current_device": 0}
    facts |= {"is_bf16_supported": capability >= (8, 0), "get_device_capability": capability}
    patch.setattr(torch.cuda, "Event", Mock)
    patch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    for name, value in facts.items():
        patch.setattr(torch.cuda, name, lambda *_, value=value, **__: value)
    half = CAPABILITIES[capability]
    chosen = {True: lambda: Autocast(half), False: contextlib.nullcontext}
    patch.setattr(torch, "autocast", lambda *_, enabled=True, **__: chosen[enabled]())
    with fake_tensor.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        yield mode


def move(trial: Any, mode: fake_tensor.FakeTensorMode, patch: pytest.MonkeyPatch) -> None:
    """Have a trial that was made on the CPU train on the GPU, by its own code."""
    patch.setattr(torch.__future__, "get_overwrite_module_params_on_conversion", lambda: True)
    trial.model._apply(lambda tensor: mode.from_tensor(tensor.detach()).to(GPU))
    for parameter in trial.model.parameters():
        parameter.grad = None
    context = trial.context
    context.device = GPU
    trial.dtype = resolve_precision(trial.hparams.precision, GPU)
    models, context.models, context.optimizers = context.models, [], []
    context._scaler = None
    scaler = torch.amp.GradScaler("cuda", enabled=trial.dtype is torch.float16)
    trial.scaler, context.models = context.wrap_scaler(scaler), models
    trial.max_tokens = trial.prepare_gradients()
    trial.finite = FiniteSteps(GPU)
    trial._prepare_optimizer(64)
    trial.optimizer_step = trial._build_step()


WORKLOADS = {"fine-tuning": TINY, "pretraining": TINY_PRETRAINING}


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_step_and_a_validation(
    workload: str, capability: Any, cache_dir: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    half = CAPABILITIES[capability]
    path = config_file(tmp_path, WORKLOADS[workload], cache_dir, compile=False)
    change(path, model_config=NO_DROPOUT)
    with contextlib.ExitStack() as stack:
        trial = stack.enter_context(trial_of(path))
        rows = next(iter(trial.build_training_data_loader()))
        held_out = next(iter(trial.build_validation_data_loader()))
        mode = stack.enter_context(gpu(capability, monkeypatch))
        with Watch():
            move(trial, mode, monkeypatch)
        with Watch() as step:
            trial.train_batch(rows, 0, 4)  # the fifth: the count of skipped steps is copied
        with Watch() as validation, torch.no_grad():
            trial.model.eval()
            trial.scores.reset()
            trial.evaluate_batch(held_out, 0)
        trained = [p for p in trial.model.parameters() if p.requires_grad]
    # torch's scaler asks whether there was an infinity, once a step.
    assert step.waits == (["_local_scalar_dense"] if half is torch.float16 else [])
    # Answers come back after each row; pretraining's sums stay on the device to the end.
    assert set(validation.waits) == ({"_to_copy"} if workload == "fine-tuning" else set())
    assert step.products == validation.products == {half}
    kernel = {"_varlen_attn", "_varlen_attn_backward"} if capability >= (8, 0) else set()
    assert step.attention == kernel and validation.attention == kernel - {"_varlen_attn_backward"}
    assert {p.dtype for p in trained} == {p.grad.dtype for p in trained} == {torch.float32}

"""What a step does on a GPU, as far as it shows without one: torch's fake tensors on `cuda`.

Every operation has an implementation that knows CUDA's shapes and types, nothing in a step waits
for the device, and the numbers have the types that `precision` says. torch's autograd asks the
driver for a stream of a tensor on CUDA. So to autograd the tensors here are on "meta", and to
everybody else on CUDA. FSDP refuses what is on "meta", and allocates by the driver: so the language
model is here unsharded, with weights in half precision as FSDP gathers them.
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
from torch import Tensor
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from detalbert.engine.precision import resolve_precision
from detalbert.engine.rows import to_device
from detalbert.engine.step import FiniteSteps
from lm.gradients import add_row, zero_sums
from lm.model import CausalLoss, empty_model
from lm.packed import pack
from tests.conftest import NO_DROPOUT, TINY, TINY_PRETRAINING
from tests.engine.trials import config_file, trial_of
from tests.fakes.runs import change
from tests.lm.ranks import tiny

GPU = torch.device("cuda", 0)
CAPABILITIES = {
    (7, 0): torch.float16,
    (8, 0): torch.bfloat16,
    (9, 0): torch.bfloat16,
    (10, 0): torch.bfloat16,
}
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
        kwargs = kwargs or {}
        if func in self.PRODUCTS:
            dtype = self.half
        elif func in self.EXACT:
            dtype = torch.float32
        else:
            return func(*args, **kwargs)

        def cast(value: Any) -> Any:
            is_float = isinstance(value, Tensor) and value.is_floating_point()
            return value.to(dtype) if is_float else value

        args, kwargs = tree_map(cast, (args, kwargs))
        return func(*args, **kwargs)


def tensors_in(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def is_on(device_type: str, tensors: list[Tensor]) -> bool:
    return any(tensor.device.type == device_type for tensor in tensors)


class Watch(TorchDispatchMode):
    """Notes what reads the device back, and the types of matrix products and of attention."""

    WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "unique")

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []
        self.products: set[torch.dtype] = set()
        self.attention: set[str] = set()
        self.calls: list[tuple[str, ...]] = []  # names and shapes of all calls on the GPU

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = func.overloadpacket.__name__
        inputs = tensors_in((args, kwargs))
        on_gpu = is_on("cuda", inputs)
        if on_gpu and name in self.WAITING:
            self.waits.append(name)
            if name == "_local_scalar_dense":
                return 0.0  # nobody knows; torch's scaler takes it for "no infinity"

        result = func(*args, **kwargs)
        outputs = tensors_in(result)
        if is_on("cuda", outputs):
            places = [f"{tensor.device.type}{list(tensor.shape)}" for tensor in inputs + outputs]
            self.calls.append((name, *places))
        in_the_background = name == "copy_" and args[2:] == (True,)  # to the host, non_blocking
        if on_gpu and is_on("cpu", outputs) and not in_the_background:
            self.waits.append(name)
        # Without `non_blocking` a copy to the device waits for all that is queued there.
        to_gpu = name == "_to_copy" and not on_gpu and is_on("cuda", outputs)
        if to_gpu and not kwargs.get("non_blocking"):
            self.waits.append("copy to the device")
        if on_gpu and name in ("mm", "addmm"):
            self.products.add(inputs[-1].dtype)
        if on_gpu and "attention" in name or "attn" in name:
            self.attention.add(name)
        return result


_dispatch = fake_tensor.FakeTensorMode.dispatch


def dispatch(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """As a fake mode's, but what torch's own C++ makes is on the GPU, and the host's is real."""
    kwargs = dict(kwargs or {})
    device = kwargs.get("device")
    if device is not None and torch.device(device).type == "meta":
        device = kwargs["device"] = GPU
    to_gpu = device is not None and torch.device(device) == GPU
    inputs = tensors_in((args, kwargs))
    if not to_gpu and not any(isinstance(tensor, FakeTensor) for tensor in inputs):
        return func(*args, **kwargs)

    def fake(value: Any) -> Any:
        is_real = isinstance(value, Tensor) and not isinstance(value, FakeTensor)
        return self.from_tensor(value) if is_real else value

    fake_args, fake_kwargs = tree_map(fake, (args, kwargs))
    return _dispatch(self, func, types, fake_args, fake_kwargs)


DTYPES = {torch.float32: np.float32, torch.int32: np.int32, torch.int64: np.int64}


def patch_tensors(patch: pytest.MonkeyPatch) -> None:
    """Have fake tensors be on CUDA to all but autograd."""
    make_subclass = Tensor._make_subclass
    make_tensor = torch.tensor

    def make_fake(cls: type, data: Any, grad: bool = False, **options: Any) -> Any:
        if cls is FakeTensor:
            options["dispatch_device"] = False
        return make_subclass(cls, data, grad, **options)

    def make_and_move(data: Any, device: Any = None, **options: Any) -> Tensor:
        return make_tensor(data, **options).to(device)

    def is_cuda(tensor: FakeTensor) -> bool:
        return tensor.fake_device.type == "cuda"

    def numpy(tensor: FakeTensor) -> np.ndarray:
        return np.zeros(tensor.shape, DTYPES[tensor.dtype])

    patch.setattr(fake_tensor.FakeTensorMode, "dispatch", dispatch)
    patch.setattr(Tensor, "_make_subclass", staticmethod(make_fake))
    patch.setattr(FakeTensor, "is_cuda", property(is_cuda), raising=False)
    patch.setattr(FakeTensor, "numpy", numpy)
    patch.setattr(torch, "tensor", make_and_move)
    patch.setattr(Tensor, "pin_memory", lambda tensor: tensor)


def patch_cuda(capability: tuple[int, int], patch: pytest.MonkeyPatch) -> None:
    """Have torch.cuda describe a GPU of this capability."""
    answers = {
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "is_bf16_supported": capability >= (8, 0),
        "get_device_capability": capability,
    }
    for name, answer in answers.items():
        patch.setattr(torch.cuda, name, Mock(return_value=answer))
    patch.setattr(torch.cuda, "Event", Mock)


@contextlib.contextmanager
def gpu(
    capability: tuple[int, int], patch: pytest.MonkeyPatch
) -> Iterator[fake_tensor.FakeTensorMode]:
    """A fake GPU; tensors that are made meanwhile may be on it."""

    def autocast(*_: Any, enabled: bool = True, **__: Any) -> Any:
        return Autocast(CAPABILITIES[capability]) if enabled else contextlib.nullcontext()

    patch_tensors(patch)
    patch_cuda(capability, patch)
    patch.setattr(torch, "autocast", autocast)
    with fake_tensor.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        yield mode


def move(trial: Any, mode: fake_tensor.FakeTensorMode, patch: pytest.MonkeyPatch) -> None:
    """Have a trial that was made on the CPU train on the GPU, by its own code."""
    patch.setattr(torch.__future__, "get_overwrite_module_params_on_conversion", lambda: True)
    trial.model._apply(lambda tensor: mode.from_tensor(tensor.detach()).to(GPU))
    for parameter in trial.model.parameters():
        parameter.grad = None
    trial.dtype = resolve_precision(trial.hparams.precision, GPU)

    # Determined wants its scaler before it wraps a model.
    context = trial.context
    context.device = GPU
    models = context.models
    context.models = []
    context.optimizers = []
    context._scaler = None
    scaler = torch.amp.GradScaler("cuda", enabled=trial.dtype is torch.float16)
    trial.scaler = context.wrap_scaler(scaler)
    context.models = models

    trial.max_tokens = trial.prepare_gradients()
    trial.finite = FiniteSteps(GPU)
    trial._prepare_optimizer(64)
    trial.optimizer_step = trial._build_step()


WORKLOADS = {"fine-tuning": TINY, "pretraining": TINY_PRETRAINING}


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_step_and_a_validation(
    workload: str,
    capability: tuple[int, int],
    cache_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    half = CAPABILITIES[capability]
    path = config_file(tmp_path, WORKLOADS[workload], cache_dir, compile=False)
    change(path, model_config=NO_DROPOUT)
    with contextlib.ExitStack() as stack:
        trial = stack.enter_context(trial_of(path))
        rows = next(iter(trial.build_training_data_loader()))
        validation_batch = next(iter(trial.build_validation_data_loader()))
        mode = stack.enter_context(gpu(capability, monkeypatch))
        with Watch():
            move(trial, mode, monkeypatch)
        with Watch() as step:
            trial.train_batch(rows, 0, 4)
        with Watch() as validation, torch.no_grad():
            trial.model.eval()
            trial.reducer.reset()
            trial.evaluate_batch(validation_batch, 0)
        parameters = [p for p in trial.model.parameters() if p.requires_grad]

    # torch's scaler asks whether there was an infinity, once a step.
    assert step.waits == (["_local_scalar_dense"] if half is torch.float16 else [])
    # Answers come back after each row; pretraining's sums stay on the device to the end.
    assert set(validation.waits) == ({"_to_copy"} if workload == "fine-tuning" else set())
    assert step.products == validation.products == {half}
    if capability >= (8, 0):
        assert step.attention == {"_varlen_attn", "_varlen_attn_backward"}
        assert validation.attention == {"_varlen_attn"}
    else:
        assert step.attention == validation.attention == set()
    for parameter in parameters:
        assert parameter.dtype is parameter.grad.dtype is torch.float32


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_row_of_the_language_model(
    family: str, capability: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    half = CAPABILITIES[capability]
    causal_loss = CausalLoss(empty_model(tiny(family)).to_empty(device="cpu").to(half))
    tokens = torch.zeros(25, dtype=torch.int64)
    row = pack([(tokens, torch.tensor([7, 5, 13]))])
    monkeypatch.setattr(torch.__future__, "get_overwrite_module_params_on_conversion", lambda: True)
    with gpu(capability, monkeypatch) as mode:
        causal_loss._apply(lambda tensor: mode.from_tensor(tensor.detach()).to(GPU))
        with Watch() as watch:
            loss, correct = causal_loss(to_device(row, GPU))
            loss.backward()
            sums = zero_sums(GPU)
            add_row(sums, row, loss=loss.detach(), correct=correct)
    assert watch.waits == []
    assert watch.products == {half}
    has_kernel = capability >= (8, 0)
    assert watch.attention == ({"_varlen_attn", "_varlen_attn_backward"} if has_kernel else set())
    assert {p.grad.dtype for p in causal_loss.parameters()} == {half}  # FSDP adds them up in fp32

"""What the machine of a day with a GPU has: device, driver, torch, kernels, and what it lacks.

python -m benchmarks.gpu_check FILE [cpu]

A process of its own: CUDA's context ends with it, so that the stages have all of the memory.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

from detalbert import atomic
from detalbert.integrity import Json

# Of requirements.txt, those that a machine for deep learning often lacks.
PACKAGES = ("datasets", "determined", "jsonschema", "loky", "pytest", "torch_optimizer")
SIZE = 8192  # rows and columns of a matrix


def check_machine(device_type: str) -> Json:
    """Return what the machine has; `lacks` names what the stages need and is not there."""
    absent = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    lacks = []
    if absent:
        lacks.append(f"packages ({', '.join(absent)}; make gpu-wheels)")
    # Triton builds its launchers with it.
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        lacks.append("a C compiler")

    import torch  # seconds, which a machine without the packages need not wait

    if device_type == "cuda" and not torch.cuda.is_available():
        lacks.append(f"a GPU that torch {torch.__version__} sees")
    if lacks:
        return {"lacks": lacks}

    from detalbert.environment import environment

    return {
        "lacks": [],
        "compiler": compiler,
        "compiles": check_compiler(device_type),
        "driver": find_driver(),
        "gpu": measure_gpu() if device_type == "cuda" else None,
        **environment(torch.device(device_type)),
    }


def find_driver() -> str | None:
    """Return the driver's version and the GPU's clocks and power as nvidia-smi prints them."""
    fields = "driver_version,clocks.sm,clocks.mem,clocks.max.sm,power.limit"
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        return subprocess.check_output(command, text=True, timeout=20).strip()
    except (OSError, subprocess.SubprocessError):
        return None


def check_compiler(device_type: str) -> bool | str:
    """Return True if torch.compile works there, else the first line of its error."""
    import torch

    function = torch.compile(lambda values: torch.nn.functional.gelu(values) + 1)
    try:
        function(torch.ones(64, device=device_type))
    except Exception as error:  # whatever the compiler and the tools behind it raise
        return str(error).split("\n")[0]
    return True


def measure_gpu() -> Json:
    """Return capability, memory, the attention kernel, and the roof: products and copies."""
    import torch

    from benchmarks.measure import interleave
    from detalbert.engine import kernel

    device = torch.device("cuda")
    properties = torch.cuda.get_device_properties(device)
    matrix = torch.randn(SIZE, SIZE, device=device, dtype=torch.bfloat16)
    source = torch.empty(2**30, device=device, dtype=torch.uint8)
    target = torch.empty_like(source)
    seconds = interleave(
        {"product": lambda: matrix @ matrix, "copy": lambda: target.copy_(source)}, repeats=10
    )
    return {
        "capability": f"{properties.major}.{properties.minor}",
        "memory_bytes": properties.total_memory,
        "multiprocessors": properties.multi_processor_count,
        "cudnn": torch.backends.cudnn.version(),
        "flash_attention": kernel.has_kernel(device),
        "bf16_flops": 2 * SIZE**3 / min(seconds["product"]),
        # Read and written.
        "bytes_per_second": 2 * len(source) / min(seconds["copy"]),
    }


if __name__ == "__main__":
    path, device_name = sys.argv[1:]
    if device_name == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    atomic.write_json(Path(path), check_machine(device_name))

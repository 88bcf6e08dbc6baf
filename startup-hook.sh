#!/usr/bin/env bash
# Determined sources this file in the task's container, in the uploaded context, before the entry
# point. It installs what requirements.txt asks for and the image lacks. torch, which was built for
# the image's CUDA, and the harness, which comes from the cluster, are never replaced. Where all is
# there, it takes a fraction of a second and no network.
"${DET_PYTHON_EXECUTABLE:-python3}" - requirements.txt <<'EOF_PYTHON' || exit $?
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

try:
    from packaging.requirements import Requirement
except ImportError:
    from pip._vendor.packaging.requirements import Requirement

KEPT = ("torch", "determined")
PINNED = (*KEPT, "torchvision", "torchaudio", "triton", "pytorch-triton", "numpy")


def installed(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def fits(requirement):
    version = installed(requirement.name)
    return version is not None and requirement.specifier.contains(version, prereleases=True)


def fail(text):
    sys.exit(f"startup-hook.sh: error: {text}; use an image that has it (cluster/Dockerfile)")


lines = (line.split("#")[0].strip() for line in Path(sys.argv[1]).read_text().splitlines())
wanted = [Requirement(line) for line in lines if line]
wanted = [one for one in wanted if one.marker is None or one.marker.evaluate()]
missing = [one for one in wanted if not fits(one)]
for one in missing:
    if one.name in KEPT:
        fail(f"{one} is needed, {installed(one.name) or 'none'} is there and never replaced")
if missing:
    print("startup-hook.sh: installing", *map(str, missing), flush=True)
    misfits = {one.name for one in missing}
    pins = {name: installed(name) for name in PINNED if name not in misfits}
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
        constraints.writelines(f"{name}=={version}\n" for name, version in pins.items() if version)
        constraints.flush()
        # All of them, so that pip finds versions that go together.
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        command = [*pip, "-c", constraints.name, *map(str, wanted)]
        status = subprocess.run(command, stdin=subprocess.DEVNULL).returncode
    if status:
        fail(f"could not install {', '.join(map(str, missing))} (pip's reasons are above)")
EOF_PYTHON

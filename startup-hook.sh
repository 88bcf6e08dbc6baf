#!/usr/bin/env bash
# Determined sources this file in the task's container, in the uploaded context, before the entry
# point. If the image lacks a requirement of requirements.txt, it installs all of them in the
# versions of constraints.txt, so that a restart runs on those of the first start. It never replaces
# torch, built for the image's CUDA, or Determined's package, which comes from the cluster. If
# nothing is missing, it takes a fraction of a second and no network.
# Then it checks the config, and sets the threads that multi-slot runs begin with.
# It ends the task with one line: "error" if a retry cannot help (the configs' log policy Hook then
# stops the retries), "unavailable" if it may.
"${DET_PYTHON_EXECUTABLE:-python3}" - requirements.txt constraints.txt <<'EOF_PYTHON' || exit $?
import os
import re
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


def normalised(name):
    return re.sub("[-_.]+", "-", name).lower()


def fits(requirement):
    version = installed(requirement.name)
    return version is not None and requirement.specifier.contains(version, prereleases=True)


def lines(path):
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        fail("error", f"{path}: missing; .detignore may have kept it out of the upload")
    except (OSError, UnicodeDecodeError):
        fail("error", f"{path}: no text that can be read; write it anew in UTF-8")
    found = (line.split("#")[0].strip() for line in text.splitlines())
    return [line for line in found if line]


def parse(line):
    try:
        return Requirement(line)
    except Exception:  # InvalidRequirement, of whichever packaging it is
        words = line.split("=")[0].split() or ["="]
        word = re.sub("//[^/]*@", "//***@", words[0])  # an address may have a login
        said = f"requirements.txt: {ascii(word)[1:-1]}: not a package and its versions; take the line out"
        fail("error", f"{said} (set options of pip as PIP_... in environment_variables)")


def install(wanted, constraints):
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(constraints))
        file.flush()
        pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check"]
        # All of them, so that pip finds versions that go together.
        command = [*pip, "--progress-bar=off", "-c", file.name, *map(str, wanted)]
        # The container is the task's own: PEP 668 protects a distribution's Python, not this one.
        env = {**os.environ, "PIP_BREAK_SYSTEM_PACKAGES": "1"}
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, env=env, capture_output=True, text=True
        )


def find_line(text, start):
    return next((line for line in text.splitlines() if line.startswith(start)), "")


def fail(kind, text):
    print(f"startup-hook.sh: {kind}: {text}", file=sys.stderr)
    sys.exit({"error": 2, "unavailable": 4}[kind])


CURE = "use an image that has it (cluster/Dockerfile)"
wanted = [parse(line) for line in lines(sys.argv[1])]
wanted = [one for one in wanted if one.marker is None or one.marker.evaluate()]
missing = [one for one in wanted if not fits(one)]
for one in missing:
    if normalised(one.name) in KEPT:
        there = installed(one.name) or "none"
        fail("error", f"{one} is needed, {there} is there and never replaced; {CURE}")
if missing:
    print("startup-hook.sh: installing", *map(str, missing), flush=True)
    misfits = {normalised(one.name) for one in missing}
    kept = {name: installed(name) for name in PINNED if name not in misfits}
    kept = {name: version for name, version in kept.items() if version}
    pins = [f"{name}=={version}" for name, version in kept.items()]
    tested = [line for line in lines(sys.argv[2]) if normalised(line.split("==")[0]) not in kept]
    done = install(wanted, pins + tested)
    if done.returncode:
        reason = find_line(done.stderr, "ERROR: ").removeprefix("ERROR: ")
        said = "constraints.txt does not fit this image, so versions may change with a restart"
        print(f"startup-hook.sh: {said}: {reason}", flush=True)
        done = install(wanted, pins)
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        names = ", ".join(map(str, missing))
        fail("unavailable", f"could not install {names} (pip's reasons are above); {CURE}")
    print("startup-hook.sh:", find_line(done.stdout, "Successfully installed"))
EOF_PYTHON

# The shell prints each command here: one with the config in it would trigger the log policies,
# whose patterns are in the config.
if [ -f workloads.py ]; then
  "${DET_PYTHON_EXECUTABLE:-python3}" workloads.py || exit $?
fi
# Slots share the machine's cores. torchrun would set the same, with four lines of warning;
# hyperparameters.threads sets the number of compute threads.
case "${DET_SLOT_IDS:-}" in *,*) export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" ;; esac

"""requirements.lock, which `make train` installs, is constraints.txt with hashes."""

import re

from tests.conftest import ROOT


def pins(name: str) -> dict[str, str]:
    """Versions by package in a file of requirements."""
    lines = re.findall(r"^([\w.-]+)==([^\s;]+)", (ROOT / name).read_text(), re.MULTILINE)
    return {package.lower().replace("_", "-"): version for package, version in lines}


def test_the_lock_has_the_tested_versions_with_hashes():
    locked, tested = pins("requirements.lock"), pins("constraints.txt")
    assert {name: tested.get(name, version) for name, version in locked.items()} == locked
    wanted = re.findall(r"^[\w-]+", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
    assert set(wanted) <= locked.keys()
    packages = re.split(r"^(?=[\w.-]+==)", (ROOT / "requirements.lock").read_text(), flags=re.M)
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}\b", package) for package in packages[1:])

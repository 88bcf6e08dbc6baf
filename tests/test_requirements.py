"""requirements.lock, which `make train` installs, is constraints.txt with hashes."""

import re

from tests.conftest import ROOT


def pins(name: str) -> dict[str, str]:
    """Versions by package in a file of requirements."""
    text = (ROOT / name).read_text()
    versions = {}
    for package, version in re.findall(r"^([\w.-]+)==([^\s;]+)", text, re.MULTILINE):
        versions[package.lower().replace("_", "-")] = version
    return versions


def test_the_lock_has_the_tested_versions_with_hashes():
    locked = pins("requirements.lock")
    tested = pins("constraints.txt")
    for package, version in locked.items():
        assert tested.get(package, version) == version
    requirements = (ROOT / "requirements.txt").read_text()
    assert set(re.findall(r"^[\w-]+", requirements, re.MULTILINE)) <= locked.keys()

    lock = (ROOT / "requirements.lock").read_text()
    _, *packages = re.split(r"^(?=[\w.-]+==)", lock, flags=re.MULTILINE)
    for package in packages:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", package), package

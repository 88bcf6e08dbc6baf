"""What is installed: ranges, the lock, the exact versions for pip and the wheel say the same."""

import re

import tomllib
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests.conftest import ROOT

# What torch brings for its GPU, and builds with: an image's own torch needs others.
OF_TORCH = re.compile("cuda-|nvidia-[^m]|triton$|setuptools$")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
OTHERS = {}
for package in tomllib.loads((ROOT / "uv.lock").read_text())["package"]:
    OTHERS[package["name"]] = package
OURS = OTHERS.pop("detalbert")


def requirements(name):
    """The requirements of a file at the root, as texts."""
    lines = (ROOT / name).read_text().splitlines()
    texts = [line.split("#")[0].strip() for line in lines]
    return list(filter(None, texts))


def ranges(texts):
    """The packages of requirements, each with its range."""
    result = {}
    for text in texts:
        wanted = Requirement(text)
        name = canonicalize_name(wanted.name)
        if name != "detalbert":
            result[name] = wanted.specifier
    return result


def locked_ranges(rows):
    """The same of the requirements that the lock was made from."""
    return ranges(f"{row['name']}{row.get('specifier', '')}" for row in rows)


def test_the_lock_is_of_the_ranges():
    texts = requirements("requirements.txt")
    for extra in PROJECT["project"]["optional-dependencies"].values():
        texts += extra
    metadata = OURS["metadata"]
    assert locked_ranges(metadata["requires-dist"]) == ranges(texts)

    dev = PROJECT["dependency-groups"]["dev"]
    assert locked_ranges(metadata["requires-dev"]["dev"]) == ranges(dev)


def test_the_lock_names_the_public_index_alone():
    addresses = re.findall(r'"https?://([^/"]+)', (ROOT / "uv.lock").read_text())
    assert set(addresses) == {"pypi.org", "files.pythonhosted.org"}


def test_constraints_are_the_versions_of_the_lock():
    pins = {}
    for name, package in OTHERS.items():
        if not OF_TORCH.match(name):
            pins[name] = SpecifierSet(f"=={package['version']}")
    assert ranges(requirements("constraints.txt")) == pins


def test_the_wheel_has_every_file_of_a_run():
    setuptools = PROJECT["tool"]["setuptools"]
    packages = {"detalbert_root"}
    for folder in ("detalbert", "lm", "pretrain"):
        for path in ROOT.glob(f"{folder}/**/*"):
            if path.name == "__init__.py":
                packages.add(".".join(("detalbert_root", *path.parent.relative_to(ROOT).parts)))
            elif path.is_file() and path.suffix not in (".py", ".pyc") and path.stem != "README":
                assert any(map(path.match, setuptools["package-data"]["*"])), path
    assert packages == set(setuptools["packages"])

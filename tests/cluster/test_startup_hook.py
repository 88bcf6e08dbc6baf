"""startup-hook.sh in real environments, with real pip and a folder of wheels for an index.

The packages are empty: what is tested is which of them pip is asked for, and what it leaves alone.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import venv
import zipfile

import packaging
import pydantic
import pytest

from tests.cluster.test_policies import actions
from tests.conftest import ROOT

pytestmark = pytest.mark.usefixtures("real_python")

TORCH = "2.12.0+cu126"


def minima():
    """Return the packages of an image in which all is there, each in the least that will do."""
    packages = {}
    for line in (ROOT / "requirements.txt").read_text().splitlines():
        match = re.match("([^>=]+).=([^, ;]+)", line.split("#")[0])
        if match:
            packages[match[1]] = match[2]
    return {**packages, "torch": TORCH}


def pinned():
    """Return the packages of constraints.txt."""
    text = (ROOT / "constraints.txt").read_text()
    pins = re.findall("^([^#=]+)==(.+)$", text, re.MULTILINE)
    return {name.lower().replace("_", "-"): version for name, version in pins}


IMAGE = minima()
TESTED = {name: pinned()[name] for name in IMAGE}
NEEDS = {
    "tqdm": ["numpy>=1.20"],
    "torch-optimizer": ["torch>=1.5.0"],
    "determined": ["tqdm", "psutil"],
}


def index(folder, *offers):
    """Return a folder of empty wheels: these packages in these versions."""
    folder.mkdir()
    for packages in offers:
        for name, version in packages.items():
            write_wheel(folder, name, version)
    return folder


def write_wheel(folder, name, version):
    stem = f"{name.replace('-', '_')}-{version}"
    needs = "".join(f"Requires-Dist: {need}\n" for need in NEEDS.get(name, []))
    files = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files["RECORD"] = "".join(f"{stem}.dist-info/{file},,\n" for file in (*files, "RECORD"))
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as archive:
        for file, text in files.items():
            archive.writestr(f"{stem}.dist-info/{file}", text)


@pytest.fixture(scope="session")
def wheels(tmp_path_factory):
    newest = {"tqdm": "99.0", "loky": "99.0"}  # what a careless `pip install` would take
    return index(tmp_path_factory.mktemp("wheels") / "all", IMAGE, TESTED, newest)


@pytest.fixture(scope="session")
def bare(once):
    """A virtual environment with pip, and pydantic for workloads.py to import."""

    def make(folder):
        venv.create(folder / "venv", with_pip=True, symlinks=True, clear=True)
        (site,) = (folder / "venv").glob("lib/python*/site-packages")
        installed = pathlib.Path(pydantic.__file__).parents[1]
        for name in "pydantic pydantic_core annotated_types typing_inspection".split():
            (site / name).symlink_to(installed / name)
        (site / "typing_extensions.py").symlink_to(installed / "typing_extensions.py")

    return once("bare", make) / "venv"


class Image:
    """A Python that looks like that of a task image with these packages."""

    def __init__(self, folder, packages):
        self.folder = folder
        self.python = folder / "bin" / "python"
        (self.site,) = self.folder.glob("lib/python*/site-packages")
        for name, version in packages.items():
            self.put(name, version)

    def put(self, name, version):
        """Install a package, in place of any other version."""
        stem = name.replace("-", "_")
        for other in self.site.glob(f"{stem}-*.dist-info"):
            shutil.rmtree(other)
        info = self.site / f"{stem}-{version}.dist-info"
        info.mkdir()
        meta = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        (info / "METADATA").write_text(meta)
        (info / "RECORD").write_text(f"{info.name}/METADATA,,\n{info.name}/RECORD,,\n")

    def versions(self, *folders):
        """Return names and versions of the packages here, and in other folders."""
        packages = {}
        for site in (*folders, self.site):
            for path in site.glob("*.dist-info"):
                name, _, version = path.name.removesuffix(".dist-info").partition("-")
                packages[name.replace("_", "-")] = version
        return packages


HOOK = ("bash", "startup-hook.sh")


def hook(
    python,
    wheels,
    *command,
    fails=False,
    folder=ROOT,
    **variables,
):
    """Run the hook with `python` as the task's and `wheels` as all that pip can reach."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    env |= {
        "DET_PYTHON_EXECUTABLE": str(python),
        "PIP_FIND_LINKS": str(wheels),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        **variables,
    }
    done = subprocess.run(
        command or HOOK, cwd=folder, env=env, capture_output=True, text=True, timeout=600
    )
    assert bool(done.returncode) == fails, done.stderr
    return done


@pytest.fixture
def image(tmp_path, bare):
    def build(without=(), **versions):
        packages = {}
        for name, version in {**IMAGE, **versions}.items():
            if name not in without:
                packages[name] = version
        shutil.copytree(bare, tmp_path / "python", symlinks=True)
        return Image(tmp_path / "python", packages)

    return build


def test_nothing_is_done_where_all_is_there(image, tmp_path):
    built = image()
    before = built.versions()
    shutil.rmtree(built.site / "pip")  # whoever calls pip, or its packaging, fails
    shutil.copytree(pathlib.Path(packaging.__file__).parent, tmp_path / "with" / "packaging")
    (built.site / "packaging.pth").write_text(str(tmp_path / "with"))
    for python in (built.python, sys.executable):
        done = hook(python, tmp_path / "no-such-folder")
        assert done.stdout + done.stderr == ""
    assert built.versions() == before


def test_another_torch_stays_while_the_rest_is_installed(image, wheels):
    """And tokenizers that drop windows are replaced."""
    built = image(without=("tqdm", "torch-optimizer"), tokenizers="0.23.2")

    done = hook(built.python, wheels)

    after = built.versions()
    unchanged = {name: IMAGE[name] for name in ("torch", "numpy", "determined")}
    assert {name: after[name] for name in IMAGE} == {**TESTED, **unchanged}
    installing, installed = done.stdout.splitlines()
    packages = "tokenizers>=0.23.3 torch-optimizer>=0.3.0 tqdm>=4.66"
    assert sorted(installing.split()) == sorted(f"startup-hook.sh: installing {packages}".split())
    assert installed.startswith("startup-hook.sh: Successfully installed ")
    assert f" tqdm-{TESTED['tqdm']}" in installed
    assert "torch-2" not in installed


def test_a_torch_or_harness_out_of_range_is_refused_once_not_replaced(image, wheels):
    """The first torch is that of Determined 0.38.1's own image. The fork's harness of 0.42 is as
    good as 0.38.1's; read in its source, not run (.github/workflows/fork-release.yml)."""
    built = image(determined="0.42.0")
    assert hook(built.python, wheels).stderr == ""

    for name, version in (
        ("torch", "2.3.0a0+40ec155e58.nv24.3"),
        ("torch", "2.4.0"),
        ("torch", "2.15.0"),
        ("determined", "0.37.0"),
    ):
        built.put("torch", TORCH)
        built.put(name, version)
        done = hook(built.python, wheels, fails=True)
        assert done.stdout == ""
        (line,) = done.stderr.splitlines()
        assert line.startswith(f"startup-hook.sh: error: {name}")
        assert f"{version} is there and never replaced" in line
        assert actions(line) == {"cancel_retries"}
        assert built.versions()[name] == version


def test_a_failure_ends_the_container_that_sources_it(image, tmp_path):
    script = "set -e; test -f startup-hook.sh && source startup-hook.sh; echo next"
    sourced = ["bash", "-c", script]

    failed = hook(image(without=("tqdm",)).python, tmp_path, *sourced, fails=True)
    assert "next" not in failed.stdout
    assert "startup-hook.sh: unavailable: could not install tqdm>=4.66" in failed.stderr
    assert not actions(failed.stderr)  # another try may find the index up

    assert hook(sys.executable, tmp_path, *sourced).stdout == "next\n"


@pytest.fixture
def context(tmp_path):
    """An uploaded context of its own: the hook, the package and the two files of packages."""
    folder = tmp_path / "context"
    folder.mkdir()
    for name in ("startup-hook.sh", "workloads.py", "requirements.txt", "constraints.txt"):
        shutil.copy(ROOT / name, folder / name)
    (folder / "detalbert").symlink_to(ROOT / "detalbert")
    return folder


def hooked(context, **variables):
    """Run the hook of a context with this Python."""
    env = {**os.environ, "DET_PYTHON_EXECUTABLE": sys.executable, **variables}
    return subprocess.run(HOOK, cwd=context, env=env, capture_output=True, text=True, timeout=600)


def refused(context, **variables):
    """Return the one line with which the hook ends with status 2."""
    done = hooked(context, **variables)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2
    return line


OPTIONS = ["--extra-index-url https://me:planted@example.org", "-r more.txt", "tqdm >= ", "./a.whl"]


def test_a_task_without_a_workload_is_one_line(context):
    environment = {"DET_EXPERIMENT_CONFIG": '{"data": 5}', "DET_HPARAMS": "{}"}
    assert refused(context, **environment).startswith("train.py: error: data: ")

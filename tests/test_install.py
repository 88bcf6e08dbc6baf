""".ci/install, with programs that write down how they are called."""

import os
import shutil
import subprocess

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.usefixtures("real_python")  # it starts a process
# That of PATH may fail, the pinned one in .venv does not.
UV = """#!/bin/sh
echo "uv $* $UV_DEFAULT_INDEX" >>log
case "$0 $*" in .venv/*) ;; *" $FAILS "*) exit 1 ;; esac
"""
PYTHON = """#!/bin/sh
echo "python $*" >>log
case "$*" in
    *" config list") [ -z "$REAL" ] || exec "$REAL" "$@" ;;
    *"install uv=="*) cp bin/uv .venv/bin/uv ;;
esac
"""


@pytest.fixture
def install(tmp_path):
    """`install(...)`: run the script in `tmp_path`; return the calls that install something."""
    for name, source in {"bin/uv": UV, ".venv/bin/python": PYTHON}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
        path.chmod(0o755)
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
    (tmp_path / "uv.lock").write_text("version 1")
    (tmp_path / "pip.conf").write_text("[global]\nindex-url = https://index.example/simple\n")
    log = tmp_path / "log"

    def run(fails="nothing", **environment):
        log.write_text("")
        env = {
            "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
            "PIP_CONFIG_FILE": "pip.conf",
            "FAILS": fails,
        }
        subprocess.run(
            ["sh", ".ci/install", "train", "--no-dev"],
            cwd=tmp_path,
            env=env | environment,
            check=True,
            capture_output=True,
        )
        return [line for line in log.read_text().splitlines() if " install " in line]

    return run


def test_uv_installs_from_the_index_of_pip(install, real_python):
    (call,) = install(REAL=real_python)
    assert call.startswith("uv pip install --quiet --python .venv/bin/python --require-hashes")
    assert call.endswith("-r .venv/packages.txt https://index.example/simple")


@pytest.mark.parametrize("name", ["PIP_INDEX_URL", "UV_DEFAULT_INDEX"])
def test_an_index_of_the_environment_comes_first(install, name, real_python):
    (call,) = install(REAL=real_python, **{name: "https://mine.example"})
    assert call.endswith(" https://mine.example")


def test_a_uv_that_cannot_read_the_lock_is_replaced(install):
    brought, call = install(fails="export")
    assert "pip --quiet --disable-pip-version-check install uv==" in brought
    assert call.startswith("uv pip install ")


def test_pip_installs_the_same_where_uv_cannot(install):
    _, call = install(fails="pip")
    assert call.startswith("python -m pip ")
    assert call.endswith("install --require-hashes -r .venv/packages.txt")


def test_a_complete_environment_stays_as_it_is(install, tmp_path):
    assert install()
    for file in tmp_path.glob("*.lock"):
        os.utime(file)  # as in a clone
    assert install() == []
    (tmp_path / "uv.lock").write_text("version 2")
    assert install()


def test_a_linked_environment_stays_as_it_is(install, tmp_path):
    (tmp_path / ".venv").rename(tmp_path / "elsewhere")
    (tmp_path / ".venv").symlink_to("elsewhere")
    assert install() == []

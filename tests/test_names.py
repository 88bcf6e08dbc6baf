"""Names of files that others give: nothing is written outside of the folder."""

import io
import os
import tarfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from determined.errors import MultipleDownloadsFailed
from hypothesis import given
from hypothesis import strategies as st

from detalbert import determined_internals
from detalbert.errors import UserError
from detalbert.names import hold, is_inside
from tests.conftest import max_examples

PART = st.sampled_from(
    ["..", ".", "", "a", "b.json", "step-4", "x\\..\\y", "..a", "a..", "\n", "ü"]
)
NAME = st.lists(PART, min_size=1, max_size=6).map("/".join)


@max_examples(200)
@given(NAME | st.text(max_size=9))
def test_a_name_that_is_held_is_inside(name):
    if is_inside(name.removesuffix("/")):
        name = name.removesuffix("/")
        path = os.path.normpath(f"/folder/{name}")
        assert path.startswith("/folder/") and path == f"/folder/{name}"
    else:
        with pytest.raises(UserError, match="does not stay inside") as error:
            hold(Path("/folder"), name, "x")
        assert "\n" not in str(error.value)


WRONG = {
    "../x": "does not stay inside",
    "/etc/x": "does not stay inside",
    "a/../../x": "does not stay inside",
    "a//x": "does not stay inside",
    "a\\..\\x": "does not stay inside",
    "a\0x": "does not stay inside",
    "": "does not stay inside",
    "folder": "is taken in",
    "file/x": "does not stay inside",
    "file/": "is taken in",
    "out/x": "does not stay inside",
    "loop/x": "cannot be used",
    "x" * 300: "cannot be used",
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_with_a_name(name, tmp_path):
    folder = tmp_path / "in"
    (folder / "folder").mkdir(parents=True)
    (folder / "file").touch()
    (folder / "out").symlink_to(tmp_path)
    (folder / "loop").symlink_to(folder / "loop")
    with pytest.raises(UserError, match=f"^here: the name .*{WRONG[name]}"):
        hold(folder, name, "here")
    for right in ("file", "new", "folder/new", "folder/", "new/", "new/new"):
        assert hold(folder, right, "here") == folder / right


def tree(folder: Path) -> dict[str, bytes]:
    """The content of all files below a folder, by path."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


MEMBERS = {
    "../x": {"name": "../x"},
    "/x": {"name": "{tmp}/x"},
    "a/../../x": {"name": "a/../../x"},
    "a link": {"name": "link", "type": tarfile.SYMTYPE, "linkname": "{tmp}"},
    "a hard link": {"name": "link", "type": tarfile.LNKTYPE, "linkname": "../x"},
    "a device": {"name": "null", "type": tarfile.CHRTYPE},
    "an ordinary file": {"name": "./code/a.py"},
}


@pytest.mark.parametrize("kind", MEMBERS)
def test_an_archive_of_the_master_stays_in_its_folder(kind, tmp_path):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        member = tarfile.TarInfo()
        for key, value in MEMBERS[kind].items():
            setattr(member, key, value.format(tmp=tmp_path) if isinstance(value, str) else value)
        if "type" not in MEMBERS[kind]:
            member.size = 1
        archive.addfile(member, io.BytesIO(b"x"))
    buffer.seek(0)
    answer = SimpleNamespace(ok=True, raw=buffer)
    session = SimpleNamespace(get=lambda *a, **k: answer)

    class Checkpoint:
        """The client's, whose storage is not here."""

        def download(self, path: str) -> None:
            try:
                self._download_via_master(session, "uuid", Path(path))
            except Exception as error:
                raise MultipleDownloadsFailed("both failed") from error

    if kind == "an ordinary file":
        determined_internals.download_checkpoint(Checkpoint(), tmp_path / "in")
        assert tree(tmp_path) == {"in/code/a.py": b"x"}
    else:
        with pytest.raises(UserError, match="^the master's archive: "):
            determined_internals.download_checkpoint(Checkpoint(), tmp_path / "in")
        assert tree(tmp_path) == {}

"""Models and data sets as the hub's client lays them out in its cache."""

import hashlib
import shutil


def put(cache, name, revision, content, kind="models"):
    """Have `revision` of a repository be a folder's content; returns its commit, 40 digits."""
    repository = cache / f"{kind}--{name.replace('/', '--')}"
    commit = hashlib.sha1(str(content).encode()).hexdigest()
    shutil.copytree(content, repository / "snapshots" / commit, dirs_exist_ok=True)
    (repository / "refs").mkdir(exist_ok=True)
    (repository / "refs" / revision).write_text(commit)
    return commit

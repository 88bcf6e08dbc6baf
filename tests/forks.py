"""Starts the zygote, see tests/zygote.py."""

import os
import pathlib
import subprocess
import sys


def start_zygote(folder: pathlib.Path) -> str:
    """The program, in `folder`; the zygote starts unless ZYGOTE_OWNER has one already."""
    path, owner = folder / "python3", os.environ.setdefault("ZYGOTE_OWNER", str(os.getpid()))
    script = pathlib.Path(__file__).with_name("zygote.py")
    start = f'exec "{sys.executable}" -SE "{script}" run {owner} "{sys.executable}" "$0" "$@"'
    path.write_text(f"#!/bin/sh\n{start}\n")
    path.chmod(0o755)
    env = {"GOMP_SPINCOUNT": "10000", **os.environ}  # as train.py has it
    serve = [sys.executable, str(script), "serve", owner]
    subprocess.Popen(serve, env=env, stdin=subprocess.DEVNULL, start_new_session=True)
    return str(path)

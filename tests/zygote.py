"""A `python3` for tests whose programs are forks of one process that has imported torch already.

A start of train.py takes 6 s of CPU time for imports, a fork 0.1 s. The program takes Python's own
arguments, has the zygote fork, forwards signals, ends as the fork ends. Killed, it takes it along.
Scripts and `-m` are forked, all else goes to the real Python. The zygote has computed nothing and
started no thread. What libraries read when imported is the zygote's, and so is a fork's parent: a
test about one of these starts Python for real.
"""

import atexit
import contextlib
import ctypes
import importlib
import os
import pickle
import runpy
import select
import signal
import socket
import sys
import threading
import time

LARGE = """
matplotlib.figure matplotlib.backends.backend_svg datasets
determined.common.api.bindings determined.pytorch jsonschema pydantic.json_schema
torch_optimizer torch._dynamo torch.distributed.checkpoint.state_dict
torch.distributed.elastic.rendezvous.dynamic_rendezvous torch.distributed.fsdp
torch.distributed.launcher.api torch.utils.tensorboard
transformers.models.albert.modeling_albert transformers.models.llama.modeling_llama""".split()
SIZE = 1 << 20  # bytes of a request: arguments and environment


def start_zygote(folder):
    """The program, in `folder`; the zygote starts unless ZYGOTE_OWNER has one already."""
    import subprocess  # which no start of the program shall import

    path, owner = folder / "python3", os.environ.setdefault("ZYGOTE_OWNER", str(os.getpid()))
    start = f'exec "{sys.executable}" -SE "{__file__}" run {owner} "{sys.executable}" "$0" "$@"'
    path.write_text(f"#!/bin/sh\n{start}\n")
    path.chmod(0o755)
    env = {"GOMP_SPINCOUNT": "10000", **os.environ}  # as train.py has it
    serve = [sys.executable, __file__, "serve", owner]
    subprocess.Popen(serve, env=env, stdin=subprocess.DEVNULL, start_new_session=True)
    return str(path)


def run(owner, python, program, *words):
    """Be the command: have the zygote fork, wait for the fork's end, end in the same way."""
    options = list(words[words[:1] == ("-u",) :])
    if not options or not (options[0].endswith(".py") or options[0] == "-m"):
        os.execv(python, [python, *words])
    link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SIZE)
    while link.connect_ex(f"\0zygote-{owner}"):  # it is being started
        time.sleep(0.02)
    request = pickle.dumps((program, options, os.getcwd(), dict(os.environ)))
    socket.send_fds(link, [request], [0, 1, 2, os.open("/proc/self/ns/mnt", os.O_RDONLY)])
    pid = int(link.recv(32))
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: os.kill(pid, number))
    status = os.waitstatus_to_exitcode(int(link.recv(32) or signal.SIGKILL))
    if status < 0:
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def serve(owner):
    """Fork for each request until process `owner` ends. An owner's second zygote ends at once."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(f"\0zygote-{owner}")
    except OSError:
        return
    listener.listen(256)
    list(map(importlib.import_module, LARGE))
    os.fsync = lambda file: None  # as in tests/conftest.py
    forks = {}  # a fork's link and its process descriptor -> (process id, both)
    while os.path.exists(f"/proc/{owner}"):
        for ready in select.select([listener, *forks], [], [], 5)[0]:
            if ready is listener:
                link = listener.accept()[0]
                data, files, _, _ = socket.recv_fds(link, SIZE, 4)
                if not (pid := os.fork()):
                    for other in (listener, link, *forks):
                        os.close(other if isinstance(other, int) else other.detach())
                    become(files, *pickle.loads(data))
                for file in files:
                    os.close(file)
                link.send(str(pid).encode())
                ended = os.pidfd_open(pid)
                forks[link] = forks[ended] = pid, link, ended
            elif ready in forks:
                pid, link, ended = forks[ready]
                if ready is link:  # the command was killed
                    os.kill(pid, signal.SIGKILL)
                status = os.waitpid(pid, 0)[1]
                del forks[link], forks[ended]
                os.close(ended)
                with link, contextlib.suppress(OSError):
                    link.send(str(status).encode())


def become(files, program, words, cwd, env):
    """Be Python with these words, from start to end, in this fork."""
    if not os.path.samestat(os.fstat(files[3]), os.stat("/proc/self/ns/mnt")):
        ctypes.CDLL(None).setns(files[3], 0)  # it would leave a chroot
    list(map(os.dup2, files[:3], range(3)))
    sys.stdout.reconfigure(line_buffering=os.isatty(1))  # type: ignore[union-attr]  # a TextIO
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    if test := env.get("COVERAGE_CONTEXT"):  # see tests/contexts.py
        sys.modules["coverage"].Coverage.current().switch_context(test)
    if port := env.get("INTER_TRAIN_PROCESS_COMM_PORT_1"):  # read by an import that is behind us
        ports = {"pub_port": int(port), "pull_port": int(env["INTER_TRAIN_PROCESS_COMM_PORT_2"])}
        context = sys.modules["determined.core"].DistributedContext
        context.__init__.__kwdefaults__.update(ports)
    module = words[0] == "-m"
    sys.executable, sys.argv = program, words[module:]
    sys.path[0] = cwd if module else os.path.dirname(os.path.abspath(words[0]))
    start, name = (runpy.run_module, words[1]) if module else (runpy.run_path, words[0])
    status = 0
    try:
        start(name, run_name="__main__", **({"alter_sys": True} if module else {}))
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else end.code is not None
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]  # as Python does when it ends
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(status & 255)


if __name__ == "__main__":
    {"run": run, "serve": serve}[sys.argv[1]](*sys.argv[2:])

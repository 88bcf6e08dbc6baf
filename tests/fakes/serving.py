"""An application on a port of this process."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import uvicorn


@contextlib.contextmanager
def serving(app: Any) -> Iterator[int]:
    """Yields the port."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as web.run has it
    web = uvicorn.Server(uvicorn.Config(app, log_level="critical"))
    thread = threading.Thread(target=web.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        web.should_exit = True
        thread.join(30)

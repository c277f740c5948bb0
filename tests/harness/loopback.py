"""A real HTTP server of a test's own, on loopback."""

import contextlib
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self


class QuietHandler(BaseHTTPRequestHandler):
    """Answers without a word in the test's output."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - named by http.server
        """Say nothing."""


class LoopbackServer:
    """Serves during the `with` block, and breaks what connections are left at its end."""

    def __init__(self, handler: Callable[..., BaseHTTPRequestHandler], port: int = 0) -> None:
        self._server = _Server(("127.0.0.1", port), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        for connection in list(self._server.connections):
            break_off(connection)
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.connections: set[socket.socket] = set()

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        self.connections.add(request)
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.connections.discard(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away is part of the tests."""


def break_off(connection: socket.socket) -> None:
    """End a connection for both sides."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)

"""`HealthServer`: answers the probes of a platform such as Kubernetes over HTTP."""

import contextlib
import json
import logging
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from types import TracebackType
from typing import Any, Self

from leasebeat._fork import reset_in_child

_log = logging.getLogger(__name__)

MAX_CONNECTIONS = 32
SILENCE_TIMEOUT_S = 5.0
POLL_INTERVAL_S = 0.1


@dataclass(frozen=True, slots=True)
class Report:
    """What a probe is told: a word, and facts for people beside it."""

    healthy: bool
    status: str
    facts: Mapping[str, Any] = field(default_factory=dict)


Probe = Callable[[], Report]


class HealthServer:
    """Serves each probe under its path, in a thread of its own, while the `with` block runs: 200 if healthy, 503 if not."""

    def __init__(self, host: str, port: int, probes: Mapping[str, Probe]) -> None:
        """Describe a server.

        Args:
            host: The address to listen on. Empty is every address of IPv4.
            port: The port to listen on.
            probes: What to answer, by path.
        """
        self._address = host, port
        self._probes = probes
        self._server: _Server | None = None

    def __enter__(self) -> Self:
        """Start to listen.

        Raises:
            OSError: If the address is taken.
        """
        server = self._server = _Server(self._address, self._probes)
        threading.Thread(target=server.serve_forever, args=(POLL_INTERVAL_S,), name="leasebeat-health", daemon=True).start()
        reset_in_child(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def after_fork(self) -> None:
        """A child answers no probes, and must not keep the port."""
        if self._server is not None:
            self._server.socket.close()


class _Server(ThreadingHTTPServer):
    """One thread per connection. A connection too many ends the oldest, so nobody who is slow keeps a probe from its answer."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], probes: Mapping[str, Probe]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.probes = probes
        self._open: dict[Any, None] = {}  # in the order in which they came
        self._lock = threading.Lock()
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # HTTPServer's would also look up this machine's name, for as long as that takes

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            oldest = next(iter(self._open)) if len(self._open) >= MAX_CONNECTIONS else None
            self._open.pop(oldest, None)
            self._open[request] = None
        if oldest is not None:
            _end(oldest)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def server_close(self) -> None:
        super().server_close()
        with self._lock:
            left = list(self._open)
        for request in left:
            _end(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - named by socketserver
        _log.debug("A probe broke off", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    timeout = SILENCE_TIMEOUT_S
    wbufsize = -1  # head and body in one packet
    server_version = "leasebeat"
    sys_version = ""
    error_content_type = "application/json"
    error_message_format = '{"code": %(code)d}'
    server: _Server

    def do_GET(self) -> None:
        probe = self.server.probes.get(self.path.partition("?")[0])
        if probe is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        report = probe()
        body = json.dumps({"status": report.status, **report.facts}).encode()
        self.send_response(HTTPStatus.OK if report.healthy else HTTPStatus.SERVICE_UNAVAILABLE)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815 - named by http.server

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - named by http.server
        _log.debug(format, *args)


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)

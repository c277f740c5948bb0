"""A real HTTP server that answers as a test tells it to, and remembers what it was asked."""

import json
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from types import TracebackType
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from harness.loopback import LoopbackServer, QuietHandler, break_off

MOMENT = "2026-12-01T12:00:00.000000Z"


@dataclass(frozen=True)
class Received:
    """One request as it arrived. `connection` names the connection that it came on."""

    method: str
    path: str
    query: dict[str, str]
    body: Any
    headers: Mapping[str, str]
    connection: int
    at: float


@dataclass(frozen=True)
class Answer:
    payload: Any = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    delay: float = 0.0


class Break:
    """Instead of an answer: the connection breaks after the request was read."""


@dataclass(frozen=True)
class Trickle:
    """Instead of an answer: one byte of it after another, each in time, without an end. `left` is set once the client has gone."""

    of_head: bool = False
    left: threading.Event = field(default_factory=threading.Event)


Reaction = Answer | Break | Trickle
Step = Reaction | Callable[[Received], Reaction]


class ScriptedService(LoopbackServer):
    """Answers each route with its steps in order; the last one stays."""

    def __init__(self, port: int = 0) -> None:
        self.received: list[Received] = []
        self._scripts: dict[tuple[str, str], list[Step]] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        super().__init__(self._handler_class(), port)

    def on(self, method: str, path: str, *steps: Step) -> None:
        self._scripts[method, path] = list(steps)

    def asked(self, path: str) -> list[Received]:
        with self._lock:
            return [request for request in self.received if request.path == path]

    def wait_for(self, path: str, count: int = 1, timeout: float = 60.0) -> list[Received]:
        """Wait until `count` requests for a path have arrived."""
        until = time.monotonic() + timeout
        while len(self.asked(path)) < count:
            assert time.monotonic() < until, f"{len(self.asked(path))} of {count} requests for {path} came"
            time.sleep(0.005)
        return self.asked(path)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()
        super().__exit__(kind, error, trace)

    def _next(self, request: Received) -> Reaction:
        with self._lock:
            self.received.append(request)
            steps = self._scripts.get((request.method, request.path)) or [problem(404, "queue-not-found")]
            step = steps.pop(0) if len(steps) > 1 else steps[0]
        return step(request) if callable(step) else step

    def _handler_class(self) -> type[BaseHTTPRequestHandler]:
        service = self

        class Handler(QuietHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # head and body in one packet

            def _serve(self) -> None:
                answer = service._next(self._read())
                if isinstance(answer, Break):
                    self.close_connection = True
                    break_off(self.connection)
                    return
                if isinstance(answer, Trickle):
                    self.close_connection = True
                    _trickle(self.connection, answer, service._ended)
                    return
                time.sleep(answer.delay)
                self._write(answer)

            do_GET = do_PUT = do_POST = do_DELETE = _serve  # noqa: N815 - the names that http.server looks for

            def _read(self) -> Received:
                url = urlsplit(self.path)
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                return Received(
                    method=self.command,
                    path=url.path,
                    query=dict(parse_qsl(url.query)),
                    body=json.loads(body) if body else None,
                    headers={name.lower(): value for name, value in self.headers.items()},
                    connection=self.client_address[1],
                    at=time.monotonic(),
                )

            def _write(self, answer: Answer) -> None:
                body = b"" if answer.payload is None else json.dumps(answer.payload).encode()
                self.send_response(answer.status)
                for name, value in {"content-type": "application/json", **answer.headers}.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        return Handler


def _trickle(connection: socket.socket, answer: Trickle, ended: threading.Event) -> None:
    begun = b"x-filler: " if answer.of_head else b"content-length: 1000000\r\n\r\n"
    try:
        connection.sendall(b"HTTP/1.1 200 OK\r\n" + begun)
        while not ended.wait(0.05):
            connection.sendall(b"1")
    except OSError:
        answer.left.set()


def problem(status: int, code: str, *, headers: Mapping[str, str] | None = None, **more: object) -> Answer:
    payload = {"type": "about:blank", "title": code, "status": status, "detail": f"about {code}", "code": code, "request_id": "r-1", **more}
    return Answer(payload, status, {"content-type": "application/problem+json", **(headers or {})})


def message(**changes: object) -> dict[str, Any]:
    return {
        "id": "42",
        "queue": "default",
        "body": {"file": "a.wav"},
        "headers": {"lang": "en"},
        "priority": 0,
        "fairness_key": "",
        "work_type": None,
        "task_id": None,
        "created_at": MOMENT,
        "attempt_count": 0,
        "max_attempts": 3,
        "source_queue": None,
        "progress": None,
        "detail": None,
        **changes,
    }


def lease(receipt: str = "secret-1", *, expires_in: float = 60.0, **changes: object) -> dict[str, Any]:
    return {
        "receipt": receipt,
        "generation": 1,
        "attempt": 1,
        "expires_at": MOMENT,
        "expires_in": expires_in,
        "deadline_in": 43200.0,
        "beat_interval": 10.0,
        "extension": 60.0,
        "message": message(),
        **changes,
    }


def beat_result(
    receipt: str = "secret-1", status: str = "extended", expires_in: float | None = 60.0, next_beat_in: float | None = 10.0
) -> dict[str, Any]:
    return {"receipt": receipt, "status": status, "expires_at": MOMENT, "expires_in": expires_in, "next_beat_in": next_beat_in}


def verdicts(status: str, **more: object) -> Callable[[Received], Answer]:
    """Give the same verdict to each lease of a call."""
    return lambda request: Answer({"results": _results(request, status, more)})


def beats(
    status: str = "extended", expires_in: float | None = 60.0, next_beat_in: float | None = 10.0, *, drain: bool = False
) -> Callable[[Received], Answer]:
    """Answer each beat of a call in the same way."""
    more = {"expires_at": MOMENT, "expires_in": expires_in, "next_beat_in": next_beat_in}
    return lambda request: Answer({"results": _results(request, status, more), "drain": drain})


def _results(request: Received, status: str, more: Mapping[str, object]) -> list[dict[str, object]]:
    return [{"receipt": item["receipt"], "status": status, **more} for item in request.body["leases"]]

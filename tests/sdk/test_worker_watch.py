"""The threads that beat and mind deadlines are broken for real: an exception is raised inside them, or a call in them never returns."""

import ctypes
import json
import logging
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

import pytest
from harness.wait import until
from sdk.running import CLAIM, Start, grant, park
from sdk.scripted_service import ScriptedService, beat_result, beats, lease

from leasebeat import Context, LeasedMessage, Options
from leasebeat._beat_sender import BeatSender
from leasebeat._call import Reply, finish
from leasebeat._calls.leases import claim
from leasebeat._tracked_lease import TrackedLease


class Killed(BaseException):
    """No `except Exception` stops it."""


def kill(name: str, end: type[BaseException]) -> threading.Thread:
    """Raise an exception in the thread of that name, as soon as it does something."""
    (thread,) = [each for each in threading.enumerate() if each.name == name]
    assert thread.ident is not None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(end))
    return thread


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("end", [SystemExit, Killed])
@pytest.mark.parametrize("name", ["leasebeat-beats", "leasebeat-deadlines"])
def test_a_thread_that_dies_is_started_anew(
    name: str, end: type[BaseException], service: ScriptedService, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """The lease of 3 seconds outlives the thread by far, and its end is heard once the beats stop."""
    service.on("POST", CLAIM, grant(lease(expires_in=3.0)), park)
    service.on("POST", "/beat", beats(expires_in=3.0, next_beat_in=0.2))
    broken = threading.Event()

    def handle(_message: LeasedMessage, context: Context) -> list[bool]:
        enough = time.monotonic() + 6.0
        while time.monotonic() < enough or not broken.is_set():
            context.beat()
            time.sleep(0.01)
        kept = not context.lost.is_set()
        return [kept, context.lost.wait(10)]

    start(handle, drain_timeout=20.0)
    service.wait_for("/beat")
    thread = kill(name, end)
    until(lambda: not thread.is_alive())
    broken.set()
    (ack,) = service.wait_for("/ack", timeout=30)
    assert ack.body["leases"][0]["output"] == [True, True]
    assert [record.levelno for record in caplog.records if record.getMessage() == f"The thread {name} has died and is started anew"] == [
        logging.ERROR
    ]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_both_threads_that_die_at_once_are_started_by_the_next_beat(service: ScriptedService, start: Start) -> None:
    service.on("POST", "/beat", beats(expires_in=60.0, next_beat_in=0.1))
    broken = threading.Event()

    def handle(_message: LeasedMessage, context: Context) -> None:
        context.beat()
        assert broken.wait(20)
        context.beat()
        service.wait_for("/beat", 2, timeout=10)

    start(handle)
    service.wait_for("/beat")
    killed = [kill(name, SystemExit) for name in ("leasebeat-beats", "leasebeat-deadlines")]
    until(lambda: not any(thread.is_alive() for thread in killed))
    broken.set()
    service.wait_for("/ack", timeout=20)


def senders() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "leasebeat-beats"]


@pytest.fixture
def held() -> TrackedLease:
    now = time.monotonic()
    body = json.dumps({"leases": [lease(expires_in=60.0)]}).encode()
    (granted,) = finish(claim("default", worker_id="w"), Reply(status=200, body=body, retry_after=None, sent_at=now, answered_at=now))
    return TrackedLease(granted)


def test_a_thread_that_stalls_is_replaced_and_ends_when_it_can(
    held: TrackedLease, service: ScriptedService, caplog: pytest.LogCaptureFixture
) -> None:
    """What the service's `drain` sets off does not come back."""
    hang = threading.Event()

    def on_drain() -> None:
        hang.wait(30)

    service.on("POST", "/beat", beats(next_beat_in=0.1, drain=True), beats(next_beat_in=0.1))
    sender = BeatSender(Options(base_url=service.url, timeout=0.2), "w", on_drain)
    try:
        sender.track(held)
        move(held, sender)
        service.wait_for("/beat")
        move(held, sender)
        service.wait_for("/beat", 2, timeout=15)
        assert "The thread leasebeat-beats stalls and is started anew" in caplog.messages
        assert len(senders()) == 2
        hang.set()
        until(lambda: len(senders()) == 1)
        move(held, sender)
        service.wait_for("/beat", 3)
    finally:
        hang.set()
        sender.close()


def test_a_beat_whose_answer_trickles_in_for_ever_is_sent_again(held: TrackedLease) -> None:
    """Each byte is in time, so no time-out ends the call; only the watch does."""
    with TricklingService() as service:
        sender = BeatSender(Options(base_url=service.url, timeout=0.5), "w", lambda: None)
        try:
            sender.track(held)
            move(held, sender)
            first, second = until(lambda: service.asked[:2] if len(service.asked) > 1 else [], timeout=15)
        finally:
            service.ended.set()
            sender.close()
    assert first == second


def move(held: TrackedLease, sender: BeatSender) -> None:
    held.move()
    sender.wake()


class TricklingService:
    """Answers its first beat one byte after another, without an end, and all others at once."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.ended = threading.Event()
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                service.asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                self.send_response(200)
                if len(service.asked) == 1:
                    self.trickle()
                    return
                body = json.dumps({"results": [beat_result()]}).encode()
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def trickle(self) -> None:
                self.send_header("content-length", "1000000")
                self.end_headers()
                while not service.ended.wait(0.05):
                    self.wfile.write(b" ")

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - named by http.server
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()

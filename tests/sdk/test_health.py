"""What a worker answers the probes of a platform, over real connections."""

import os
import socket
import threading
import time
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from harness.wait import until
from sdk.running import CLAIM, Start, grant, park
from sdk.scripted_service import Break, Received, ScriptedService, beats, lease, verdicts

import leasebeat
from leasebeat import Context, LeasedMessage
from leasebeat._health_server import MAX_CONNECTIONS

LOOPBACK = "127.0.0.1"


@pytest.fixture
def port() -> int:
    with socket.create_server((LOOPBACK, 0)) as probe:
        return int(probe.getsockname()[1])


@pytest.fixture
def healthy(start: Start, port: int) -> Start:
    """Start workers that answer probes on that port."""

    def begin(handler: leasebeat.Handler, **options: Any) -> Any:
        return start(handler, health_port=port, health_host=LOOPBACK, **options)

    return begin


def probe(port: int, what: str) -> tuple[int, Any]:
    answer = httpx.get(f"http://{LOOPBACK}:{port}/health/{what}", timeout=30)
    assert answer.headers["content-type"] == "application/json"
    return answer.status_code, answer.json()


def wait_for(port: int, what: str, status: int) -> Any:
    """Probe until it is answered so, and return the body."""

    def answered() -> Any:
        try:
            found, body = probe(port, what)
        except httpx.TransportError:
            return None
        return body if found == status else None

    return until(answered)


def test_a_worker_that_polls_is_live_and_ready(service: ScriptedService, healthy: Start, port: int) -> None:
    service.on("POST", CLAIM, park)
    healthy(lambda _message, _context: None)
    service.wait_for(CLAIM)
    assert probe(port, "live") == (200, {"status": "live"})
    assert probe(port, "ready") == (200, {"status": "ready"})


def test_a_worker_whose_slots_are_taken_is_ready(service: ScriptedService, healthy: Start, port: int) -> None:
    done = threading.Event()
    healthy(lambda _message, _context: done.wait(60))
    service.wait_for(CLAIM)
    assert wait_for(port, "ready", 200) == {"status": "ready"}
    done.set()


@pytest.mark.scar(12)
def test_a_handler_that_does_not_beat_for_too_long_is_not_live(service: ScriptedService, healthy: Start, port: int) -> None:
    fall_silent, go_on, done = (threading.Event() for _ in range(3))

    def handle(_message: LeasedMessage, context: Context) -> None:
        while not done.wait(0.01):
            context.beat()
            if fall_silent.is_set():
                go_on.wait(60)

    service.on("POST", "/beat", beats())
    healthy(handle, stall_threshold=1.0)
    service.wait_for(CLAIM)
    wait_for(port, "live", 200)
    fall_silent.set()
    stalled = wait_for(port, "live", 503)
    assert stalled["status"] == "stalled"
    assert stalled["stalled"]["42"] >= 1.0
    go_on.set()
    wait_for(port, "live", 200)
    done.set()


def test_a_handler_that_has_ended_is_not_stalled_while_its_ack_is_tried(service: ScriptedService, healthy: Start, port: int) -> None:
    service.on("POST", "/ack", Break())
    healthy(lambda _message, _context: None, stall_threshold=0.001)
    service.wait_for("/ack", 2)
    assert probe(port, "live")[0] == 200
    service.on("POST", "/ack", verdicts("acked", late=False))


def test_a_stopping_worker_is_live_but_not_ready(service: ScriptedService, healthy: Start, port: int) -> None:
    done = threading.Event()
    running = healthy(lambda _message, _context: done.wait(60), drain_timeout=60.0)
    service.wait_for(CLAIM)
    wait_for(port, "ready", 200)
    running.worker.stop()
    assert wait_for(port, "ready", 503) == {"status": "stopping"}
    assert probe(port, "live")[0] == 200
    done.set()
    running.join()
    with pytest.raises(httpx.ConnectError):
        probe(port, "live")


def test_a_drained_worker_is_not_ready(service: ScriptedService, healthy: Start, port: int) -> None:
    done = threading.Event()
    service.on("POST", CLAIM, grant(lease(), drain=True))
    healthy(lambda _message, _context: done.wait(60), drain_timeout=60.0)
    service.wait_for(CLAIM)
    wait_for(port, "ready", 503)
    done.set()


def test_a_worker_that_cannot_reach_the_service_is_not_ready_until_it_can(
    service: ScriptedService, healthy: Start, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leasebeat._worker.UNREACHED_S", 0.5)
    service.on("POST", CLAIM, Break())
    healthy(lambda _message, _context: None)
    assert wait_for(port, "ready", 503)["status"] == "unreached"
    assert probe(port, "live")[0] == 200
    service.on("POST", CLAIM, park)
    assert wait_for(port, "ready", 200) == {"status": "ready"}


def test_the_time_without_the_service_counts_from_when_it_was_first_asked_in_vain(
    service: ScriptedService, healthy: Start, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang_then_break(_request: Received) -> Break:
        time.sleep(0.7)
        return Break()

    monkeypatch.setattr("leasebeat._worker.UNREACHED_S", 0.5)
    service.on("POST", CLAIM, hang_then_break)
    healthy(lambda _message, _context: None)
    assert wait_for(port, "ready", 503)["seconds"] >= 1.4, "one claim, and its repeat on a fresh connection"


def test_clients_that_say_nothing_or_nonsense_keep_no_probe_from_its_answer(service: ScriptedService, healthy: Start, port: int) -> None:
    service.on("POST", CLAIM, park)
    healthy(lambda _message, _context: None)
    service.wait_for(CLAIM)
    with ExitStack() as connections:
        for number in range(MAX_CONNECTIONS * 3):
            connection = connections.enter_context(socket.create_connection((LOOPBACK, port), 60))
            connection.sendall([b"", b"GET /health", b"GET /health/live HTTP/1.1\r\nx: ", b"\0\xff\r\n\r\n"][number % 4])
        assert probe(port, "live")[0] == 200
        until(lambda: len([thread for thread in threading.enumerate() if "process_request" in thread.name]) <= MAX_CONNECTIONS)
        assert probe(port, "ready")[0] == 200


def test_what_is_no_probe_is_refused(service: ScriptedService, healthy: Start, port: int) -> None:
    service.on("POST", CLAIM, park)
    healthy(lambda _message, _context: None)
    service.wait_for(CLAIM)
    assert probe(port, "other") == (404, {"code": 404})
    answer = httpx.post(f"http://{LOOPBACK}:{port}/health/live", timeout=30)
    assert (answer.status_code, answer.json()) == (501, {"code": 501})
    assert "Python" not in answer.headers["server"]
    assert httpx.head(f"http://{LOOPBACK}:{port}/health/live", timeout=30).status_code == 200


def test_a_port_that_is_taken_ends_the_worker(service: ScriptedService, start: Start) -> None:
    with socket.create_server((LOOPBACK, 0)) as taken:
        running = start(lambda _message, _context: None, health_port=taken.getsockname()[1], health_host=LOOPBACK)
        running.join()
    assert isinstance(running.error, OSError)
    assert service.received == []


@pytest.mark.scar(16)
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_does_not_keep_the_port(service: ScriptedService, healthy: Start, port: int) -> None:
    end = os.pipe()
    children: list[int] = []

    def handle(_message: LeasedMessage, _context: Context) -> None:
        child = os.fork()
        if child == 0:
            os.close(end[1])
            os.read(end[0], 1)
            os._exit(0)
        children.append(child)

    running = healthy(handle)
    try:
        service.wait_for("/ack")
        running.stop()
        with pytest.raises(httpx.ConnectError):
            probe(port, "live")
    finally:
        for number in end:
            os.close(number)
        for child in children:
            os.waitpid(child, 0)

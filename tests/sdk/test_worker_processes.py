"""Handlers in processes of their own: real ones, that are really killed."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

import psutil
import pytest
from harness.wait import until
from sdk.cli.command import is_alive, until_gone
from sdk.running import CLAIM, Start, grant, grant_until_settled, park, paths, until_extended
from sdk.scripted_service import Answer, Received, ScriptedService, beats, lease, message, verdicts

import leasebeat
from leasebeat import Worker
from leasebeat._process_pool import ProcessCall, ProcessHandlers
from sdk import process_handlers

SOURCES = Path(leasebeat.__file__).parents[1]
TESTS = Path(__file__).parents[1]
LONG = 60.0  # a process is started in a second or two, but not on a busy machine


@pytest.fixture
def processes(start: Start) -> Start:
    """Start workers whose handlers run in processes."""

    def begin(handler: leasebeat.Handler, **options: Any) -> Any:
        return start(handler, processes=True, **options)

    return begin


@pytest.fixture
def word(tmp_path: Path) -> Path:
    """Where a handler leaves word."""
    return tmp_path / "word"


def work(service: ScriptedService, *bodies: object, **changes: Any) -> None:
    """Have a message for each body, and then no more."""
    leases = [
        lease(f"r-{number}", **{"message": message(id=str(number), body=body), **changes}) for number, body in enumerate(bodies, start=1)
    ]
    service.on("POST", CLAIM, *(grant(each) for each in leases), park)


def outputs(service: ScriptedService, count: int = 1) -> list[Any]:
    return [request.body["leases"][0].get("output") for request in service.wait_for("/ack", count)]


def told(word: Path) -> str:
    """Wait for the word that a handler leaves."""
    return until(lambda: word.read_text() if word.exists() else "")


# --- as in a thread


def test_a_handler_gets_its_message_and_context_and_its_result_is_acked(service: ScriptedService, processes: Start) -> None:
    work(service, {"file": "a.wav"}, {"file": "b.wav"}, generation=4, attempt=2)
    processes(process_handlers.facts, worker_id="worker-1")
    first, second = outputs(service, 2)
    assert 0 < first.pop("remaining") <= 60
    assert first == {"body": {"file": "a.wav"}, "pid": second["pid"], "attempt": 2, "generation": 4, "worker_id": "worker-1"}
    assert first["pid"] != os.getpid(), "one process serves many messages, and it is not this one"


def test_coroutines_run_there_too(service: ScriptedService, processes: Start) -> None:
    processes(process_handlers.coroutine)
    assert outputs(service) == ["42"]


@pytest.mark.scar(13)
def test_an_exception_is_a_nack_with_its_text_after_the_last_report(
    service: ScriptedService, processes: Start, caplog: pytest.LogCaptureFixture
) -> None:
    processes(process_handlers.report_then_fail)
    (nack,) = service.wait_for("/nack")
    assert nack.body["leases"] == [{"receipt": "secret-1", "error": "OSError: disk full\N{REPLACEMENT CHARACTER}?", "retryable": True}]
    assert service.asked("/beat")[-1].body["leases"] == [{"receipt": "secret-1", "progress": 2, "detail": {"offset": 99}}]
    assert paths(service)[-1] == "/nack"
    assert "process_handlers.py" in caplog.text, "the trace is that of the process"


@pytest.mark.parametrize(
    ("body", "item"),
    [
        ("give up", {"error": "GiveUp: not a wav file", "retryable": False}),
        ("retry later", {"error": "RetryLater: rate limit", "delay": 30, "retryable": True}),
        ("exit", {"error": "SystemExit: 3", "retryable": True}),
    ],
)
def test_a_handler_decides_what_becomes_of_its_message(
    body: str, item: dict[str, object], service: ScriptedService, processes: Start
) -> None:
    work(service, body)
    processes(process_handlers.decide)
    assert service.wait_for("/nack")[0].body["leases"] == [{"receipt": "r-1", **item}]


def test_an_output_without_json_form_is_a_nack(service: ScriptedService, processes: Start) -> None:
    processes(process_handlers.without_json)
    (item,) = service.wait_for("/nack")[0].body["leases"]
    assert "JSON" in item["error"]


def test_a_beat_costs_microseconds(service: ScriptedService, processes: Start) -> None:
    processes(process_handlers.cost)
    assert outputs(service)[0] < 50e-6


def test_a_handler_hears_that_the_worker_stops(service: ScriptedService, processes: Start, word: Path) -> None:
    work(service, str(word))
    running = processes(process_handlers.finish_when_stopping, drain_timeout=LONG)
    told(word)
    running.worker.stop()
    running.join()
    assert outputs(service) == ["finished"]


def test_a_handler_may_have_processes_of_its_own(service: ScriptedService, processes: Start) -> None:
    processes(process_handlers.parent_of_processes)
    assert outputs(service) == [3]


@pytest.mark.parametrize("handler", [lambda _message, _context: None, threading.Lock()])
def test_a_handler_that_no_process_can_import_is_refused(handler: Any, service: ScriptedService) -> None:
    with pytest.raises(ValueError, match="importable by name"):
        Worker(service.url, "default", handler, processes=True)


def test_processes_that_do_not_start_end_the_worker(service: ScriptedService, processes: Start) -> None:
    running = processes(process_handlers.Unloadable(), concurrency=2)
    running.join()
    assert isinstance(running.error, leasebeat.LeasebeatError)
    assert "exit status 3" in str(running.error)
    assert service.received == [], "nothing is leased that nobody can work on"
    until(lambda: multiprocessing.active_children() == [])


def test_a_worker_leaves_no_processes(service: ScriptedService, processes: Start) -> None:
    running = processes(process_handlers.facts, concurrency=2)
    outputs(service)
    assert len(multiprocessing.active_children()) == 2
    running.worker.stop()
    running.join()
    until(lambda: multiprocessing.active_children() == [])


# --- death and loss


@pytest.mark.scar(30)
@pytest.mark.parametrize(("body", "manner"), [("kill", "killed by signal 9"), ("exit", "exit status 3")])
def test_a_process_that_dies_is_a_nack_and_is_replaced(body: str, manner: str, service: ScriptedService, processes: Start) -> None:
    work(service, body, "live")
    processes(process_handlers.die)
    (nack,) = service.wait_for("/nack")
    (item,) = nack.body["leases"]
    assert item["error"] == f"HandlerProcessError: the process of the handler ended: {manner}"
    assert service.asked("/beat")[0].body["leases"] == [{"receipt": "r-1", "progress": 5}], "its last report is not lost with it"
    assert outputs(service)[0].startswith("alive")


def test_a_process_that_dies_while_it_is_idle_costs_no_attempt(service: ScriptedService, processes: Start) -> None:
    killed = threading.Event()

    def park_until_killed(request: Received) -> Answer:
        if not killed.is_set():
            return park(request)
        service.on("POST", CLAIM, park)
        return grant(lease("r-2", message=message(id="2")))

    service.on("POST", CLAIM, grant(lease("r-1")), park_until_killed)
    processes(process_handlers.facts)
    (first,) = outputs(service)
    until(lambda: len(service.asked(CLAIM)) > 1)
    os.kill(first["pid"], signal.SIGKILL)
    killed.set()
    assert outputs(service, 2)[1]["pid"] != first["pid"]
    assert service.asked("/nack") == []


def test_a_process_that_dies_is_noticed_though_a_child_of_its_own_holds_its_pipes(
    service: ScriptedService, processes: Start, word: Path
) -> None:
    work(service, str(word))
    processes(process_handlers.with_a_child_that_lives_on)
    try:
        service.wait_for("/nack")
        assert is_alive(int(told(word)))
    finally:
        os.kill(int(told(word)), signal.SIGKILL)


@pytest.mark.scar(9)
def test_a_handler_hears_at_once_that_its_lease_is_over(service: ScriptedService, processes: Start, word: Path) -> None:
    service.on("POST", "/beat", beats("lost", expires_in=None, next_beat_in=None))
    work(service, str(word))
    running = processes(process_handlers.until_lost)
    assert told(word) == "LeaseConflictError True"
    service.wait_for(CLAIM, 2)
    running.worker.stop()
    running.join()
    assert paths(service) == ["/beat"], "a lost lease is neither beaten for again nor nacked"


def test_a_handler_that_only_waits_hears_of_its_deadline(service: ScriptedService, processes: Start, word: Path) -> None:
    service.on("POST", CLAIM, grant_until_settled(service, lease(expires_in=3.0, message=message(body=str(word)))))
    processes(process_handlers.wait_for_loss)
    assert told(word) == "lost: True"


@pytest.mark.scar(12)
@pytest.mark.parametrize(("handler", "asked"), [(process_handlers.hang, False), (process_handlers.hang_politely, True)])
def test_a_process_that_goes_on_without_its_lease_is_ended(
    handler: leasebeat.Handler, asked: bool, service: ScriptedService, processes: Start, word: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By SIGTERM, which lets it clean up, then by SIGKILL. Its place is then free for another message."""
    monkeypatch.setattr("leasebeat._process_pool.LOST_GRACE_S", 0.3)
    monkeypatch.setattr("leasebeat._process_pool.TERM_GRACE_S", LONG if asked else 1.0)
    service.on("POST", "/beat", beats("cancelled", expires_in=None, next_beat_in=None))
    work(service, str(word))
    processes(handler)
    pid = int(told(word))
    until(lambda: not is_alive(pid) or len(service.asked(CLAIM)) > 1)
    service.wait_for(CLAIM, 2)
    assert not is_alive(pid)
    assert word.with_name("word.ended").exists() == asked
    assert service.asked("/nack") == service.asked("/ack") == []


@pytest.mark.scar(32)
@pytest.mark.parametrize("handler", [process_handlers.hang, process_handlers.hang_politely])
def test_what_does_not_finish_is_ended_before_its_release(
    handler: leasebeat.Handler, service: ScriptedService, processes: Start, word: Path
) -> None:
    found: list[bool] = []

    def release(request: Received) -> Answer:
        found.append(is_alive(int(word.read_text())))
        return verdicts("released")(request)

    service.on("POST", "/release", release)
    work(service, str(word))
    running = processes(handler, drain_timeout=0.1)
    told(word)
    running.worker.stop()
    running.join()
    assert found == [False], "somebody else could be at work before this handler has ended"
    assert paths(service)[-1] == "/release"


@pytest.mark.scar(12)
@pytest.mark.parametrize("left", ["a thread", "a process"])
def test_who_a_handler_leaves_behind_does_not_beat_for_the_next_message(
    left: str, service: ScriptedService, processes: Start, word: Path
) -> None:
    work(service, *({"word": str(word), "leaves": leaves} for leaves in (left, None)))
    processes(process_handlers.beside_one_who_beats_on)
    (child,) = outputs(service)
    try:
        (nack,) = service.wait_for("/nack")
    finally:
        if child is not None:
            os.kill(child, signal.SIGKILL)
    assert nack.body["leases"] == [{"receipt": "r-2", "error": "OSError: silent", "retryable": True}]
    beaten_for = [item["receipt"] for request in service.asked("/beat") for item in request.body["leases"]]
    assert "r-2" not in beaten_for, "the nack comes after the last report, if there is one"


class Looked:
    """Stands for a call, and counts how often it is looked at."""

    def __init__(self, error: Exception | None = None) -> None:
        self.message_id = "42"
        self.looks = 0
        self._error = error

    def look(self) -> None:
        self.looks += 1
        if self._error is not None:
            raise self._error


def test_a_page_that_cannot_be_read_is_in_the_way_of_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """Ten calls, so that some of the bad ones come first in whatever order."""
    good, bad = [Looked() for _ in range(5)], [Looked(ValueError("no progress")) for _ in range(5)]
    with ProcessHandlers(process_handlers.facts, 0, threading.Event()) as handlers, ExitStack() as stack:
        for call in (*good, *bad):
            stack.enter_context(handlers.watching(cast("ProcessCall", call)))
        until(lambda: min(call.looks for call in good) > 20, timeout=20)
    assert [call.looks for call in bad] == [1] * 5
    assert caplog.text.count("reports cannot be read") == 5


@pytest.mark.scar(12)
def test_a_handler_that_spoils_its_page_loses_its_lease(
    service: ScriptedService, processes: Start, caplog: pytest.LogCaptureFixture
) -> None:
    work(service, 1, expires_in=3.0)
    processes(process_handlers.spoil_its_page)
    service.wait_for(CLAIM, 2)
    assert [path for path in paths(service) if path != "/beat"] == []
    assert caplog.text.count("reports cannot be read") == 1


# --- the worker's own process


@contextmanager
def worker_process(handler: str, url: str, queue: str, **options: object) -> Iterator["subprocess.Popen[bytes]"]:
    """A worker with a process group of its own, which does not outlive the block."""
    program = (
        "import sys; from leasebeat import Worker; from sdk import process_handlers\n"
        f"Worker(sys.argv[1], sys.argv[2], process_handlers.{handler}, processes=True, **{options!r}).run()"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (SOURCES, TESTS)))}
    with subprocess.Popen([sys.executable, "-c", program, url, queue], env=environment, start_new_session=True) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("handler", ["busy", "hang"])
def test_no_process_outlives_a_worker_that_is_killed(handler: str, willing: ScriptedService, word: Path) -> None:
    work(willing, str(word))
    with worker_process(handler, willing.url, "default", concurrency=2) as worker:
        willing.wait_for("/beat")
        children = [child.pid for child in psutil.Process(worker.pid).children(recursive=True)]
        assert len(children) >= 2
        worker.kill()
        worker.wait(LONG)
        until_gone(*children)


@pytest.mark.scar(10)
@pytest.mark.timed
def test_a_group_that_was_frozen_hears_of_its_loss_from_its_next_beat(willing: ScriptedService, word: Path) -> None:
    willing.on("POST", "/beat", beats(expires_in=8.0, next_beat_in=0.2))
    work(willing, str(word), expires_in=8.0)
    with worker_process("until_lost", willing.url, "default") as worker:
        willing.wait_for("/beat", 2)
        os.killpg(worker.pid, signal.SIGSTOP)
        time.sleep(9)
        assert not word.exists()
        os.killpg(worker.pid, signal.SIGCONT)
        assert told(word) == "LeaseExpiredError True"


@pytest.mark.scar(14)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_whole_group_drains(number: signal.Signals, willing: ScriptedService, word: Path) -> None:
    """As from a terminal, or from a manager that signals every process of a service."""
    work(willing, str(word))
    with worker_process("finish_when_stopping", willing.url, "default", drain_timeout=LONG) as worker:
        told(word)
        os.killpg(worker.pid, number)
        assert worker.wait(LONG) == 0
    assert outputs(willing) == ["finished"]


@pytest.mark.scar(11)
def test_busy_processes_keep_their_leases(server: Any, queue: str, tmp_path: Path) -> None:
    """Two of them, until both leases of the real service have been extended some times."""
    enough = tmp_path / "enough"
    with leasebeat.Client(server.url) as client:
        client.put_queue(queue, visibility_timeout=60, extension=60, beat_interval=0.5)
        sent = client.send_many(queue, [leasebeat.NewMessage(str(enough))] * 2)
        worker = Worker(client, queue, process_handlers.busy, processes=True, concurrency=2, wait=5.0)
        thread = threading.Thread(target=worker.run, daemon=True)
        thread.start()
        try:
            until(lambda: len(client.list_leases(queue=queue).items) == 2)
            until_extended(client, queue, 4)
            enough.touch()
            until(lambda: all(client.get_message(each.id).status == "completed" for each in sent), pause=0.1)
        finally:
            enough.touch()
            worker.stop()
            thread.join(LONG)
        done = [client.get_message(each.id) for each in sent]
    assert [(each.output, each.generation, each.attempt_count) for each in done] == [(1, 1, 0)] * 2
    assert all((each.progress or 0) > 0 for each in done)

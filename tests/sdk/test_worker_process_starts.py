"""How processes for handlers start, and what they are given time for."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from harness.wait import until
from sdk.running import CLAIM, Start, grant, park
from sdk.scripted_service import Answer, Received, ScriptedService, beats, lease, message

import leasebeat
from sdk import slow_handlers

SOURCES = Path(leasebeat.__file__).parents[1]
LONG = 60.0  # a process is started in a moment, but not on a busy machine
PATIENCE = "leasebeat._process_pool.START_PATIENCE_S"


def test_a_process_for_handlers_does_without_the_http_library(service: ScriptedService, start: Start) -> None:
    """It takes longer to import than all else, and nothing there calls the service."""
    start(slow_handlers.loaded, processes=True)
    assert service.wait_for("/ack", timeout=LONG)[0].body["leases"][0]["output"]["httpx"] is False


def test_so_does_who_only_imports_the_package() -> None:
    program = "import sys, leasebeat; assert 'httpx' not in sys.modules; leasebeat.Client('http://service'); assert 'httpx' in sys.modules"
    subprocess.run([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(SOURCES)}, check=True, timeout=LONG)


@pytest.mark.timed
@pytest.mark.parametrize("slow_s", [0.0, slow_handlers.IMPORT_S / 2])
def test_an_import_may_take_its_time_while_it_moves(
    slow_s: float, service: ScriptedService, start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(PATIENCE, slow_handlers.IMPORT_S / 2)
    monkeypatch.setattr("leasebeat._process_pool.LONG_START_S", slow_s)
    start(slow_handlers.Imported(slow_handlers.slowly), processes=True)
    service.wait_for("/ack", timeout=LONG)
    assert caplog.text.count("A process for handlers has been starting for more than") == 1


def test_an_import_that_hangs_ends_the_worker_that_begins(service: ScriptedService, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PATIENCE, 1.0)
    running = start(slow_handlers.Imported(slow_handlers.never), processes=True)
    running.join(LONG)
    assert "hangs as it starts, in an import" in str(running.error)
    assert service.received == []


GONE = """
import multiprocessing
from leasebeat._process_child import serve
from leasebeat._process_page import Page

worker, child = multiprocessing.Pipe()
worker.close()
serve(child, Page(), print)
"""


def test_a_process_whose_worker_has_ended_as_it_started_ends_without_a_word() -> None:
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
    ended = subprocess.run([sys.executable, "-c", GONE], env=environment, capture_output=True, check=False, timeout=LONG)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")


def work_after_a_death(service: ScriptedService, expires_in: float) -> threading.Event:
    """Have a message, and another one once the process of the first is dead."""
    dead = threading.Event()

    def park_until_dead(request: Received) -> Answer:
        if not dead.is_set():
            return park(request)
        service.on("POST", CLAIM, park)
        return grant(lease("second", expires_in=expires_in, message=message(id="2")))

    service.on("POST", CLAIM, grant(lease("first")), park_until_dead)
    return dead


def kill_idle(service: ScriptedService) -> int:
    (first,) = service.wait_for("/ack", timeout=LONG)
    until(lambda: len(service.asked(CLAIM)) > 1, timeout=LONG)
    pid = int(first.body["leases"][0]["output"]["pid"])
    os.kill(pid, signal.SIGKILL)
    return pid


@pytest.mark.rule(9)
@pytest.mark.timed
def test_a_lease_is_kept_while_a_process_is_started_for_it(service: ScriptedService, start: Start) -> None:
    """The one that was idle has died, and its successor takes longer to import the handler than the lease lasts."""
    expires_in = slow_handlers.IMPORT_S / 2
    service.on("POST", "/beat", beats(expires_in=expires_in, next_beat_in=0.1))
    dead = work_after_a_death(service, expires_in)
    start(slow_handlers.Imported(slow_handlers.slowly), processes=True)
    pid = kill_idle(service)
    dead.set()
    again = service.wait_for("/ack", 2, timeout=LONG)[1].body["leases"][0]
    assert again["receipt"] == "second"
    assert again["output"]["pid"] != pid


@pytest.mark.rule(9)
def test_it_is_kept_too_while_no_process_can_be_started(service: ScriptedService, start: Start, tmp_path: Path) -> None:
    service.on("POST", "/beat", beats(next_beat_in=0.1))
    dead, word = work_after_a_death(service, 60.0), tmp_path / "word"
    start(slow_handlers.FailsWhileThereIs(word), processes=True)
    kill_idle(service)
    word.touch()
    dead.set()
    service.wait_for("/beat", 3, timeout=LONG)
    word.unlink()
    assert service.wait_for("/ack", 2, timeout=LONG)[1].body["leases"][0]["receipt"] == "second"


@pytest.mark.rule(9)
@pytest.mark.parametrize("kind", [slow_handlers.FailsWhileThereIs, slow_handlers.HangsWhileThereIs])
def test_it_is_given_back_if_the_worker_stops_before_there_is_a_process(
    kind: type[slow_handlers.HangsWhileThereIs], service: ScriptedService, start: Start, tmp_path: Path
) -> None:
    dead, word = work_after_a_death(service, 60.0), tmp_path / "word"
    running = start(kind(word), processes=True)
    kill_idle(service)
    word.touch()
    dead.set()
    service.wait_for("/beat", timeout=LONG)
    running.worker.stop()
    running.join()
    assert [request.body["leases"] for request in service.asked("/release")] == [[{"receipt": "second"}]]
    assert service.asked("/nack") == []


@pytest.mark.timed
def test_but_not_for_ever(service: ScriptedService, start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It runs out, as any other that does not move, and the process is started anew."""
    monkeypatch.setattr(PATIENCE, 1.0)
    service.on("POST", "/beat", beats(expires_in=0.5, next_beat_in=0.1))
    dead, word = work_after_a_death(service, 0.5), tmp_path / "word"
    start(slow_handlers.HangsWhileThereIs(word), processes=True)
    kill_idle(service)
    word.touch()
    dead.set()
    service.wait_for("/beat", timeout=LONG)
    until(lambda: time.monotonic() - service.asked("/beat")[-1].at > 2, timeout=LONG)
    word.unlink()
    claims = len(service.asked(CLAIM))
    until(lambda: len(service.asked(CLAIM)) > claims, timeout=LONG)
    assert len(service.asked("/ack")) == 1, "what is lost is not begun"

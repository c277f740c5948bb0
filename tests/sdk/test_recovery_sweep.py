"""`RecoverySweep` on services whose own timers sleep, so that what is recovered was recovered by it."""

import os
import re
import subprocess
import sys
import textwrap
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from harness.operating import RARELY
from harness.postgres import Databases, execute
from harness.server import Server
from harness.wait import until
from sdk.relay import Relay
from sdk.scripted_service import Answer, ScriptedService, problem

import leasebeat
from leasebeat import Client, RecoveryStats, ServiceUnreachableError
from leasebeat._recovery_sweep import RecoverySweep

Abandon = Callable[..., list[str]]

LONG = 40
SOURCES = Path(leasebeat.__file__).parents[1]
FIGURES = {"expired_found": 1, "recovered": 1, "failed": 0, "checkpoints_created": 1, "errors": 0, "scan_duration_ms": 0.5}


@dataclass(frozen=True)
class Sleepy:
    """A server whose timer looks for nothing by itself for longer than a test lasts, and its database."""

    url: str
    database_url: str


@pytest.fixture(scope="module")
def sleepy(postgres: Databases) -> Iterator[Sleepy]:
    database_url = postgres.create()
    with Server(database_url, sweep_interval=RARELY) as server:
        yield Sleepy(server.url, database_url)


@pytest.fixture
def client(sleepy: Sleepy) -> Iterator[Client]:
    with Client(sleepy.url) as client:
        yield client


@pytest.fixture
def abandon(client: Client, sleepy: Sleepy) -> Iterator[Abandon]:
    """Send and lease messages whose leases run out without the timer knowing of it, and return their ids."""
    queue = f"queue-{uuid.uuid4().hex[:12]}"
    client.put_queue(queue)

    def abandon(*bodies: Any, max_attempts: int = 3) -> list[str]:
        ids = [client.send(queue, body, max_attempts=max_attempts).id for body in bodies]
        client.claim(queue, worker_id="gone", max_messages=len(ids))
        execute(sleepy.database_url, "update lease set expires_at = now(), check_at = now()")
        return ids

    yield abandon
    client.delete_queue(queue, force=True)


@pytest.fixture
def recovering(service: ScriptedService) -> Iterator[Client]:
    """A client of a scripted service that recovers one work item per scan."""
    service.on("POST", "/recovery/sweep", Answer(FIGURES))
    with Client(service.url) as client:
        yield client


@pytest.fixture
def sweep(recovering: Client) -> Iterator[RecoverySweep]:
    sweep = RecoverySweep(recovering, scan_interval_seconds=3600)
    yield sweep
    sweep.stop()


def wait_until_recovered(client: Client, message_id: str) -> None:
    until(lambda: client.get_message(message_id).attempt_count == 1)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "leasebeat-recovery-sweep"]


# --- scans


def test_a_scan_recovers_and_says_what_it_did(client: Client, abandon: Abandon) -> None:
    retried = abandon("first", "second")
    (given_up,) = abandon("last attempt", max_attempts=1)
    stats = RecoverySweep(client).scan_and_recover()
    assert stats.scan_duration_ms > 0
    assert stats == RecoveryStats(
        expired_found=3, recovered=2, failed=1, checkpoints_created=3, errors=0, scan_duration_ms=stats.scan_duration_ms
    )
    assert [client.get_message(each).status for each in (*retried, given_up)] == ["pending", "pending", "failed"]
    (checkpoint,) = client.list_checkpoints(given_up).items
    assert (checkpoint.kind, checkpoint.facts["worker_id"]) == ("error_boundary", "gone")


def test_the_thread_recovers_again_and_again(client: Client, abandon: Abandon) -> None:
    sweep = RecoverySweep(client, scan_interval_seconds=0.1)
    sweep.start()
    try:
        for body in range(3):
            (abandoned,) = abandon(body)
            wait_until_recovered(client, abandoned)
            client.cancel_message(abandoned)
    finally:
        sweep.stop(timeout=LONG)
    assert not sweep.is_running()


@pytest.mark.scar(27)
def test_a_scan_that_fails_is_logged_and_scans_go_on(
    service: ScriptedService, recovering: Client, caplog: pytest.LogCaptureFixture
) -> None:
    service.on("POST", "/recovery/sweep", problem(500, "internal"), Answer("no figures"), Answer(FIGURES))
    sweep = RecoverySweep(recovering, scan_interval_seconds=0.05)
    sweep.start()
    service.wait_for("/recovery/sweep", 5)
    assert sweep.is_running()
    sweep.stop()
    assert len([each for each in caplog.messages if each.startswith("A scan failed")]) == 2


@pytest.mark.scar(27)
def test_scans_that_fail_back_off(service: ScriptedService, recovering: Client) -> None:
    service.on("POST", "/recovery/sweep", problem(500, "internal"))
    sweep = RecoverySweep(recovering, scan_interval_seconds=3600)
    sweep.start()
    first, second, third = (request.at for request in service.wait_for("/recovery/sweep", 3))
    sweep.stop()
    assert 0.5 <= second - first < 3600
    assert 1.0 <= third - second < 3600


# --- statistics


@pytest.mark.scar(33)
def test_statistics_count_each_scan_and_each_work_item_once(client: Client, abandon: Abandon) -> None:
    sweep = RecoverySweep(client)
    before = sweep.get_statistics()
    assert set(before) == {"is_running", "total_scans", "total_recovered", "total_failed", "last_scan"}
    abandon(*range(3))
    abandon("last attempt", max_attempts=1)
    stats = sweep.scan_and_recover()
    sweep.scan_and_recover()
    for _ in range(2):
        after = RecoverySweep(client).get_statistics()
        counted = {name: after[name] - before[name] for name in ("total_recovered", "total_failed")}
        assert counted == {"total_recovered": 3, "total_failed": 1}
        assert after["total_scans"] >= before["total_scans"] + 2  # by these, and by what the timer does as it starts
    assert stats.recovered == 3
    fields = {"expired_found", "recovered", "failed", "checkpoints_created", "errors", "scan_duration_ms", "ended_at"}
    assert set(after["last_scan"]) == fields
    assert after["last_scan"]["recovered"] == 0


def test_statistics_say_whether_the_sweep_runs(client: Client) -> None:
    sweep = RecoverySweep(client)
    sweep.start()
    assert sweep.get_statistics()["is_running"] is True
    sweep.stop(timeout=LONG)
    assert sweep.get_statistics()["is_running"] is False


def test_statistics_stay_as_they_were_while_the_service_is_away(sleepy: Sleepy, abandon: Abandon) -> None:
    (port,) = re.findall(r":(\d+)$", sleepy.url)
    with Relay(int(port)) as relay, Client(relay.url) as relayed:
        sweep = RecoverySweep(relayed)
        abandon("work")
        sweep.scan_and_recover()
        known = sweep.get_statistics()
        assert known["total_recovered"] > 0
        relay.cut(1)  # nobody listens there
        with pytest.raises(ServiceUnreachableError):
            sweep.scan_and_recover()
        assert sweep.get_statistics() == known
        unknown = {"is_running": False, "total_scans": 0, "total_recovered": 0, "total_failed": 0, "last_scan": None}
        assert RecoverySweep(relayed).get_statistics() == unknown


# --- options


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"scan_interval_seconds": 0}, "scan_interval_seconds"),
        ({"scan_interval_seconds": float("inf")}, "scan_interval_seconds"),
        ({"cleanup_old_checkpoints": False}, "newest 100 checkpoints"),
        ({"checkpoint_retention_limit": 101}, "newest 100 checkpoints"),
        ({"checkpoint_retention_limit": 0}, "newest 100 checkpoints"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], reason: str, recovering: Client) -> None:
    with pytest.raises(ValueError, match=reason):
        RecoverySweep(recovering, **options)


@pytest.mark.parametrize("options", [{"create_checkpoints": False}, {"checkpoint_retention_limit": 50}])
def test_fewer_checkpoints_than_the_service_keeps_may_be_asked_for(
    options: dict[str, Any], client: Client, abandon: Abandon, caplog: pytest.LogCaptureFixture
) -> None:
    (abandoned,) = abandon("work")
    assert RecoverySweep(client, **options).scan_and_recover().recovered == 1
    assert caplog.messages == ["The service creates checkpoints all the same, and keeps the newest 100 of each task"]
    assert len(client.list_checkpoints(abandoned).items) == 1


# --- how it begins and ends


def test_lifecycle(sweep: RecoverySweep, service: ScriptedService) -> None:
    assert not sweep.is_running()
    sweep.stop()
    sweep.start()
    sweep.start()
    assert sweep.is_running()
    assert len(threads()) == 1
    service.wait_for("/recovery/sweep")
    sweep.stop(timeout=LONG)
    assert not sweep.is_running()
    assert threads() == []
    sweep.start()
    service.wait_for("/recovery/sweep", 2)
    assert sweep.is_running()


def test_stop_need_not_wait(sweep: RecoverySweep, service: ScriptedService) -> None:
    answer = threading.Event()
    service.on("POST", "/recovery/sweep", lambda _: Answer(FIGURES if answer.wait(LONG) else None))
    sweep.start()
    service.wait_for("/recovery/sweep")
    sweep.stop(wait=False)
    sweep.stop(timeout=0.1)
    assert sweep.is_running()
    answer.set()
    until(lambda: not sweep.is_running())


@pytest.mark.scar(16)
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_no_thread_until_it_starts_one(sweep: RecoverySweep, service: ScriptedService) -> None:
    sweep.start()
    service.wait_for("/recovery/sweep")
    child = os.fork()
    if child == 0:
        inherited = sweep.is_running()
        sweep.start()
        started = sweep.is_running()
        sweep.stop(timeout=LONG)
        os._exit(int(inherited) + 2 * int(not started) + 4 * int(sweep.is_running()))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert sweep.is_running()


STORM = textwrap.dedent("""
    import signal, sys, threading
    from leasebeat import Client
    from leasebeat._recovery_sweep import RecoverySweep

    sweep = RecoverySweep(Client(sys.argv[1]), scan_interval_seconds=0.01)
    signals = 0

    def handle(_signal, _frame):
        global signals
        signals += 1
        sweep.stop(wait=False)

    signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.0003, 0.0003)
    while signals < 500:
        sweep.start()
        sweep.stop(wait=False)
    signal.setitimer(signal.ITIMER_REAL, 0)
    sweep.stop()
    print("ended")
""")


def test_a_signal_handler_may_stop_it_whatever_it_interrupts(service: ScriptedService, recovering: Client) -> None:
    """Hundreds of signals arrive while the main thread starts and stops: a lock that stop took would be held in one of these moments."""
    assert recovering.sweep().recovered == 1
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
    ended = subprocess.run([sys.executable, "-c", STORM, service.url], env=environment, capture_output=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout.decode().strip()) == (0, "ended"), ended.stderr.decode()

"""`HeartbeatThread`: what it keeps alive, what it calls a loss, and how it begins and ends."""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from queue import SimpleQueue
from typing import Any

import pytest
from harness.api import Api, Json
from harness.postgres import RunOut
from harness.server import Server
from harness.wait import until
from sdk.relay import Relay
from sdk.running import frozen, program_process, until_extended
from sdk.scripted_service import Answer, Break, Received, ScriptedService, beats, lease, problem, verdicts

from leasebeat import Client, Lease, LeaseConflictError
from leasebeat._heartbeat_thread import HeartbeatThread, start_heartbeat
from leasebeat._lease_manager import LeaseManager
from leasebeat._stoppable_thread import Stop, StoppableThread

LONG = 40
LOGGER = "leasebeat._heartbeat_thread"
CLAIM = "/queues/default/leases"


@dataclass
class Told:
    """Counts the calls of `on_lease_lost`, and when the first one came."""

    at: list[float] = field(default_factory=list)

    def __call__(self) -> None:
        self.at.append(time.monotonic())


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


@pytest.fixture
def manager(client: Client, queue: str) -> LeaseManager:
    """A manager with leases that no test lasts, extended at most every fifth of a second."""
    client.put_queue(queue, visibility_timeout=300, extension=300, beat_interval=0.2)
    return LeaseManager(client, "worker-1", queue=queue)


@pytest.fixture
def acquired(manager: LeaseManager, client: Client, queue: str) -> Lease:
    client.send(queue, "work")
    acquired = manager.acquire_lease(None)
    assert acquired is not None
    return acquired


Begin = Callable[..., HeartbeatThread]


@pytest.fixture
def begin() -> Iterator[Begin]:
    """Start heartbeats; they end with the test."""
    begun: list[HeartbeatThread] = []

    def start(*arguments: Any, **options: Any) -> HeartbeatThread:
        begun.append(HeartbeatThread(*arguments, **options))
        begun[-1].start()
        return begun[-1]

    yield start
    for each in begun:
        each.stop(timeout=LONG)
        assert not each.is_running()


@pytest.fixture
def scripted(service: ScriptedService) -> Iterator[Callable[..., tuple[LeaseManager, str]]]:
    """Acquire a lease of a scripted service."""
    with Client(service.url) as client:

        def acquire(*, expires_in: float = 60.0) -> tuple[LeaseManager, str]:
            service.on("POST", CLAIM, Answer({"leases": [lease(expires_in=expires_in)], "waited": 0.0, "drain": False}))
            manager = LeaseManager(client, "worker-1")
            acquired = manager.acquire_lease()
            assert acquired is not None
            return manager, acquired.work_item_id

        yield acquire


Scripted = Callable[..., tuple[LeaseManager, str]]


def held(api: Api, queue: str) -> Json:
    (only,) = api.call("GET", "/leases", params={"queue": queue})["items"]
    return only


def break_once(ended: threading.Event) -> Callable[[Received], Break]:
    """Let a call hang until the test ends that."""

    def answer(_request: Received) -> Break:
        ended.wait(LONG)
        return Break()

    return answer


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("leasebeat-heartbeat")]


# --- what it keeps


def test_it_extends_the_lease_for_as_long_as_the_work_takes(
    manager: LeaseManager, acquired: Lease, client: Client, api: Api, queue: str, begin: Begin
) -> None:
    told = Told()
    heartbeat = begin(manager, acquired.work_item_id, 0.3, on_lease_lost=told)
    until_extended(client, queue, 3)
    assert held(api, queue)["generation"] == 1
    assert manager.release_lease(acquired.work_item_id)
    heartbeat.stop(timeout=LONG)
    assert told.at == []
    message = api.message(acquired.work_item_id)
    assert (message["status"], message["attempt_count"], message["generation"]) == ("completed", 0, 1)


def test_the_first_beat_goes_out_at_once(manager: LeaseManager, acquired: Lease, api: Api, queue: str, begin: Begin) -> None:
    begin(manager, acquired.work_item_id, 3600)
    until(lambda: held(api, queue)["last_beat_at"])


@pytest.mark.timed
def test_beats_come_sooner_than_the_interval_where_the_lease_is_shorter(scripted: Scripted, service: ScriptedService, begin: Begin) -> None:
    service.on("POST", "/beat", beats(expires_in=4.0))
    told = Told()
    begin(*scripted(expires_in=4.0), 3600, on_lease_lost=told)
    service.wait_for("/beat", 2)
    assert told.at == []


def test_beats_come_as_often_as_asked_for(scripted: Scripted, service: ScriptedService, begin: Begin) -> None:
    service.on("POST", "/beat", beats())
    begin(*scripted(), 0.25)
    times = [request.at for request in service.wait_for("/beat", 5)]
    assert all(after - before >= 0.2 for before, after in pairwise(times))


@pytest.mark.scar(12)
@pytest.mark.timed
def test_a_stuck_worker_loses_its_lease_where_progress_is_required(
    manager: LeaseManager, client: Client, api: Api, queue: str, begin: Begin
) -> None:
    client.put_queue(queue, visibility_timeout=6, extension=6, beat_interval=0.2, progress_required=True)
    client.send(queue, "work")
    acquired = manager.acquire_lease(None)
    assert acquired is not None
    told, done = Told(), 0
    moving = True

    def progress() -> int:
        nonlocal done
        done += moving
        return done

    begin(manager, acquired.work_item_id, 0.3, on_lease_lost=told, progress=progress)
    until_extended(client, queue, 3)
    assert told.at == []
    moving = False
    until(lambda: told.at)
    until(lambda: api.message(acquired.work_item_id)["expired_count"] == 1)
    assert api.message(acquired.work_item_id)["progress"] == done


def test_progress_that_is_not_known_goes_without(
    scripted: Scripted, service: ScriptedService, begin: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    answers: Iterator[int | Exception | None] = iter([7, OSError("no counter"), None, 8])

    def progress() -> int | None:
        answer = next(answers, 9)
        if isinstance(answer, Exception):
            raise answer
        return answer

    service.on("POST", "/beat", beats())
    begin(*scripted(), 0.01, progress=progress)
    sent = [request.body["leases"][0].get("progress") for request in service.wait_for("/beat", 5)[:5]]
    assert sent == [7, None, None, 8, 9]
    assert "The progress of work item 42 is not known" in caplog.messages


# --- what is a loss


@pytest.mark.scar(9)
def test_a_lease_that_ran_out_is_lost(
    manager: LeaseManager, acquired: Lease, run_out: RunOut, begin: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    told = Told()
    heartbeat = begin(manager, acquired.work_item_id, 0.2, on_lease_lost=told)
    run_out(acquired.work_item_id)
    until(lambda: told.at)
    until(lambda: not heartbeat.is_running())
    assert len(told.at) == 1
    assert f"Work item {acquired.work_item_id} counts as lost: the lease of message {acquired.work_item_id} ran out" in caplog.messages
    assert acquired.receipt not in caplog.text


@pytest.mark.scar(2, 9)
def test_a_lease_that_somebody_else_holds_is_lost_and_left_alone(
    manager: LeaseManager, acquired: Lease, client: Client, api: Api, queue: str, begin: Begin
) -> None:
    told, beating = Told(), threading.Event()
    beating.set()
    heartbeat = begin(manager, acquired.work_item_id, 0.2, on_lease_lost=told, progress=lambda: int(beating.wait(LONG)))
    beating.clear()  # so that no beat comes between the release and the next claim
    client.release(acquired)
    (taken,) = client.claim(queue, worker_id="worker-1", wait=LONG, visibility_timeout=60)
    before = held(api, queue)["expires_at"]
    beating.set()
    until(lambda: told.at)
    until(lambda: not heartbeat.is_running())
    assert held(api, queue)["expires_at"] == before
    with pytest.raises(LeaseConflictError):
        manager.release_lease(acquired.work_item_id)
    assert client.ack(taken).succeeded


@pytest.mark.parametrize("status", ["expired", "lost", "cancelled", "settled", "unknown"])
def test_every_refusal_is_a_loss(status: str, scripted: Scripted, service: ScriptedService, begin: Begin) -> None:
    service.on("POST", "/beat", beats(status, expires_in=None, next_beat_in=None))
    told = Told()
    heartbeat = begin(*scripted(), 0.01, on_lease_lost=told)
    until(lambda: not heartbeat.is_running())
    assert len(told.at) == 1
    assert len(service.asked("/beat")) == 1


@pytest.mark.scar(10)
def test_beats_that_fail_are_no_loss_until_the_local_deadline(scripted: Scripted, service: ScriptedService, begin: Begin) -> None:
    service.on("POST", "/beat", Break())
    told = Told()
    asked_at = time.monotonic()
    heartbeat = begin(*scripted(expires_in=1.0), 0.1, max_failures=1000, on_lease_lost=told)
    until(lambda: not heartbeat.is_running())
    assert len(told.at) == 1
    assert 0.9 < told.at[0] - asked_at < 30
    assert len(service.asked("/beat")) < 40


@pytest.mark.scar(10)
def test_so_many_failures_in_a_row_are_a_loss(
    scripted: Scripted, service: ScriptedService, begin: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    failure = problem(500, "internal")
    service.on("POST", "/beat", failure, failure, beats(), failure, failure, beats(), failure)
    told = Told()
    heartbeat = begin(*scripted(), 0.02, on_lease_lost=told)
    until(lambda: not heartbeat.is_running())
    assert len(told.at) == 1
    assert len(service.asked("/beat")) == 2 + 1 + 2 + 1 + 3
    assert [each for each in caplog.messages if each.startswith("Heartbeat for work item 42 failed, 3 in a row")]


@pytest.mark.scar(9)
def test_the_deadline_is_heard_on_time_though_a_call_hangs(scripted: Scripted, service: ScriptedService, begin: Begin) -> None:
    hang = threading.Event()
    service.on("POST", "/beat", break_once(hang))
    told = Told()
    asked_at = time.monotonic()
    begin(*scripted(expires_in=2.0), 0.2, max_failures=1000, on_lease_lost=told)
    until(lambda: told.at)
    hang.set()
    assert 1.9 < told.at[0] - asked_at < 30


@pytest.mark.timed
def test_a_call_that_hangs_leaves_time_for_another(scripted: Scripted, service: ScriptedService, begin: Begin) -> None:
    hang = threading.Event()
    service.on("POST", "/beat", break_once(hang), beats(expires_in=60.0))
    told = Told()
    begin(*scripted(expires_in=9.0), 0.2, on_lease_lost=told)
    service.wait_for("/beat", 2)
    hang.set()
    time.sleep(0.5)
    assert told.at == []


@pytest.mark.scar(10)
def test_a_lease_outlives_a_moment_without_the_service(scripted: Scripted, service: ScriptedService, begin: Begin) -> None:
    service.on("POST", "/beat", Break(), Break(), problem(503, "unavailable", headers={"retry-after": "5"}), beats())
    told = Told()
    begin(*scripted(), 0.2, on_lease_lost=told)
    assert [request.path for request in service.wait_for("/beat", 5)]
    assert told.at == []


@pytest.mark.scar(10)
@pytest.mark.timed
def test_a_service_that_is_away_for_half_a_lease_costs_nothing(
    manager: LeaseManager, client: Client, server: Server, api: Api, queue: str, begin: Begin
) -> None:
    """The beats that follow extend the lease as before."""
    told = Told()
    client.put_queue(queue, visibility_timeout=16, extension=16, beat_interval=0.2)
    client.send(queue, "work")
    with Relay(server.port) as relay, Client(relay.url) as relayed:
        manager = LeaseManager(relayed, manager.worker_id, queue=queue)
        acquired = manager.acquire_lease(None)
        assert acquired is not None
        heartbeat = begin(manager, acquired.work_item_id, 0.3, max_failures=1000, on_lease_lost=told)
        until(lambda: held(api, queue)["last_beat_at"])
        relay.cut(1)  # nobody listens there
        time.sleep(16 / 2)
        relay.cut(server.port)
        until_extended(client, queue)
        assert manager.release_lease(acquired.work_item_id, output_data="done")
        heartbeat.stop(timeout=LONG)
    assert told.at == []
    message = api.message(acquired.work_item_id)
    assert (message["status"], message["output"], message["generation"]) == ("completed", "done", 1)
    assert [message[count] for count in ("attempt_count", "expired_count", "failed_count", "released_count")] == [0, 0, 0, 0]


FROZEN = """
import sys, time
from leasebeat import Client, LeaseLostError
from leasebeat._heartbeat_thread import HeartbeatThread
from leasebeat._lease_manager import LeaseManager

last = time.monotonic()

def progress():
    global last
    gap, last = time.monotonic() - last, time.monotonic()
    print("beat" if gap < 8 else "beat without a lease", flush=True)

manager = LeaseManager(Client(sys.argv[1]), "worker-1", queue=sys.argv[2])
lease = manager.acquire_lease(None)
heartbeat = HeartbeatThread(
    manager, lease.work_item_id, 0.2, on_lease_lost=lambda: print("lost", flush=True), progress=progress
)
heartbeat.start()
while heartbeat.is_running():
    time.sleep(0.02)
try:
    manager.release_lease(lease.work_item_id, output_data="too late")
except LeaseLostError as error:
    print(type(error).__name__, flush=True)
"""


@pytest.mark.scar(10)
@pytest.mark.timed
def test_a_process_that_was_frozen_hears_of_its_loss_before_its_next_beat(server: Server, client: Client, queue: str) -> None:
    """For longer than its lease. Somebody else has done the work meanwhile."""
    client.put_queue(queue, visibility_timeout=8, extension=8, beat_interval=0.2)
    sent = client.send(queue, "work")
    with program_process(FROZEN, server.url, queue) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(3)] == [b"beat\n"] * 3
        with frozen(process, 9):
            (other,) = client.claim(queue, worker_id="other", wait=LONG, visibility_timeout=60)
            client.ack(other, "done by another")
        output, _ = process.communicate(timeout=LONG)
    assert [line for line in output.splitlines() if line != b"beat"] == [b"lost", b"LeaseConflictError"]  # those were before
    message = client.get_message(sent.id)
    assert (message.status, message.output, message.generation) == ("completed", "done by another", 2)


# --- release, while it beats


def test_a_beat_after_the_release_is_no_loss(manager: LeaseManager, acquired: Lease, begin: Begin) -> None:
    """As in the specification's pattern, which releases first and then stops."""
    told = Told()
    heartbeat = begin(manager, acquired.work_item_id, 0.05, on_lease_lost=told)
    assert manager.release_lease(acquired.work_item_id)
    until(lambda: not heartbeat.is_running())
    assert told.at == []


@pytest.mark.scar(14)
def test_beats_go_on_while_the_release_is_under_way(scripted: Scripted, service: ScriptedService, begin: Begin) -> None:
    def answer_after_more_beats(request: Received) -> Answer:
        service.wait_for("/beat", len(service.asked("/beat")) + 3)
        return verdicts("acked", late=False)(request)

    service.on("POST", "/beat", beats())
    service.on("POST", "/ack", answer_after_more_beats)
    manager, work_item_id = scripted()
    begin(manager, work_item_id, 0.02)
    assert manager.release_lease(work_item_id)


def test_a_loss_that_is_found_after_stop_is_not_told(scripted: Scripted, service: ScriptedService, begin: Begin) -> None:
    stopped = threading.Event()

    def lost_after_stop(request: Received) -> Answer:
        assert stopped.wait(LONG)
        return beats("settled", expires_in=None, next_beat_in=None)(request)

    service.on("POST", "/beat", lost_after_stop)
    told = Told()
    heartbeat = begin(*scripted(), 0.02, on_lease_lost=told)
    service.wait_for("/beat")
    heartbeat.stop(wait=False)
    stopped.set()
    until(lambda: not heartbeat.is_running())
    assert told.at == []


# --- how it begins and ends


def test_lifecycle(manager: LeaseManager, acquired: Lease, api: Api, queue: str) -> None:
    heartbeat = HeartbeatThread(manager, acquired.work_item_id, 0.1)
    assert not heartbeat.is_running()
    heartbeat.stop(timeout=LONG)
    heartbeat.start()
    heartbeat.start()
    assert heartbeat.is_running()
    assert threads() == [f"leasebeat-heartbeat-{acquired.work_item_id}"]
    until(lambda: held(api, queue)["last_beat_at"])
    heartbeat.stop(timeout=LONG)
    assert not heartbeat.is_running()
    assert threads() == []
    stopped_at = held(api, queue)["last_beat_at"]
    heartbeat.start()
    assert heartbeat.is_running()
    until(lambda: held(api, queue)["last_beat_at"] > stopped_at)
    heartbeat.stop(timeout=LONG)


def test_stop_ends_a_long_interval_at_once(scripted: Scripted, service: ScriptedService, begin: Begin) -> None:
    service.on("POST", "/beat", beats())
    heartbeat = begin(*scripted(expires_in=7200), 3600)
    service.wait_for("/beat")
    heartbeat.stop(timeout=LONG)
    assert not heartbeat.is_running()


def test_stop_waits_no_longer_than_it_is_told(scripted: Scripted, service: ScriptedService) -> None:
    hang = threading.Event()
    service.on("POST", "/beat", break_once(hang))
    heartbeat = HeartbeatThread(*scripted(), 0.02)
    heartbeat.start()
    service.wait_for("/beat")
    heartbeat.stop(timeout=0.1)
    assert heartbeat.is_running()
    hang.set()
    until(lambda: not heartbeat.is_running())


def test_the_callback_may_stop_its_own_thread(scripted: Scripted, service: ScriptedService) -> None:
    service.on("POST", "/beat", beats("lost", expires_in=None, next_beat_in=None))
    returned = threading.Event()

    def stop() -> None:
        heartbeat.stop(timeout=LONG)
        returned.set()

    heartbeat = HeartbeatThread(*scripted(), on_lease_lost=stop)
    heartbeat.start()
    assert returned.wait(LONG)
    until(lambda: not heartbeat.is_running())


def test_a_thread_hears_of_its_stop_though_that_is_the_first_thing_it_does() -> None:
    thread, heard = StoppableThread("hasty"), SimpleQueue[bool]()

    def stop_at_once(stop: Stop) -> None:
        thread.stop(wait=True, timeout=LONG)
        heard.put(stop.given)

    for _ in range(20):
        thread.start(stop_at_once)
        assert heard.get(timeout=LONG)
        until(lambda: not thread.is_running)


def test_a_callback_that_fails_is_logged(
    scripted: Scripted, service: ScriptedService, begin: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise OSError("disk full")

    service.on("POST", "/beat", beats("lost", expires_in=None, next_beat_in=None))
    with caplog.at_level(logging.WARNING, logger=LOGGER):
        heartbeat = begin(*scripted(), on_lease_lost=fail)
        until(lambda: not heartbeat.is_running())
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["disk full"]


def test_no_receipt_is_logged(scripted: Scripted, service: ScriptedService, begin: Begin, caplog: pytest.LogCaptureFixture) -> None:
    service.on("POST", "/beat", problem(500, "internal"), beats("error", expires_in=None, next_beat_in=None), beats("lost"))
    with caplog.at_level(logging.DEBUG):
        heartbeat = begin(*scripted(), 0.02)
        until(lambda: not heartbeat.is_running())
    assert "Work item 42 counts as lost" in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize("options", [{"interval_seconds": 0}, {"interval_seconds": float("nan")}, {"max_failures": 0}])
def test_options_that_cannot_be_meant_are_refused(options: dict[str, Any], manager: LeaseManager) -> None:
    with pytest.raises(ValueError, match="must be"):
        HeartbeatThread(manager, "42", **options)


def test_what_is_not_held_is_refused_at_the_start(manager: LeaseManager, client: Client, queue: str, api: Api) -> None:
    sent = client.send(queue, "work")
    api.claim_one(queue, "somebody-else")
    with pytest.raises(LeaseConflictError):
        start_heartbeat(client, sent.id, manager.worker_id)
    assert threads() == []


def test_start_heartbeat_finds_what_another_manager_acquired(
    manager: LeaseManager, acquired: Lease, client: Client, api: Api, queue: str
) -> None:
    heartbeat = start_heartbeat(conn=client, work_item_id=acquired.work_item_id, worker_id="worker-1", interval_seconds=30)
    try:
        assert heartbeat.is_running()
        until(lambda: held(api, queue)["last_beat_at"])
    finally:
        heartbeat.stop(timeout=LONG)
    assert manager.release_lease(acquired.work_item_id)


@pytest.mark.scar(16)
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_no_thread_until_it_starts_one(
    manager: LeaseManager, acquired: Lease, api: Api, queue: str, begin: Begin
) -> None:
    heartbeat = begin(manager, acquired.work_item_id, 0.1)
    until(lambda: held(api, queue)["last_beat_at"])
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        inherited = heartbeat.is_running()
        heartbeat.start()
        os.read(read_end, 1)
        os._exit(int(inherited) + 2 * int(not heartbeat.is_running()))
    heartbeat.stop(timeout=LONG)
    stopped_at = held(api, queue)["last_beat_at"]
    try:
        until(lambda: held(api, queue)["last_beat_at"] > stopped_at)
    finally:
        os.write(write_end, b".")
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.close(read_end)
        os.close(write_end)
    assert status == 0

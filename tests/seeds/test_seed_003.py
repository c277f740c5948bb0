"""The lease and recovery system: each line of its "Test Coverage", its statistics, its monitoring queries and its patterns, as users
call them.
"""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from harness.api import Api, Json
from harness.figures import OFTEN, counting_takes
from harness.operating import RARELY, sweep_that_it_begins_with
from harness.postgres import Databases, execute
from harness.server import Server
from harness.wait import until
from sdk.running import until_extended

import leasebeat
from leasebeat import (
    Client,
    Context,
    Heartbeat,
    HeldMessage,
    Lease,
    LeaseConflictError,
    LeasedMessage,
    LeaseExpiredError,
    LeaseExtender,
    Worker,
)
from leasebeat._heartbeat_thread import HeartbeatThread, start_heartbeat
from leasebeat._lease_manager import LeaseManager
from leasebeat._recovery_sweep import RecoverySweep

LONG = 60


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


def held(api: Api, queue: str) -> list[Json]:
    """Return the queue's active leases."""
    return list(api.call("GET", "/leases", params={"queue": queue, "limit": 1000})["items"])


def once(api: Api, message_id: str, status: str) -> Json:
    """Wait for the message to be in this state, and return it."""
    return until(lambda: (message := api.message(message_id))["status"] == status and message)


def run_out_unseen(database_url: str) -> None:
    """Make all leases run out, with no timer knowing of it."""
    execute(database_url, "update lease set expires_at = now(), check_at = now()")


# --- leases


def test_lease_acquisition_atomic_cas(api: Api, queue: str) -> None:
    """Twenty callers for ten items: each item has exactly one holder, and the others get nothing."""
    ids = api.send(queue, *range(10))
    with ThreadPoolExecutor(20) as pool:
        claims = list(pool.map(lambda n: api.claim(queue, f"worker-{n}"), range(20)))
    holders = {lease["message"]["id"]: f"worker-{n}" for n, leases in enumerate(claims) for lease in leases}
    assert sorted(map(len, claims)) == [0] * 10 + [1] * 10
    assert sorted(holders, key=int) == ids
    assert {lease["message_id"]: lease["worker_id"] for lease in held(api, queue)} == holders
    assert {api.message(each)["status"] for each in ids} == {"in_progress"}


def test_lease_conflict_prevention_two_workers_one_item(start_server: Callable[..., Server]) -> None:
    """Each worker calls a server of its own."""
    apis = [start_server().api for _ in range(2)]
    for round_ in range(20):
        apis[0].send("default", round_)
        together = threading.Barrier(2)

        def claim(n: int, together: threading.Barrier = together) -> list[Json]:
            together.wait()
            return apis[n].claim("default", f"worker-{n}")

        with ThreadPoolExecutor(2) as pool:
            (lease,) = (lease for leases in pool.map(claim, range(2)) for lease in leases)
        assert (lease["message"]["body"], lease["generation"]) == (round_, 1)


def test_lease_renewal_via_heartbeat(api: Api, client: Client, queue: str) -> None:
    client.send(queue, "work")
    (lease,) = client.claim(queue, worker_id="worker-1", visibility_timeout=30)
    (before,) = held(api, queue)
    assert before["last_beat_at"] is None
    assert client.beat(lease).status == "extended"
    (after,) = held(api, queue)
    assert after["acquired_at"] == before["acquired_at"] < after["last_beat_at"]
    assert before["expires_in"] <= 30
    assert 200 < after["expires_in"] <= 300


def test_lease_renewal_raises_when_expired_or_held_by_another_worker(api: Api, client: Client, queue: str) -> None:
    sent = client.send(queue, "work")
    (stale,) = client.claim(queue, worker_id="worker-1", visibility_timeout=0.1)
    once(api, sent.id, "pending")
    with pytest.raises(LeaseExpiredError):
        client.beat(stale)
    (holder,) = client.claim(queue, worker_id="worker-2", wait=50)
    before = held(api, queue)
    with pytest.raises(LeaseConflictError):
        client.beat(stale)
    assert [(each["worker_id"], each["expires_at"]) for each in held(api, queue)] == [("worker-2", before[0]["expires_at"])]
    assert client.ack(holder).status == "acked"


@pytest.mark.parametrize("success", [True, False])
def test_lease_release_success_and_failure(api: Api, queue: str, success: bool) -> None:
    (message_id,) = api.send(queue, "work", max_attempts=1)
    receipt = api.claim_one(queue)["receipt"]
    if success:
        assert api.ack(receipt, output={"n": 1})[0]["status"] == "acked"
    else:
        assert api.nack(receipt, error="disk full")[0]["status"] == "failed"
    message = api.message(message_id)
    expected = ("completed", {"n": 1}, None) if success else ("failed", None, "disk full")
    assert (message["status"], message["output"], message["error"]) == expected
    assert message["finished_at"]
    assert message["leased_at"] is None
    assert held(api, queue) == []


def test_priority_based_work_item_ordering(api: Api, queue: str) -> None:
    for priority in (0, 10, -5, 10, 3):
        api.send(queue, priority, priority=priority)
    leases = [api.claim_one(queue)["message"] for _ in range(5)]
    assert [lease["body"] for lease in leases] == [10, 10, 3, 0, -5]
    assert int(leases[0]["id"]) < int(leases[1]["id"])


# --- what keeps a lease alive in a worker


def test_heartbeat_thread_lifecycle_of_a_worker(api: Api, client: Client, queue: str) -> None:
    """A thread that starts with the work, extends for as long as that moves, says when the lease is lost, and ends with the worker."""
    client.put_queue(queue, visibility_timeout=10, extension=10, beat_interval=0.2)
    stalled, kept, lost = threading.Event(), threading.Event(), threading.Event()

    def handle(_message: LeasedMessage, context: Context) -> None:
        while not stalled.is_set():
            context.beat()
            kept.set()
            time.sleep(0.02)
        if context.lost.wait(LONG):
            lost.set()
        context.beat()  # raises: what is lost is not settled

    def beating() -> bool:
        return "leasebeat-beats" in {thread.name for thread in threading.enumerate()}

    sent = client.send(queue, "work")
    assert not beating()
    worker = Worker(client, queue, handle, worker_id="worker-1", wait=1, drain_timeout=0.5)
    running = threading.Thread(target=worker.run)
    running.start()
    try:
        assert kept.wait(LONG)
        (granted,) = held(api, queue)
        until_extended(client, queue, 3)
        (extended,) = held(api, queue)
        assert beating()
        assert (extended["generation"], extended["acquired_at"]) == (1, granted["acquired_at"])
        stalled.set()
        assert lost.wait(LONG)
        until(lambda: api.message(sent.id)["expired_count"] >= 1)
    finally:
        stalled.set()
        worker.stop()
        running.join(LONG)
    assert not running.is_alive()
    assert not beating()


def test_heartbeat_lifecycle_of_a_lease_extender(api: Api, client: Client, queue: str) -> None:
    """It extends while it is attached and beaten, not before and not after, and says once that the lease is lost."""
    client.put_queue(queue, visibility_timeout=30, extension=60, beat_interval=0)
    client.send(queue, "work")
    (lease,) = client.claim(queue, worker_id="worker-1")
    told: list[str] = []
    heartbeat, extender = Heartbeat(), LeaseExtender(on_lost=lambda: told.append("lost"))

    def beats() -> str | None:
        heartbeat.beat()
        return str(held(api, queue)[0]["last_beat_at"])

    assert beats() == "None"
    with extender.attach(HeldMessage(client, lease), heartbeat):
        first = beats()
        assert first != "None"
        assert 30 < held(api, queue)[0]["expires_in"] <= 60
    assert beats() == first
    client.release(lease)
    with extender.attach(HeldMessage(client, lease), heartbeat):
        for _ in range(3):
            heartbeat.beat()
    assert extender.lost.is_set()
    assert told == ["lost"]


# --- recovery


def test_recovery_sweep_expired_lease_detection(start_server: Callable[..., Server]) -> None:
    """By the timer itself: nobody asks for a sweep."""
    api = start_server().api
    (alive,) = api.send("default", "alive")
    api.claim_one("default")
    (expired,) = api.send("default", "expired")
    api.claim_one("default", visibility_timeout=0.2)
    until(lambda: api.call("GET", "/recovery")["total_recovered"] == 1)
    assert [api.message(each)["status"] for each in (expired, alive)] == ["pending", "in_progress"]
    assert api.message(expired)["leased_at"] is None


def test_retry_logic_requeue_vs_permanent_failure(api: Api, queue: str) -> None:
    (message_id,) = api.send(queue, "work", max_attempts=2)
    for retry, status, error in ((1, "pending", "Lease expired - retry 1/2"), (2, "failed", "Max retries exceeded")):
        api.claim_one(queue, visibility_timeout=0.1)
        message = once(api, message_id, status)
        assert (message["attempt_count"], message["max_attempts"], message["error"]) == (retry, 2, error)
        assert held(api, queue) == []
    assert api.claim(queue) == []


def test_error_checkpoint_creation(api: Api, queue: str) -> None:
    (message_id,) = api.send(queue, "work")
    lease = api.claim_one(queue, "worker-7", visibility_timeout=0.1)
    (checkpoint,) = until(lambda: api.checkpoints(message_id))
    assert (checkpoint["kind"], checkpoint["reason"], checkpoint["generation"]) == ("error_boundary", "lease_expired", 1)
    facts = {"error": "Lease expired", "retry_count": 1, "max_retries": 3, "will_retry": True, "worker_id": "worker-7"}
    assert checkpoint["facts"] | facts == checkpoint["facts"]
    assert checkpoint["facts"]["acquired_at"] < checkpoint["facts"]["expires_at"]
    assert checkpoint["created_at"] >= lease["expires_at"]


def test_checkpoint_cleanup(api: Api, queue: str) -> None:
    """Of a task's 105, the newest 100 stay."""
    ids = api.send(queue, *range(3), task_id=queue, max_attempts=1000)
    for _ in range(35):
        api.nack(*(lease["receipt"] for lease in api.claim(queue, max_messages=3)))

    def kept() -> list[int]:
        return sorted(each["generation"] for message_id in ids for each in api.checkpoints(message_id))

    def swept() -> bool:
        api.call("POST", "/recovery/sweep", {})
        return len(kept()) == 100

    assert until(swept, timeout=LONG)
    assert kept() == [2, *(generation for generation in range(3, 36) for _ in ids)]


def test_scan_and_recover_returns_recovery_stats(start_server: Callable[..., Server], database_url: str) -> None:
    api = start_server(sweep_interval=RARELY).api
    sweep_that_it_begins_with(api)
    api.send("default", *range(2))
    api.send("default", "last attempt", max_attempts=1)
    api.claim("default", max_messages=3)
    run_out_unseen(database_url)
    stats = api.call("POST", "/recovery/sweep", {})
    assert stats.pop("scan_duration_ms") > 0
    assert stats == {"expired_found": 3, "recovered": 2, "failed": 1, "checkpoints_created": 3, "errors": 0}


def test_get_statistics(start_server: Callable[..., Server], database_url: str) -> None:
    api = start_server(sweep_interval=RARELY).api
    sweep_that_it_begins_with(api)
    before = api.call("GET", "/recovery")
    assert (before["is_running"], before["total_recovered"], before["total_failed"], before["recovery_rate"]) == (True, 0, 0, None)
    api.send("default", *range(3))
    api.send("default", "last attempt", max_attempts=1)
    api.claim("default", max_messages=4)
    run_out_unseen(database_url)
    scan = api.call("POST", "/recovery/sweep", {})
    after = api.call("GET", "/recovery")
    assert after["is_running"] is True
    assert after["total_scans"] > before["total_scans"]
    assert (after["total_recovered"], after["total_failed"], after["recovery_rate"]) == (3, 1, 0.75)
    assert after["last_scan"] | scan == after["last_scan"]


# --- monitoring and debugging


@pytest.fixture(scope="module")
def monitored(postgres: Databases) -> Iterator[Api]:
    """A service with three leases, one without a beat for long and one that ran out half an hour ago, and four finished messages.

    Nothing stays overdue for longer than a few milliseconds but what Postgres refuses to end.
    """
    url = postgres.create()
    counting_takes(url, OFTEN)
    with Server(url) as server:
        api = server.api
        retried, *_ = api.send("default", "retried", priority=1), api.send("default", *range(2))
        api.send("default", "last attempt", max_attempts=1)
        api.nack(api.claim_one("default")["receipt"])
        leases = {lease["message"]["body"]: lease["receipt"] for lease in api.claim("default", max_messages=4)}
        api.nack(leases.pop("last attempt"))
        api.ack(*leases.values())
        assert api.message(retried[0])["attempt_count"] == 1

        api.send("default", "overdue", "stale", "alive")
        ids = {lease["message"]["body"]: int(lease["message"]["id"]) for lease in api.claim("default", "worker-9", max_messages=3)}
        execute(url, "create function refuse() returns trigger language plpgsql as $$ begin raise exception 'refused'; end $$")
        execute(url, "create trigger refuse before delete on lease for each row execute function refuse()")
        execute(url, "update lease set beat_at = now() - interval '121 seconds' where message_id = $1", ids["stale"])
        execute(
            url,
            "update lease set beat_at = now() - interval '90 minutes', expires_at = now() - interval '30 minutes', check_at = now() "
            "where message_id = $1",
            ids["overdue"],
        )
        yield api


def test_lease_health(monitored: Api) -> None:
    """Its query counts the leases, and those whose last beat is more than two minutes ago."""
    counted = {"active": 3, "stale": 2, "overdue": 1}
    until(lambda: monitored.call("GET", "/stats")["leases"] == counted, pause=0.1)


def test_retry_distribution(monitored: Api) -> None:
    """Its query counts the finished messages by state and retries."""
    counted = [{"attempt_count": 0, "completed": 2, "failed": 0}, {"attempt_count": 1, "completed": 1, "failed": 1}]
    until(lambda: monitored.call("GET", "/stats")["retries"] == counted, pause=0.1)


def test_debugging_expired_leases(monitored: Api) -> None:
    """Its query tells minutes, once the difference is taken before it is multiplied."""
    (item,) = until(lambda: monitored.call("GET", "/leases?overdue=true")["items"], timeout=LONG)
    assert (item["worker_id"], item["expired"]) == ("worker-9", True)
    passed = item["overdue"] - 30 * 60  # since it was set so
    assert 0 <= passed < 600
    assert item["since_beat"] - passed == pytest.approx(90 * 60)


# --- the types as its examples use them


def test_lease_manager_usage_example(client: Client, queue: str) -> None:
    manager = LeaseManager(client, worker_id="worker-abc-123", queue=queue)

    def work_once(do_work: Callable[[Any], Any]) -> Lease | None:
        lease = manager.acquire_lease(lease_duration_seconds=300)
        if lease:
            try:
                result = do_work(lease.input_data)
                manager.release_lease(lease.work_item_id, success=True, output_data=result)
            except Exception as e:  # noqa: BLE001 - as the example does
                manager.release_lease(lease.work_item_id, success=False, error=str(e))
        return lease

    def fail(_input: Any) -> None:
        raise OSError("disk full")

    sent = client.send(queue, 21)
    assert work_once(fail) is not None
    failed = client.get_message(sent.id)
    assert (failed.status, failed.error, failed.attempt_count) == ("pending", "disk full", 1)
    assert work_once(lambda number: number * 2) is not None
    assert (client.get_message(sent.id).status, client.get_message(sent.id).output) == ("completed", 42)
    assert work_once(fail) is None


def test_heartbeat_thread_lifecycle(api: Api, client: Client, queue: str) -> None:
    """Its two methods, and the one with a connection per thread, which a client needs not."""
    client.put_queue(queue, beat_interval=0)
    client.send(queue, "work")
    manager = LeaseManager(client, "worker-abc", queue=queue)
    lease = manager.acquire_lease()
    assert lease is not None

    def last_beat() -> str:
        return str(held(api, queue)[0]["last_beat_at"])

    def changed(before: str) -> bool:
        return last_beat() != before

    def with_its_own_manager() -> HeartbeatThread:
        heartbeat = HeartbeatThread(LeaseManager(client, "worker-abc"), lease.work_item_id)
        heartbeat.start()
        return heartbeat

    def by_hand() -> HeartbeatThread:
        heartbeat = HeartbeatThread(
            lease_manager=manager, work_item_id=lease.work_item_id, interval_seconds=30, on_lease_lost=lambda: lost.append("lost")
        )
        heartbeat.start()
        return heartbeat

    def by_function() -> HeartbeatThread:
        return start_heartbeat(conn=client, work_item_id=lease.work_item_id, worker_id="worker-abc", interval_seconds=30)

    lost: list[str] = []
    for begin in (by_function, by_hand, with_its_own_manager):
        before = last_beat()
        heartbeat = begin()
        assert heartbeat.is_running()
        until(partial(changed, before))
        heartbeat.stop()
        assert not heartbeat.is_running()
    assert lost == []
    assert manager.release_lease(lease.work_item_id)


def test_pattern_1_worker_with_automatic_heartbeat(client: Client, queue: str) -> None:
    """As written, but that it ends. Work takes until its lease is extended some times, and each other work item fails once."""
    client.put_queue(queue, visibility_timeout=60, extension=60, beat_interval=0.2)
    failed: set[int] = set()
    ended = threading.Event()

    def process_work_item(number: int) -> int:
        if number % 2 and number not in failed:
            failed.add(number)
            raise OSError("disk full")
        until_extended(client, queue, 3, message_id=ids[number])
        return number * 2

    def worker_main(conn: Client, worker_id: str) -> None:
        manager = LeaseManager(conn, worker_id, queue=queue)
        while not ended.is_set():
            lease = manager.acquire_lease(lease_duration_seconds=60)
            if not lease:
                time.sleep(0.05)
                continue
            heartbeat = start_heartbeat(conn=conn, work_item_id=lease.work_item_id, worker_id=worker_id, interval_seconds=0.3)
            try:
                result = process_work_item(lease.input_data)
                manager.release_lease(lease.work_item_id, success=True, output_data=result)
            except Exception as e:  # noqa: BLE001 - as the pattern does
                manager.release_lease(lease.work_item_id, success=False, error=str(e))
            finally:
                heartbeat.stop()

    ids = [client.send(queue, number).id for number in range(2)]
    with ThreadPoolExecutor(2) as pool:
        workers = [pool.submit(worker_main, client, f"worker-{n}") for n in range(2)]
        try:
            until(lambda: all(client.get_message(each).status == "completed" for each in ids))
        finally:
            ended.set()
        for worker in workers:
            worker.result(LONG)
    messages = [client.get_message(each) for each in ids]
    assert [each.output for each in messages] == [0, 2]
    assert [(each.failed_count, each.expired_count) for each in messages] == [(0, 0), (1, 0)]


WATCHDOG = textwrap.dedent("""
    import signal, sys, time
    from leasebeat import Client
    from leasebeat._recovery_sweep import RecoverySweep

    def run_watchdog(conn):
        sweep = RecoverySweep(conn, scan_interval_seconds=1, create_checkpoints=True, cleanup_old_checkpoints=True)

        def signal_handler(sig, frame):
            print("Shutting down watchdog...", flush=True)
            sweep.stop()
            sys.exit(0)

        signal.signal(signal.SIGINT, signal_handler)
        signal.signal(signal.SIGTERM, signal_handler)
        sweep.start()
        print("Watchdog started", flush=True)
        while sweep.is_running():
            time.sleep(0.2)
            stats = sweep.get_statistics()
            if stats['last_scan'] and stats['total_recovered']:
                print(f"Last scan: recovered={stats['last_scan']['recovered']}, failed={stats['last_scan']['failed']}", flush=True)

    run_watchdog(Client(sys.argv[1]))
""")


def test_pattern_2_watchdog_service(start_server: Callable[..., Server], database_url: str) -> None:
    """As written, but with shorter pauses, and that it says something only once there is something to say."""
    server = start_server(sweep_interval=RARELY)
    (message_id,) = server.api.send("default", "work")
    server.api.claim_one("default")
    run_out_unseen(database_url)
    environment = {**os.environ, "PYTHONPATH": str(Path(leasebeat.__file__).parents[1])}
    with subprocess.Popen([sys.executable, "-c", WATCHDOG, server.url], stdout=subprocess.PIPE, env=environment, text=True) as watchdog:
        try:
            assert watchdog.stdout is not None
            assert watchdog.stdout.readline() == "Watchdog started\n"
            assert watchdog.stdout.readline().startswith("Last scan: recovered=")
            assert server.api.message(message_id)["status"] == "pending"
            watchdog.send_signal(signal.SIGTERM)
            said, _ = watchdog.communicate(timeout=LONG)
        finally:
            watchdog.kill()
    assert said.endswith("Shutting down watchdog...\n")
    assert watchdog.returncode == 0


def test_pattern_3_integration_with_task_runner(client: Client, queue: str) -> None:
    """As written, but that it ends: the ready-made one is `leasebeat.TaskRunner`."""

    class TaskRunner:
        def __init__(self, conn: Client, worker_id: str) -> None:
            self.conn = conn
            self.worker_id = worker_id
            self.lease_manager = LeaseManager(conn, worker_id, queue=queue)
            self.recovery_sweep = RecoverySweep(conn)

        def start(self) -> None:
            self.recovery_sweep.start()
            self._run_worker()

        def stop(self) -> None:
            self.recovery_sweep.stop()

        def _run_worker(self) -> None:
            while self.recovery_sweep.is_running():
                lease = self.lease_manager.acquire_lease(wait=0.2)
                if lease:
                    self._process_work_item(lease)

        def _process_work_item(self, lease: Lease) -> None:
            self.lease_manager.release_lease(lease.work_item_id, output_data=lease.input_data * 2)

    runner = TaskRunner(client, "worker-1")
    running = threading.Thread(target=runner.start)
    running.start()
    try:
        ids = [client.send(queue, number).id for number in range(3)]
        until(lambda: all(client.get_message(each).status == "completed" for each in ids), timeout=LONG)
    finally:
        runner.stop()
        running.join(LONG)
    assert not running.is_alive()
    assert [client.get_message(each).output for each in ids] == [0, 2, 4]


def test_recovery_stats_as_the_key_metrics_read_them(start_server: Callable[..., Server], database_url: str) -> None:
    server = start_server(sweep_interval=RARELY)
    sweep_that_it_begins_with(server.api)
    with Client(server.url) as client:
        for _ in range(3):
            client.send("default", "work")
        client.send("default", "last attempt", max_attempts=1)
        client.claim("default", worker_id="worker-1", max_messages=4)
        run_out_unseen(database_url)
        sweep = RecoverySweep(client)
        assert sweep.scan_and_recover().recovered == 3
        stats = sweep.get_statistics()
        rate = stats["total_recovered"] / (stats["total_recovered"] + stats["total_failed"])
    assert f"{rate:.2%}" == "75.00%"

"""What a queue owes its users, against the real service and through both clients: retries, dead letters, limits, registry, figures."""

import asyncio
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, cast

import asyncpg
import pytest
from harness.postgres import RunOut
from harness.wait import until

import leasebeat
from leasebeat import AsyncClient, Backoff, Beat, Bounds, Client, Lease, NewMessage, RedriveResult


class Server(Protocol):
    url: str


class Awaited:
    """An `AsyncClient` whose calls are awaited by themselves, so that one test serves both clients."""

    def __init__(self, client: AsyncClient, runner: asyncio.Runner) -> None:
        self._client = client
        self._runner = runner

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._client, name)
        return lambda *args, **kwargs: self._runner.run(method(*args, **kwargs))


@pytest.fixture(params=[Client, AsyncClient])
def client(request: pytest.FixtureRequest, server: Server) -> Iterator[Client]:
    if request.param is Client:
        with Client(server.url) as client:
            yield client
        return
    with asyncio.Runner() as runner:
        awaited = Awaited(AsyncClient(server.url), runner)
        yield cast(Client, awaited)
        awaited.close()


@pytest.fixture
def dead_letters(client: Client) -> Iterator[str]:
    name = f"dead-{uuid.uuid4().hex[:8]}"
    client.put_queue(name)
    yield name
    client.delete_queue(name, force=True)


@pytest.fixture
def queue(client: Client, dead_letters: str) -> Iterator[str]:
    """A queue with two attempts, and dead letters after them."""
    name = f"sdk-{uuid.uuid4().hex[:8]}"
    client.put_queue(name, max_attempts=2, dead_letter_queue=dead_letters)
    yield name
    client.delete_queue(name, force=True)


def claim_one(client: Client, queue: str, worker_id: str = "worker-1") -> Lease:
    (lease,) = client.claim(queue, worker_id=worker_id, wait=40)
    return lease


# --- retries and dead letters


def test_a_queues_settings_come_back_as_they_were_given(client: Client, queue: str, dead_letters: str) -> None:
    backoff, bounds = Backoff(initial=5, factor=3, max=60, jitter=False), Bounds(min=1, max=60)
    changed = client.put_queue(
        queue,
        backoff=backoff,
        dead_letter_queue=dead_letters,
        max_in_flight=7,
        retention=3600,
        adaptive=True,
        adaptive_bounds=bounds,
    )
    assert (changed.backoff, changed.adaptive_bounds, changed.dead_letter_queue) == (backoff, bounds, dead_letters)
    assert (changed.max_in_flight, changed.retention, changed.adaptive, changed.paused) == (7, 3600.0, True, False)
    plain = client.put_queue(queue)
    assert (plain.backoff, plain.adaptive_bounds, plain.dead_letter_queue) == (Backoff(), Bounds(), None)
    assert (plain.max_in_flight, plain.retention, plain.adaptive) == (None, 604800.0, False)


def test_a_message_goes_to_the_dead_letters_and_back(client: Client, queue: str, dead_letters: str) -> None:
    sent = client.send(queue, {"file": "a.wav"}, priority=3, fairness_key="a")
    assert client.nack(claim_one(client, queue, "worker-1"), "disk full").status == "requeued"
    assert client.nack(claim_one(client, queue, "worker-2"), "still full").status == "dead_lettered"

    letter = client.get_message(sent.id)
    assert (letter.queue, letter.source_queue, letter.status) == (dead_letters, queue, "pending")
    assert (letter.reason, letter.error, letter.failed_count, letter.failed_workers) == (
        "nacked",
        "still full",
        2,
        ("worker-1", "worker-2"),
    )
    assert claim_then_release(client, dead_letters).message.source_queue == queue
    newest, oldest = client.list_checkpoints(sent.id).items
    assert (newest.kind, newest.reason, newest.facts["will_retry"], newest.facts["worker_id"]) == (
        "error_boundary",
        "nacked",
        False,
        "worker-2",
    )
    assert (oldest.facts["will_retry"], oldest.facts["error"]) == (True, "disk full")

    assert client.redrive(dead_letters) == RedriveResult(redriven=1, more=False)
    back = client.get_message(sent.id)
    assert (back.queue, back.status, back.attempt_count, back.failed_count) == (queue, "pending", 0, 2)
    assert (back.body, back.priority, back.fairness_key) == ({"file": "a.wav"}, 3, "a")
    lease = claim_one(client, queue)
    assert lease.attempt == 1
    assert client.ack(lease).status == "acked"
    assert client.redrive(dead_letters) == RedriveResult(redriven=0, more=False)


def claim_then_release(client: Client, queue: str) -> Lease:
    lease = claim_one(client, queue)
    assert client.release(lease).status == "released"
    return lease


def test_dead_letters_can_be_sent_elsewhere_and_some_at_a_time(client: Client, queue: str, dead_letters: str) -> None:
    client.send_many(queue, [NewMessage(1), NewMessage(2)])
    for lease in client.claim(queue, worker_id="w", max_messages=2):
        assert client.nack(lease, retryable=False).status == "dead_lettered"
    other = f"{queue}-other"
    client.put_queue(other)
    try:
        assert client.redrive(dead_letters, limit=1, to=other).redriven == 1
        assert [message.body for message in client.list_messages(other).items] == [1]
        assert [message.body for message in client.list_messages(dead_letters).items] == [2]
    finally:
        client.delete_queue(other, force=True)


def test_a_dead_letter_queue_is_not_its_own_and_not_deleted_while_in_use(client: Client, queue: str, dead_letters: str) -> None:
    with pytest.raises(leasebeat.InvalidRequestError):
        client.put_queue(queue, dead_letter_queue=queue)
    with pytest.raises(leasebeat.ConflictError, match="queue-in-use"):
        client.delete_queue(dead_letters)


def test_a_nack_waits_as_its_queue_says_unless_it_says_itself(client: Client, queue: str) -> None:
    client.put_queue(queue, backoff=Backoff(initial=60, jitter=False))
    sent = client.send(queue, 1)
    client.nack(claim_one(client, queue), delay=0)
    assert client.get_message(sent.id).status == "pending"
    client.nack(claim_one(client, queue))
    assert client.get_message(sent.id).status == "scheduled"


# --- what is leased to whom


def test_a_paused_queue_grants_nothing_until_it_is_resumed(client: Client, queue: str) -> None:
    assert client.pause_queue(queue).paused
    assert client.put_queue(queue).paused, "configuring it leaves that as it is"
    client.send(queue, 1)
    assert client.claim(queue, worker_id="w") == ()
    assert not client.resume_queue(queue).paused
    assert claim_one(client, queue).message.body == 1


def test_a_claim_takes_only_what_it_asks_for(client: Client, queue: str) -> None:
    client.send_many(queue, [NewMessage(1, work_type="a", task_id="t"), NewMessage(2, work_type="b"), NewMessage(3)])
    assert [lease.message.body for lease in client.claim(queue, worker_id="w", max_messages=9, work_types=["b", "c"])] == [2]
    assert [lease.message.body for lease in client.claim(queue, worker_id="w", max_messages=9, task_id="t")] == [1]
    assert [lease.message.body for lease in client.claim(queue, worker_id="w", max_messages=9)] == [3]


def test_no_more_are_leased_than_the_queue_allows(client: Client, queue: str) -> None:
    client.put_queue(queue, max_in_flight=2)
    client.send_many(queue, [NewMessage(number) for number in range(4)])
    leases = client.claim(queue, worker_id="w", max_messages=4)
    assert len(leases) == 2
    assert client.claim(queue, worker_id="w") == ()
    client.ack(leases[0])
    assert claim_one(client, queue).message.body == 2


def test_a_holder_hears_of_a_cancellation_in_its_next_beat(client: Client, queue: str) -> None:
    sent = client.send(queue, 1)
    lease = claim_one(client, queue)
    assert client.cancel_message(sent.id).status == "cancelled"
    for call in (client.beat, client.ack):
        with pytest.raises(leasebeat.LeaseCancelledError) as caught:
            call(lease)
        assert caught.value.message_id == sent.id
    assert client.cancel_message(sent.id).status == "cancelled", "a repeat, after a lost answer, is no failure"


def test_what_waits_can_be_cancelled_and_what_is_finished_cannot(client: Client, queue: str) -> None:
    waiting, done = client.send(queue, 1, delay=60), client.send(queue, 2)
    assert client.cancel_message(waiting.id).status == "cancelled"
    client.ack(claim_one(client, queue))
    with pytest.raises(leasebeat.ConflictError, match="message-finished"):
        client.cancel_message(done.id)
    with pytest.raises(leasebeat.NotFoundError, match="message-not-found"):
        client.cancel_message("999999999999")


def test_a_purge_spares_what_is_leased(client: Client, queue: str) -> None:
    leased, ready, delayed = client.send_many(queue, [NewMessage(1), NewMessage(2), NewMessage(3, delay=60)])
    lease = claim_one(client, queue)
    assert client.purge_queue(queue) == leasebeat.PurgeResult(purged=2, more=False)
    for purged in (ready, delayed):
        with pytest.raises(leasebeat.NotFoundError):
            client.get_message(purged.id)
    assert client.ack(lease).status == "acked"
    assert client.purge_queue(queue, "completed").purged == 1
    with pytest.raises(leasebeat.NotFoundError):
        client.get_message(leased.id)
    with pytest.raises(leasebeat.InvalidRequestError):
        client.purge_queue(queue, ["in_progress"])


# --- sending once


def test_a_dedup_key_returns_the_message_that_has_it(client: Client, queue: str, dead_letters: str) -> None:
    first = client.send(queue, 1, dedup_key="invoice-7")
    again = client.send(queue, 2, dedup_key="invoice-7")
    assert (first.duplicate, again.duplicate, again.id) == (False, True, first.id)
    assert (client.get_message(first.id).body, client.get_message(first.id).dedup_key) == (1, "invoice-7")
    assert not client.send(dead_letters, 1, dedup_key="invoice-7").duplicate, "a key counts in its queue"
    one, other, same = client.send_many(queue, [NewMessage(1, dedup_key="a"), NewMessage(2), NewMessage(3, dedup_key="a")])
    assert ([one.duplicate, other.duplicate, same.duplicate], same.id) == ([False, False, True], one.id)


def test_a_repeated_send_with_its_key_is_answered_as_the_first(client: Client, queue: str) -> None:
    first, again = (client.send(queue, {"file": "a.wav"}, idempotency_key="upload 7") for _ in range(2))
    assert first == again
    many, many_again = (client.send_many(queue, [NewMessage(1), NewMessage(2)], idempotency_key="batch") for _ in range(2))
    assert many == many_again
    assert len(client.list_messages(queue).items) == 3
    with pytest.raises(leasebeat.InvalidRequestError, match="idempotency-key-reused"):
        client.send(queue, {"file": "b.wav"}, idempotency_key="upload 7")
    assert len(client.list_messages(queue).items) == 3


# --- workers


@pytest.mark.parametrize("name", ["plain", "a/b", "..", "ü ?#%2F&"])
def test_a_worker_shows_itself_drains_and_is_deleted(client: Client, queue: str, name: str) -> None:
    worker_id = name if name == ".." else f"{name}-{queue}"
    sent, _ = client.send_many(queue, [NewMessage(1), NewMessage(2)])
    (lease,) = client.claim(queue, worker_id=worker_id, host="node-3", version="1.4.0")
    until(lambda: worker_id in {each.worker_id for each in client.list_workers(limit=1000).items})
    worker = client.get_worker(worker_id)
    assert (worker.worker_id, worker.host, worker.version, worker.draining, worker.stale) == (worker_id, "node-3", "1.4.0", False, False)
    assert ([held.message_id for held in worker.leases], worker.held_leases) == ([sent.id], 1)

    assert client.drain_worker(worker_id).draining
    until(lambda: client.beat_many([Beat(lease)], worker_id=worker_id).drain)
    refused = client.claim(queue, worker_id=worker_id)
    assert (refused, refused.drain) == ((), True)
    assert not client.drain_worker(worker_id, draining=False).draining
    until(lambda: not client.beat_many([Beat(lease)], worker_id=worker_id).drain)

    client.delete_worker(worker_id)
    with pytest.raises(leasebeat.LeaseSettledError):
        client.beat(lease)
    assert (client.get_message(sent.id).status, client.get_message(sent.id).released_count) == ("pending", 1)


def test_a_worker_that_never_was_is_not_found(client: Client) -> None:
    for call in (client.get_worker, client.drain_worker, client.delete_worker):
        with pytest.raises(leasebeat.NotFoundError, match="worker-not-found"):
            call("nobody/at all")


# --- figures


def test_stats_count_in_the_background(client: Client, queue: str) -> None:
    done, *_ = client.send_many(queue, [NewMessage(1), NewMessage(2), NewMessage(3, delay=600)])
    assert client.ack(claim_one(client, queue)).status == "acked"
    assert client.get_message(done.id).status == "completed"
    claim_one(client, queue)
    expected = leasebeat.MessageCounts(scheduled=1, pending=0, in_progress=1, completed=1, failed=0, cancelled=0)
    until(lambda: client.stats(queue).messages == expected)
    stats = client.stats(queue)
    assert (stats.leases.active, stats.leases.overdue, stats.refresh > 0, stats.as_of is not None) == (1, 0, True, True)
    assert stats.retries == (leasebeat.RetryCount(attempt_count=0, completed=1, failed=0),)
    until(lambda: in_progress(client.get_queue(queue)) == 1)
    assert client.stats().messages.in_progress >= 1
    with pytest.raises(leasebeat.NotFoundError, match="queue-not-found"):
        client.stats("no-such-queue")


def in_progress(queue: leasebeat.Queue) -> int | None:
    return None if queue.figures is None else queue.figures.in_progress


@contextmanager
def out_of_reach(database_url: str, message_id: str) -> Iterator[None]:
    """Keep a lease locked, so that it can run out and no timer can reclaim it."""
    with asyncio.Runner() as runner:
        connection = runner.run(asyncpg.connect(database_url))
        runner.run(connection.execute("begin"))
        runner.run(connection.execute("select from lease where message_id = $1 for key share", int(message_id)))
        yield
        runner.run(connection.close())


def test_leases_that_ran_out_are_listed_as_overdue(client: Client, queue: str, shared_database: str, expire: RunOut) -> None:
    sent = client.send(queue, 1)
    claim_one(client, queue)
    assert client.list_leases(queue=queue, overdue=True).items == ()
    with out_of_reach(shared_database, sent.id):
        expire(sent.id)
        page = client.list_leases(queue=queue, overdue=True)
    (lease,) = page.items
    assert (lease.message_id, lease.expired, lease.overdue > 0, lease.since_beat > 0) == (sent.id, True, True, True)
    assert page.as_of is not None
    assert page.as_of >= lease.expires_at


def test_a_sweep_says_what_it_did_and_is_counted(client: Client) -> None:
    before = client.recovery()
    swept = client.sweep()
    assert (swept.errors, swept.expired_found >= swept.recovered + swept.failed, swept.scan_duration_ms > 0) == (0, True, True)
    until(lambda: client.recovery().total_scans > before.total_scans)
    after = client.recovery()
    assert (after.is_running, after.last_scan is not None, after.as_of > before.as_of) == (True, True, True)

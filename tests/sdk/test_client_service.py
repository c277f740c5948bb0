"""Each call against the real service."""

import asyncio
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Protocol

import pytest
from harness.api import Api
from harness.metrics import value
from harness.wait import until
from sdk.running import until_extended

import leasebeat
from leasebeat import Ack, AsyncClient, Beat, Client, Heartbeat, HeldMessage, LeaseExtender, LeaseExtenderConfig, Nack, NewMessage


class Server(Protocol):
    url: str


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


@pytest.fixture
def queue(client: Client) -> Iterator[str]:
    name = f"sdk-{uuid.uuid4().hex[:8]}"
    client.put_queue(name, visibility_timeout=60, extension=60, beat_interval=20)
    yield name
    client.delete_queue(name, force=True)


def test_queues(client: Client, queue: str) -> None:
    changed = client.put_queue(queue, visibility_timeout=60, max_attempts=5, weights={"a": 2})
    assert (changed.visibility_timeout, changed.max_attempts, changed.weights, changed.extension) == (60.0, 5, {"a": 2}, 300.0)
    assert changed.warnings != ()
    assert client.get_queue(queue) == changed
    first = client.list_queues(limit=1)
    assert len(first.items) == 1
    rest = client.list_queues(cursor=first.next_cursor, limit=1000)
    assert {"default", queue} <= {item.name for item in first.items + rest.items}
    assert first.items[0].name not in {item.name for item in rest.items}
    client.send(queue, 1)
    with pytest.raises(leasebeat.ConflictError, match="queue-not-empty"):
        client.delete_queue(queue)
    with pytest.raises(leasebeat.NotFoundError, match="queue-not-found"):
        client.get_queue("no-such-queue")
    with pytest.raises(leasebeat.InvalidRequestError) as caught:
        client.put_queue(queue, visibility_timeout=-1)
    assert [error.field for error in caught.value.errors] == ["visibility_timeout"]


def test_messages(client: Client, queue: str) -> None:
    sent = client.send(
        queue, {"file": "a.wav"}, headers={"lang": "en"}, priority=2, fairness_key="a", work_type="w", task_id="t", max_attempts=9
    )
    (delayed,) = client.send_many(queue, [NewMessage(None, delay=60)])
    assert (sent.status, delayed.status) == ("pending", "scheduled")
    message = client.get_message(sent.id)
    assert (message.body, message.headers, message.priority, message.max_attempts) == ({"file": "a.wav"}, {"lang": "en"}, 2, 9)
    assert (message.fairness_key, message.work_type, message.task_id) == ("a", "w", "t")
    first = client.list_messages(queue, limit=1)
    second = client.list_messages(queue, limit=1, cursor=first.next_cursor)
    assert [item.id for item in first.items + second.items] == [sent.id, delayed.id]
    assert [item.id for item in client.list_messages(queue, status="scheduled").items] == [delayed.id]
    assert client.list_checkpoints(sent.id).items == ()
    with pytest.raises(leasebeat.NotFoundError, match="message-not-found"):
        client.get_message("999999999")


def test_a_lease_from_claim_to_ack(client: Client, queue: str) -> None:
    sent = client.send(queue, "work")
    (lease,) = client.claim(queue, worker_id="worker-1")
    assert (lease.message.id, lease.message.body, lease.generation, lease.attempt) == (sent.id, "work", 1, 1)
    assert 30 < lease.remaining() <= 60
    assert client.claim(queue, worker_id="worker-2") == ()
    assert client.beat(lease, progress=3, detail={"step": 1}, worker_id="worker-1").status == "extended"
    held = client.beat(lease, progress=4)
    assert held.status == "held"
    assert 0 < (held.next_beat_in or 0) <= 20
    (active,) = client.list_leases(queue=queue, worker_id="worker-1").items
    assert (active.message_id, active.progress, active.detail, active.expired) == (sent.id, 4, {"step": 1}, False)
    assert client.list_leases(queue=queue, overdue=True).items == ()
    assert client.ack(lease, {"seconds": 1.5}).late is False
    assert client.ack(lease, {"seconds": 1.5}).status == "acked"
    assert client.get_message(sent.id).output == {"seconds": 1.5}
    with pytest.raises(leasebeat.LeaseSettledError):
        client.beat(lease)


@pytest.mark.scar(18)
@pytest.mark.rule(1)
def test_a_lease_granted_to_a_parked_claim_counts_from_its_grant(client: Client, api: Api, queue: str) -> None:
    def send() -> None:
        until(lambda: value(api, "leasebeat_parked_claims"))
        time.sleep(1)
        client.send(queue, 1)

    sending = threading.Thread(target=send)
    asked_at = time.monotonic()
    sending.start()
    (lease,) = client.claim(queue, worker_id="w", visibility_timeout=60, wait=40)
    answered_at = time.monotonic()
    sending.join()
    assert asked_at + 1 + 60 <= lease.valid_until <= answered_at + 60


@pytest.mark.scar(19)
def test_repeating_a_claim_by_its_name_returns_the_same_lease(client: Client, queue: str) -> None:
    client.send_many(queue, [NewMessage(1), NewMessage(2)])
    first, again = (client.claim(queue, worker_id="w", claim_id="the-same") for _ in range(2))
    assert [lease.receipt for lease in first] == [lease.receipt for lease in again]


def test_calls_for_many_leases_give_a_verdict_each(client: Client, queue: str) -> None:
    client.send_many(queue, [NewMessage(number) for number in range(4)])
    one, two, three, four = client.claim(queue, worker_id="w", max_messages=4)
    assert [result.status for result in client.beat_many([Beat(one, 1), Beat("nonsense")])] == ["extended", "unknown"]
    assert [result.status for result in client.ack_many([Ack(one), Ack("nonsense")])] == ["acked", "unknown"]
    assert [result.status for result in client.nack_many([Nack(two, "no"), Nack(three, "never", retryable=False)])] == [
        "requeued",
        "failed",
    ]
    assert [result.status for result in client.release_many([four, two])] == ["released", "settled"]
    for call in (client.nack, client.release):
        with pytest.raises(leasebeat.LeaseSettledError):
            call(one)


def test_who_lost_its_lease_hears_why(client: Client, queue: str) -> None:
    sent = client.send(queue, 1)
    (lost,) = client.claim(queue, worker_id="slow", visibility_timeout=0.2)
    (won,) = client.claim(queue, worker_id="quick", wait=40)
    with pytest.raises(leasebeat.ReceiptHandleExpiredError) as caught:
        client.beat(lost)
    assert (type(caught.value), caught.value.message_id) == (leasebeat.LeaseConflictError, sent.id)
    client.ack(won)


def test_a_lease_extender_keeps_a_real_lease(client: Client, queue: str) -> None:
    client.put_queue(queue, visibility_timeout=30, extension=30, beat_interval=0.1)
    client.send(queue, 1)
    (granted,) = client.claim(queue, worker_id="w")
    message = HeldMessage(client, granted)
    heartbeat, extender = Heartbeat(), LeaseExtender(LeaseExtenderConfig(interval=0.1))
    with extender.attach(message, heartbeat):
        until_extended(client, queue, beat=heartbeat.beat)
    assert message.valid_until > granted.valid_until
    assert not extender.lost.is_set()
    assert message.ack("kept").late is False


def test_the_same_from_asyncio(server: Server, queue: str) -> None:
    async def work() -> list[leasebeat.AckResult]:
        async with AsyncClient(server.url) as client:
            waiting = asyncio.create_task(client.claim(queue, worker_id="w", max_messages=2, wait=40))
            await asyncio.sleep(0.1)
            await client.send_many(queue, [NewMessage(1), NewMessage(2)])
            leases = await waiting
            return list(await asyncio.gather(*(client.ack(lease) for lease in leases)))

    results = asyncio.run(work())
    assert results
    assert {result.status for result in results} == {"acked"}


def test_the_platform(client: Client) -> None:
    assert client.healthz().status == "ok"
    ready = client.readyz()
    assert (ready.status, ready.database) == ("ready", "ok")

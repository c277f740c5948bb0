"""The rules on a server with several shards: each queue lives in one, and calls that are about several find them all."""

import uuid
import zlib
from collections import Counter
from collections.abc import Iterator

import pytest
from harness.api import Api, Json
from harness.operating import purge, redrive
from harness.postgres import Databases, number
from harness.problems import assert_problem
from harness.server import Server
from harness.wait import until

SHARDS = 4


@pytest.fixture(scope="module")
def sharded_database(postgres: Databases) -> str:
    return postgres.create()


@pytest.fixture(scope="module")
def sharded(sharded_database: str) -> Iterator[Api]:
    with Server(sharded_database, shards=SHARDS) as running:
        yield running.api


def name_in(shard: int) -> str:
    """Return a new name of a queue that lives in this shard."""
    while True:
        name = f"queue-{uuid.uuid4().hex[:12]}"
        if zlib.crc32(name.encode()) % SHARDS == shard:
            return name


@pytest.fixture
def queues(sharded: Api) -> list[str]:
    """A queue in each shard, which others do not use."""
    names = [name_in(shard) for shard in range(SHARDS)]
    for name in names:
        sharded.put_queue(name)
    return names


def lease_each(api: Api, queues: list[str], **options: Json) -> list[Json]:
    """Send a message to each queue, and lease it."""
    for queue in queues:
        api.send(queue, queue)
    leases = [api.claim_one(queue, **options) for queue in queues]
    assert [lease["message"]["body"] for lease in leases] == queues
    return leases


def test_queues_are_spread_over_all_shards(sharded: Api, queues: list[str], sharded_database: str) -> None:
    lease_each(sharded, queues)
    for shard in range(SHARDS):
        assert number(sharded_database, f"select count(*) from lease where shard = {shard}") >= 1


@pytest.mark.rule(2)
def test_one_call_is_about_leases_of_all_shards_and_each_verdict_is_that_of_its_lease(sharded: Api, queues: list[str]) -> None:
    receipts = [lease["receipt"] for lease in lease_each(sharded, queues)]
    mixed = [receipts[1], "no receipt", *receipts[2:], receipts[0]]
    beats = sharded.beat(*mixed, progress=5)
    assert [beat["receipt"] for beat in beats] == mixed
    assert [beat["status"] for beat in beats] == ["extended", "unknown", "extended", "extended", "extended"]
    assert [each["status"] for each in sharded.ack(receipts[0])] == ["acked"]
    assert [each["status"] for each in sharded.nack(receipts[1], receipts[0], delay=0)] == ["requeued", "settled"]
    assert [each["status"] for each in sharded.release(receipts[2], receipts[1])] == ["released", "settled"]
    assert [each["status"] for each in sharded.ack(*receipts)] == ["acked", "settled", "settled", "acked"]
    assert [sharded.claim_one(queue)["generation"] for queue in queues[1:3]] == [2, 2]


@pytest.mark.rule(8)
def test_what_comes_due_in_any_shard_is_ready_again(sharded: Api, queues: list[str]) -> None:
    lease_each(sharded, queues, visibility_timeout=0.2)
    redelivered = [sharded.claim_one(queue, wait=40) for queue in queues]
    assert [lease["generation"] for lease in redelivered] == [2] * SHARDS
    for queue in queues:
        sharded.send(queue, "later", delay=0.2)
    assert [sharded.claim_one(queue, wait=40)["message"]["body"] for queue in queues] == ["later"] * SHARDS


@pytest.mark.scar(48)
def test_a_limit_counts_the_leases_of_its_queue(sharded: Api, queues: list[str]) -> None:
    lease_each(sharded, queues)
    for queue in queues:
        sharded.put_queue(queue, max_in_flight=3)
        sharded.send(queue, *range(5))
        leases = sharded.claim(queue, max_messages=5)
        assert len(leases) == 2
        sharded.ack(leases[0]["receipt"])
        assert len(sharded.claim(queue, max_messages=5)) == 1


@pytest.mark.scar(49)
def test_keys_share_a_queue_by_weight(sharded: Api, queues: list[str]) -> None:
    for queue in queues:
        sharded.put_queue(queue, weights={"b": 3})
        for key in ("a", "b"):
            sharded.send(queue, *range(40), fairness_key=key)
        taken = Counter(lease["message"]["fairness_key"] for _ in range(4) for lease in sharded.claim(queue, max_messages=8))
        assert abs(taken["b"] - 24) <= 2


def test_a_message_is_found_by_its_id_in_whatever_shard(sharded: Api, queues: list[str]) -> None:
    leases = lease_each(sharded, queues)
    for queue, lease in zip(queues, leases, strict=True):
        assert sharded.message(lease["message"]["id"])["queue"] == queue
        assert sharded.call("POST", f"/messages/{lease['message']['id']}/cancel")["status"] == "cancelled"
        assert [beat["status"] for beat in sharded.beat(lease["receipt"])] == ["cancelled"]
        assert sharded.checkpoints(lease["message"]["id"]) == []


def test_a_worker_that_is_deleted_gives_back_what_it_holds_in_all_shards(sharded: Api, queues: list[str]) -> None:
    worker = f"worker-{uuid.uuid4().hex}"
    for queue in queues:
        sharded.send(queue, "work")
        sharded.claim_one(queue, worker)
    held = sharded.call("GET", "/leases", params={"worker_id": worker})["items"]
    assert {lease["queue"] for lease in held} == set(queues)
    sharded.call("DELETE", f"/workers/{worker}", expect=204)
    assert [sharded.claim_one(queue)["generation"] for queue in queues] == [2] * SHARDS


def test_dead_letters_stay_in_their_shard(sharded: Api, queues: list[str]) -> None:
    queue, dead, elsewhere = name_in(1), queues[1], queues[2]
    sharded.put_queue(queue, dead_letter_queue=dead)
    (message_id,) = sharded.send(queue, "work")
    assert sharded.nack(sharded.claim_one(queue)["receipt"], retryable=False)[0]["status"] == "dead_lettered"
    letter = sharded.claim_one(dead)
    assert letter["message"]["id"] == message_id
    sharded.release(letter["receipt"])
    assert redrive(sharded, dead) == {"redriven": 1, "more": False}
    assert sharded.claim_one(queue)["message"]["id"] == message_id
    refused = sharded.client.put(f"/queues/{queue}", json={"dead_letter_queue": elsewhere})
    assert_problem(refused, 422, "invalid-queue-config")


def test_operators_reach_the_queues_of_all_shards(sharded: Api, queues: list[str], sharded_database: str) -> None:
    for queue in queues:
        sharded.send(queue, *range(3))
        assert len(sharded.call("GET", f"/queues/{queue}/messages")["items"]) == 3
        assert purge(sharded, queue) == {"purged": 3, "more": False}
    lease_each(sharded, queues)
    for queue in queues:
        sharded.call("DELETE", f"/queues/{queue}", params={"force": True}, expect=204)
    until(lambda: number(sharded_database, "select count(*) from deleted_queue") == 0)
    assert number(sharded_database, "select count(*) from message where queue_id not in (select id from queue)") == 0


def test_sends_with_keys_store_nothing_twice_in_any_shard(sharded: Api, queues: list[str]) -> None:
    for queue in queues:
        first, again = (sharded.send(queue, "work", dedup_key="once") for _ in range(2))
        assert first == again
        assert len(sharded.call("GET", f"/queues/{queue}/messages")["items"]) == 1

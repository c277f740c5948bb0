"""Visibility timeout and lease expiry: each of its acceptance criteria, and the integration tests that it names."""

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import asyncpg
import pytest
from harness.api import Api
from harness.operating import RARELY
from harness.plans import Node, explain, fill, rows_read, scans
from harness.postgres import RunOut, execute, number
from harness.server import Server
from harness.wait import until

from app.store.database import HOT_SESSION
from app.store.reclaim import RECLAIM

LONG = 40


def once_expired(api: Api, message_id: str) -> str:
    """Wait for the first lease of a message to end, and return when it did."""
    (checkpoint,) = until(lambda: api.checkpoints(message_id))
    return str(checkpoint["created_at"])


# --- acceptance criteria


@pytest.mark.scar(28)
@pytest.mark.rule(8)
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_ac1_expired_leases_are_found_on_every_turn_of_the_loop(start_server: Callable[..., Server], busy: bool) -> None:
    """Whether the loop wakes up with nothing else to do, or has no rest at all."""
    api = start_server(sweep_interval=RARELY).api
    api.put_queue("busy")
    over = threading.Event()
    worked = Counter[int]()

    def work(n: int) -> None:
        while not over.is_set():
            api.send("busy", n)
            receipts = [lease["receipt"] for lease in api.claim("busy", max_messages=10)]
            if receipts:
                worked[n] += len(api.ack(*receipts))

    (message_id,) = api.send("default", "work")
    workers = 4 if busy else 0
    with ThreadPoolExecutor(4) as pool:
        working = [pool.submit(work, n) for n in range(workers)]
        try:
            until(lambda: len(worked) == workers)
            api.claim_one("default", visibility_timeout=0.5)
            until(lambda: api.message(message_id)["status"] == "pending", timeout=LONG)
        finally:
            over.set()
        for each in working:
            each.result()
    assert api.message(message_id)["expired_count"] == 1


def test_ac2_an_expired_message_is_ready_again_for_its_fairness_key_with_one_more_attempt(api: Api, queue: str) -> None:
    (message_id,) = api.send(queue, "expired", fairness_key="tenant-a")
    api.claim_one(queue, visibility_timeout=0.1)
    until(lambda: api.message(message_id)["status"] == "pending")
    api.send(queue, *range(10), fairness_key="tenant-b")
    leases = [api.claim_one(queue) for _ in range(2)]
    assert {lease["message"]["fairness_key"] for lease in leases} == {"tenant-a", "tenant-b"}
    (again,) = (lease for lease in leases if lease["message"]["id"] == message_id)
    assert (again["attempt"], again["message"]["attempt_count"], again["message"]["fairness_key"]) == (2, 1, "tenant-a")


# A lease's row is also its entry among the timer's due moments: `lease_due` is an index on it. Its later entries are rows of `recheck`.
HALF_WAY = """
select count(*) filter (where message.status = 'in_progress') as leased,
       count(*) filter (where (message.status = 'in_progress') <> (lease.message_id is not null)) as half_way,
       count(*) filter (where (message.status = 'pending') <> (message.attempt_count = 1)) as miscounted
from message
full join lease on lease.shard = message.shard and lease.message_id = message.id
"""
_RUN_OUT = """
update lease set expires_at = now(), check_at = now() where message_id in (select message_id from lease order by message_id limit $1)
"""


async def test_ac3_the_lease_and_its_expiry_entry_are_removed_with_the_message_s_return_atomically(
    start_server: Callable[..., Server], database_url: str
) -> None:
    """Seen by another connection while 200 leases run out, twenty at a time: no message is between its two states."""
    api = start_server(sweep_interval=0.05).api
    api.send("default", *range(200))
    assert len(api.claim("default", max_messages=200)) == 200
    sql = await asyncpg.connect(database_url)
    for left in range(180, -1, -20):
        await sql.execute(_RUN_OUT, 20)
        leased = 200
        while leased > left:
            row = await sql.fetchrow(HALF_WAY)
            assert row is not None
            assert (row["half_way"], row["miscounted"]) == (0, 0)
            leased = row["leased"]
        assert leased == left
    assert await sql.fetchval("select count(*) from lease") == 0
    await sql.close()


def test_ac4_leased_at_is_cleared(api: Api, queue: str, expire: RunOut) -> None:
    (message_id,) = api.send(queue, "work")
    api.claim_one(queue)
    assert api.message(message_id)["leased_at"] is not None
    expire(message_id)
    until(lambda: api.message(message_id)["status"] == "pending")
    assert api.message(message_id)["leased_at"] is None


def test_recovery_reclaims_expired_leases(start_server: Callable[..., Server], database_url: str) -> None:
    """Task 3.2, and acceptance criterion 6: recovery on startup also counts the attempt."""
    first = start_server()
    retried, failed = first.api.send("default", "work") + first.api.send("default", "last attempt", max_attempts=1)
    first.api.claim("default", max_messages=2)
    first.kill()
    execute(database_url, "update lease set expires_at = now(), check_at = now()")
    api = start_server(sweep_interval=RARELY).api
    until(lambda: api.message(failed)["status"] == "failed", timeout=LONG)
    assert [api.message(each)["attempt_count"] for each in (retried, failed)] == [1, 1]
    assert api.message(retried)["status"] == "pending"


async def test_ac7_the_check_scans_from_the_earliest_and_stops_at_the_first_that_has_not_expired(database_url: str) -> None:
    sql = await asyncpg.connect(database_url, server_settings=HOT_SESSION)
    await fill(sql, ready=0, leased=20_000)
    await sql.execute(
        "update lease set expires_at = now() - number * interval '1 second', check_at = now() - number * interval '1 second' "
        "from (select message_id, row_number() over () as number from lease limit 20) as over where lease.message_id = over.message_id"
    )
    for limit, read in ((1000, 20), (5, 5)):
        nodes = await explain(sql, RECLAIM, 0, limit, [], None)
        # The other scan is for those that come due next, and begins behind what is due.
        earliest, _ = sorted((each for each in scans(nodes, "lease") if each["Index Name"] == "lease_due"), key=begins_later)
        assert (earliest["Actual Rows"], earliest["Actual Loops"], earliest.get("Rows Removed by Filter", 0)) == (read, 1, 0)
        assert rows_read(nodes, "lease") <= 3 * read  # found, and looked up once more to be moved or to be ended
    await sql.close()


def begins_later(scan: Node) -> bool:
    return "check_at > now()" in scan["Index Cond"]


# --- integration tests


def test_lease_expiry_redelivers_message_with_incremented_attempt_count(api: Api, queue: str) -> None:
    """Task 4.1, and acceptance criterion 5."""
    api.put_queue(queue, visibility_timeout=0.2, extension=0.2, beat_interval=0)
    (message_id,) = api.send(queue, "work")
    first = api.claim_one(queue, "crashed")
    again = api.claim_one(queue, "other", wait=LONG)
    assert [each["message"]["id"] for each in (first, again)] == [message_id] * 2
    assert [each["message"]["attempt_count"] for each in (first, again)] == [0, 1]


def test_lease_expiry_clears_lease_and_expiry_entries(api: Api, queue: str, shared_database: str, expire: RunOut) -> None:
    """Task 4.2."""
    ids = api.send(queue, *range(5))
    api.claim(queue, max_messages=5)
    assert len(api.call("GET", "/leases", params={"queue": queue})["items"]) == 5
    for message_id in ids:
        expire(message_id)
    until(lambda: {api.message(each)["status"] for each in ids} == {"pending"})
    assert api.call("GET", "/leases", params={"queue": queue})["items"] == []
    assert number(shared_database, f"select count(*) from lease where message_id in ({', '.join(ids)})") == 0


def test_lease_expiry_multiple_messages_different_timeouts(api: Api, queue: str, expire: RunOut) -> None:
    """Task 4.3: the one that was leased later, from a queue with a shorter timeout, runs out first."""
    quick = f"{queue}.quick"
    api.put_queue(queue, visibility_timeout=300)
    api.put_queue(quick, visibility_timeout=0.3, extension=0.3, beat_interval=0)
    (late,), (early,) = api.send(queue, "late"), api.send(quick, "early")
    leases = {late: api.claim_one(queue), early: api.claim_one(quick)}
    assert leases[early]["expires_at"] <= once_expired(api, early) < leases[late]["expires_at"]
    assert api.message(late)["status"] == "in_progress"
    expire(late)
    assert once_expired(api, early) < once_expired(api, late)
    api.call("DELETE", f"/queues/{quick}", params={"force": True}, expect=204)


def test_ack_before_expiry_prevents_redelivery(api: Api, queue: str) -> None:
    """Task 4.4."""

    def acked_in_time() -> str | None:
        """Return the message, None if the machine stood still for as long as its lease lasts."""
        (message_id,) = api.send(queue, "work")
        (answer,) = api.ack(api.claim_one(queue, visibility_timeout=3)["receipt"])
        return None if answer["late"] else message_id

    message_id = until(acked_in_time)
    assert message_id is not None
    assert api.claim(queue, wait=4) == []
    message = api.message(message_id)
    assert (message["status"], message["attempt_count"], message["generation"]) == ("completed", 0, 1)

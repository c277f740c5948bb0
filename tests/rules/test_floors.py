"""Where claims and the timer begin to look, and that they miss nothing for it."""

import asyncio
from collections.abc import Callable
from typing import Any

import asyncpg
import pytest
from harness.api import Api
from harness.holding import holding, until_somebody_waits
from harness.operating import bury, redrive
from harness.plans import CLAIM_KINDS, Connection, Node, buffers, explain, fill
from harness.postgres import execute, number
from harness.server import Server
from harness.wait import until

from app.leases.floors import Floors, Taken
from app.store.claim import CLAIMS, Claim
from app.store.database import HOT_SESSION, open_database
from app.store.due import NEXT_DUE
from app.store.pick import Pick
from app.store.promote import PROMOTE
from app.store.recheck import RECHECK
from app.store.reclaim import RECLAIM
from app.store.store import Store

BUSY = 1000
DEAD = 20_000
DEAD_PAGES = 100
"""At least so many pages of the table hold them."""
SLOTS = 10
A_LOOK_AT_ALL_S = 120
"""More than a look at everything is away: a second as a rule, but a minute where a machine stood still during the last one."""


def work_off(api: Api, queue: str) -> None:
    """Pass so many messages through a queue that claims begin behind them."""
    for _ in range(3):
        api.send(queue, *range(BUSY // 2))
        api.ack(*(lease["receipt"] for lease in api.claim(queue, max_messages=BUSY // 2)))


@pytest.mark.parametrize("way", ["nack", "release"])
def test_an_older_message_that_comes_back_is_claimed_at_once(api: Api, queue: str, way: str) -> None:
    (old,) = api.send(queue, "old")
    receipt = api.claim_one(queue)["receipt"]
    work_off(api, queue)
    assert api.claim(queue) == []
    getattr(api, way)(receipt)
    assert api.claim_one(queue)["message"]["id"] == old


def test_an_older_message_that_is_sent_back_is_claimed_at_once(api: Api, queue: str, dead_letters: str, shared_database: str) -> None:
    (old,) = api.send(queue, "old", max_attempts=1)
    api.nack(api.claim_one(queue)["receipt"])
    bury(shared_database, dead_letters, queue, old)
    work_off(api, queue)
    assert redrive(api, dead_letters)["redriven"] == 1
    assert api.claim_one(queue)["message"]["id"] == old


def test_a_more_urgent_message_is_claimed_at_once_and_so_are_those_of_other_keys(api: Api, queue: str) -> None:
    work_off(api, queue)
    sent = [api.send(queue, "work", priority=5), api.send(queue, "work", fairness_key="other"), api.send(queue, "work", priority=-5)]
    assert {lease["message"]["id"] for lease in api.claim(queue, max_messages=10)} == {message_id for (message_id,) in sent}
    work_off(api, queue)


@pytest.mark.parametrize("way", ["expiry", "delay"])
def test_an_older_message_whose_time_has_come_is_claimed_at_once(api: Api, queue: str, way: str) -> None:
    """Nobody has to look below the floors for it, which happens once a second."""
    api.put_queue(queue, max_attempts=100)
    (old,) = api.send(queue, "old")
    api.claim_one(queue, visibility_timeout=300)
    work_off(api, queue)
    length, taken, tried = 0.3, 0, 0
    while tried < 12 and taken < 7:
        (old,) = api.send(queue, "old", delay=length if way == "delay" else 0)
        if way == "expiry":
            api.claim_one(queue, visibility_timeout=length)
        work_off(api, queue)
        if api.message(old)["status"] == "completed":  # its time had come before: on this machine the others take longer
            api.ack(*(lease["receipt"] for lease in api.claim(queue, wait=40)))  # one of them, which it was taken for
            length *= 2
            continue
        until(lambda message_id=old: api.message(message_id)["status"] == "pending")  # type: ignore[misc]
        leases = api.claim(queue, wait=0.2)
        taken += [lease["message"]["id"] for lease in leases] == [old]
        api.ack(*(lease["receipt"] for lease in leases or api.claim(queue, wait=40)))
        tried += 1
    assert taken == 7


def test_another_replica_hears_of_an_older_message_that_comes_back(replicas: tuple[Server, Server]) -> None:
    here, there = (server.api for server in replicas)
    here.put_queue("shared")
    taken = 0
    for _ in range(12):
        if taken == 7:
            break
        (old,) = here.send("shared", "old")
        receipt = here.claim_one("shared")["receipt"]
        work_off(here, "shared")
        there.nack(receipt, delay=0)
        leases = here.claim("shared", wait=0.3)
        taken += [lease["message"]["id"] for lease in leases] == [old]
        here.ack(*(lease["receipt"] for lease in leases or here.claim("shared", wait=40)))
    assert taken == 7


@pytest.mark.timeout(300)
@pytest.mark.parametrize("filters", [{}, {"work_types": ["w", "x"]}, {"task_id": "t"}, {"work_types": ["w", "x"], "task_id": "t"}])
def test_an_older_message_that_nobody_told_of_is_found_soon(api: Api, queue: str, shared_database: str, filters: dict[str, Any]) -> None:
    """Stored by another hand, as by a restored replica of old."""
    (old,) = api.send(queue, "old", work_type="w", task_id="t")
    assert [lease["message"]["id"] for lease in api.claim(queue, **filters)] == [old]
    for _ in range(2):
        api.send(queue, *range(BUSY), work_type="w", task_id="t")
        api.ack(*(lease["receipt"] for lease in api.claim(queue, max_messages=BUSY, **filters)))
    execute(
        shared_database,
        "with ended as (delete from lease where message_id = $1) "
        "update message set status = 'pending', ended_by = 'released' where id = $1",
        int(old),
    )
    assert until(lambda: api.claim(queue, **filters), A_LOOK_AT_ALL_S)[0]["message"]["id"] == old


async def test_a_line_that_nobody_claims_from_is_not_looked_below_and_begins_at_the_front_again(database_url: str) -> None:
    database = await open_database(database_url)
    store = Store(database, shards=1, poll=1, queue_limit=10)
    queue = await store.queues.find("default")
    assert queue
    everything = Claim("worker", BUSY)
    sql = await asyncpg.connect(database_url)
    await fill(sql, ready=BUSY)
    old, *others = (await store.claim(queue, everything, 0)).leases
    assert len(others) == BUSY - 1
    await store.parking.look_below(database.work)
    await sql.execute("delete from lease where message_id = $1", old.message_id)
    await sql.execute("update message set status = 'pending', ended_by = 'released' where id = $1", old.message_id)
    async with holding(database_url, "lock table message in access exclusive mode") as holder:
        await asyncio.wait_for(store.parking.look_below(database.work), 60)  # there has been no claim since: it reads nothing
        await holder.execute("commit")
    assert [lease.message_id for lease in (await store.claim(queue, everything, 0)).leases] == [old.message_id]
    async with holding(database_url, "lock table message in access exclusive mode") as holder:
        looking = asyncio.create_task(store.parking.look_below(database.work))
        await until_somebody_waits(holder)
        await holder.execute("commit")
    await looking
    await sql.close()
    await database.close()


async def held_snapshot(url: str) -> Connection:
    """Open a transaction that keeps Postgres from clearing away whatever ends from now on."""
    holder = await asyncpg.connect(url)
    await holder.execute("begin isolation level repeatable read")
    await holder.fetchval("select count(*) from queue")
    return holder


async def kept_below(sql: Connection, url: str) -> tuple[Connection, int]:
    """Store ready messages behind many that are gone, and that a transaction keeps. Returns its connection, and the last that is gone."""
    await fill(sql, ready=DEAD)
    holder = await held_snapshot(url)
    last = await sql.fetchval("select max(id) from message")
    await sql.execute("update message set status = 'completed', generation = 1, ended_by = 'acked', finished_at = now()")
    await fill(sql, ready=SLOTS)
    return holder, last


@pytest.mark.scar(41)
@pytest.mark.parametrize("kind", CLAIM_KINDS)
async def test_a_claim_walks_no_message_that_is_gone_while_a_transaction_is_held_open(database_url: str, kind: str) -> None:
    sql = await asyncpg.connect(database_url, server_settings=HOT_SESSION)
    holder, last = await kept_below(sql, database_url)
    floors = Floors()
    floors.begin()
    floors.took([Taken(("key-0", 0), BUSY, last)])
    pick, wanted = CLAIM_KINDS[kind]
    behind, from_the_front = [await read_by_a_claim(sql, pick, each, wanted) for each in (floors, Floors())]
    assert buffers(behind) <= 60 * SLOTS
    assert buffers(from_the_front) > buffers(behind) + DEAD_PAGES
    assert await sql.fetchval(pick.below, 0, 1, *floors.columns(), [], *wanted) is None
    await sql.execute("update message set status = 'pending', ended_by = 'released', finished_at = null where id = $1", last - 5)
    assert await sql.fetchval(pick.below, 0, 1, *floors.columns(), [], *wanted) == last - 5
    await holder.close()
    await sql.close()


async def read_by_a_claim(sql: Connection, pick: Pick, floors: Floors, wanted: tuple[object, ...]) -> list[Node]:
    """Return what a claim did, which has granted as many leases as it was asked for."""
    nothing = [None] * SLOTS
    nodes = await explain(
        sql,
        CLAIMS[pick],
        *(0, 1, "", 0, False, [], ["worker"] * SLOTS, *floors.stretches()),
        *(*wanted, nothing, nothing, nothing, list(range(SLOTS))),
    )
    assert nodes[0]["Actual Rows"] == SLOTS
    return nodes


@pytest.mark.scar(41)
async def test_a_message_that_comes_back_has_claims_walk_its_own_level_only(database_url: str) -> None:
    """Again and again, while all that was ever taken at a busier level is kept by a transaction that is held open."""
    sql = await asyncpg.connect(database_url, server_settings=HOT_SESSION)
    holder, last = await kept_below(sql, database_url)
    pick, wanted = CLAIM_KINDS["any"]
    floors = Floors()
    for _ in range(3):
        floors.begin()
        floors.took([Taken(("key-0", 0), BUSY, last)])
        floors.lower({("other", 0): 1})
        assert buffers(await read_by_a_claim(sql, pick, floors, wanted)) <= 60 * SLOTS
    floors.lower({("key-0", 0): 1})
    assert buffers(await read_by_a_claim(sql, pick, floors, wanted)) > DEAD_PAGES + 60 * SLOTS
    await holder.close()
    await sql.close()


@pytest.mark.scar(41)
async def test_the_timer_walks_nothing_that_is_gone_but_what_came_due_of_late(database_url: str) -> None:
    sql = await asyncpg.connect(database_url, server_settings=HOT_SESSION)
    await fill(sql, ready=0, leased=DEAD, delayed=DEAD)
    await sql.execute("update lease set check_at = now() - interval '1 minute'")
    await sql.execute("update message set available_at = now() - interval '1 minute' where status = 'scheduled'")
    await sql.execute("insert into recheck select 0, n, now() - interval '1 minute' from generate_series(1, $1) n", DEAD)
    holder = await held_snapshot(database_url)
    await sql.execute("delete from lease")
    await sql.execute("delete from recheck")
    await sql.execute("update message set status = 'pending' where status = 'scheduled'")
    for statement, arguments in (
        (RECLAIM, (0, 1000, [])),
        (RECHECK, (0, 60, [], 1000)),
        (PROMOTE, (0, 1000, [])),
        (NEXT_DUE, (0, [])),
    ):
        rest = (1.0,) if statement is NEXT_DUE else ()
        assert buffers(await explain(sql, statement, *arguments, 3.0, *rest)) <= 60
        assert buffers(await explain(sql, statement, *arguments, None, *rest)) > DEAD_PAGES
    await holder.close()
    await sql.close()


@pytest.mark.timeout(300)
@pytest.mark.rule(8)
def test_what_was_due_long_ago_when_it_was_committed_is_found_soon(start_server: Callable[..., Server], database_url: str) -> None:
    """As by a transaction that took longer than a sweep looks back, or after a jump of the database's clock."""
    api = start_server().api
    leased, looked_at, delayed = api.send("default", "leased", "looked at", "delayed")
    api.claim("default", max_messages=3)
    until(lambda: number(database_url, "select scans from recovery") > 1)
    execute(database_url, "update lease set expires_at = now() - interval '1 hour'")
    execute(database_url, "update lease set check_at = now() - interval '1 hour' where message_id = $1", int(leased))
    execute(
        database_url,
        "with ended as (update lease set check_at = 'infinity' where message_id = $1 returning *) "
        "insert into recheck select shard, message_id / 64, now() - interval '1 hour' from ended",
        int(looked_at),
    )
    execute(
        database_url,
        "with ended as (delete from lease where message_id = $1) "
        "update message set status = 'scheduled', ended_by = 'nacked', available_at = now() - interval '1 hour' where id = $1",
        int(delayed),
    )
    for message_id in (leased, looked_at, delayed):
        until(lambda wanted=message_id: api.message(wanted)["status"] == "pending", A_LOOK_AT_ALL_S)  # type: ignore[misc]

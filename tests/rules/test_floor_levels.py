"""A message that comes back lowers the floor of its own level, here and in other replicas: what is below other floors stays there.

Shown by a message that nobody was told of, and that no claim sees as long as the floor of its level stands.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from operator import attrgetter

import asyncpg
import pytest
from harness.operating import RARELY
from harness.plans import Connection

from app.store.ack import Ack
from app.store.claim import Claim, GrantedLease
from app.store.database import Database, open_database
from app.store.nack import Nack
from app.store.queues import QueueRef
from app.store.release import Release
from app.store.sending import NewMessage
from app.store.store import Store

BUSY = 1000
EVERYTHING = Claim("worker", BUSY)
LISTENING = "select exists (select from pg_stat_activity where datname = current_database() and query like 'LISTEN%workers%')"


@dataclass
class Replica:
    """A store, without the background tasks of a replica."""

    store: Store
    database: Database
    queue: QueueRef

    async def send(self, fairness_key: str, count: int = 1) -> None:
        await self.store.send(self.queue, [NewMessage("1", None, 0, 0.0, fairness_key, None, None, None, None)] * count)

    async def claim(self, wait: float = 0) -> list[GrantedLease]:
        return (await self.store.claim(self.queue, EVERYTHING, wait)).leases


@asynccontextmanager
async def running(url: str) -> AsyncIterator[Replica]:
    database = await open_database(url)
    store = Store(database, shards=1, poll=RARELY, queue_limit=10)
    queue = await store.queues.find("default")
    assert queue
    try:
        yield Replica(store, database, queue)
    finally:
        await database.close()


async def by_release(_sql: Connection, replica: Replica, old: GrantedLease) -> None:
    await replica.store.release([(0, Release(old.message_id, old.generation))])


async def by_nack(_sql: Connection, replica: Replica, old: GrantedLease) -> None:
    await replica.store.nack([(0, Nack(old.message_id, old.generation, None, 0.0, retryable=True))])


async def by_expiry(sql: Connection, replica: Replica, old: GrantedLease) -> None:
    await sql.execute("update lease set expires_at = now(), check_at = now() where message_id = $1", old.message_id)
    assert (await replica.store.reclaim(0, BUSY, [], None)).expired == 1


async def by_delay(sql: Connection, replica: Replica, old: GrantedLease) -> None:
    await replica.store.nack([(0, Nack(old.message_id, old.generation, None, 3600.0, retryable=True))])
    await sql.execute("update message set available_at = now() where id = $1", old.message_id)
    assert (await replica.store.promote(0, BUSY, [], None)).promoted == 1


async def by_redrive(_sql: Connection, replica: Replica, old: GrantedLease) -> None:
    await replica.store.nack([(0, Nack(old.message_id, old.generation, None, None, retryable=False))])
    assert (await replica.store.redrive(replica.queue, None, None)).messages == 1


Way = Callable[[Connection, Replica, GrantedLease], Awaitable[None]]
WAYS: list[Way] = [by_release, by_nack, by_expiry, by_delay, by_redrive]


async def leave_behind(sql: Connection, claims: Replica) -> tuple[GrantedLease, GrantedLease]:
    """Lease an old message, and hide a newer one of another level behind the floor that this has by then. Returns both their leases."""
    await claims.send("old")
    await claims.send("busy")
    old, hidden = sorted(await claims.claim(), key=attrgetter("message_id"))
    await claims.send("busy", BUSY)
    assert len(await claims.claim()) == BUSY
    await sql.execute("delete from lease where message_id = $1", hidden.message_id)
    await sql.execute("update message set status = 'pending', ended_by = 'released' where id = $1", hidden.message_id)
    assert await claims.claim() == []
    return old, hidden


@pytest.mark.scar(41)
@pytest.mark.parametrize("way", WAYS)
async def test_a_message_that_comes_back_lowers_the_floor_of_its_level_only(database_url: str, way: Way) -> None:
    sql = await asyncpg.connect(database_url)
    async with running(database_url) as one:
        old, hidden = await leave_behind(sql, one)
        await way(sql, one, old)
        assert [lease.message_id for lease in await one.claim()] == [old.message_id]
        await one.store.parking.look_below(one.database.work)
        assert [lease.message_id for lease in await one.claim()] == [hidden.message_id]
    await sql.close()


async def park(claims: Replica) -> "asyncio.Task[list[GrantedLease]]":
    """Begin a claim that waits, and has looked in vain."""
    parked = asyncio.create_task(claims.claim(wait=RARELY - 10))
    while not claims.store.parking.parked:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert await claims.claim() == []
    return parked


async def hears(sql: Connection, replica: Replica, other: Replica) -> None:
    """Wait until a replica hears of the other, and has looked at everything for what it has not heard before."""
    async with asyncio.timeout(60):
        while not await sql.fetchval(LISTENING):  # noqa: ASYNC110 - nothing tells when it does
            await asyncio.sleep(0.01)
    parked = await park(replica)
    await other.send("")
    (heard_of,) = await parked
    await replica.store.ack([(0, Ack(heard_of.message_id, heard_of.generation, None))])


@pytest.mark.scar(41)
@pytest.mark.parametrize("way", [by_nack, by_expiry])
async def test_another_replica_lowers_the_floor_of_that_level_only(database_url: str, way: Way) -> None:
    sql = await asyncpg.connect(database_url)
    async with running(database_url) as one, running(database_url) as other:
        background = [asyncio.create_task(one.store.wakeups.notify()), asyncio.create_task(other.store.wakeups.listen())]
        await hears(sql, other, one)
        old, _ = await leave_behind(sql, other)
        parked = await park(other)
        await way(sql, one, old)
        assert [lease.message_id for lease in await parked] == [old.message_id]
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
    await sql.close()

"""The registry's part in memory, on a real Postgres: what it writes, how often, and how much it keeps."""

import asyncio
import tracemalloc
import uuid
from collections.abc import AsyncIterator, Callable
from typing import TypeAlias

import asyncpg
import pytest
from harness.server import Server
from harness.wait import until

from app.store import workers
from app.store.database import Database, open_database
from app.store.faults import UnavailableError
from app.store.registry import Registry

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

MOST = 10_000
"""How many workers a replica remembers at most."""


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = await open_database(database_url)
    yield opened
    await opened.close()


@pytest.fixture
async def own_sql(database_url: str) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.close()


def registry_on(database: Database, *, interval: float = 3600) -> Registry:
    return Registry(database.work, lambda _: None, interval=interval)


async def rows(sql: Connection) -> dict[str, tuple[str | None, str | None, str]]:
    """Return every worker's host and version, and which transaction wrote its row last."""
    found = await sql.fetch("select worker_id, host, version, xmin::text as written_by from worker")
    return {row["worker_id"]: (row["host"], row["version"], row["written_by"]) for row in found}


async def test_a_worker_is_written_once_per_interval_however_often_it_shows_itself(database: Database, own_sql: Connection) -> None:
    registry = registry_on(database)
    registry.seen("w")
    await registry.flush()
    first = await rows(own_sql)
    for _ in range(100):
        registry.seen("w")
        await registry.flush()
    assert await rows(own_sql) == first


async def test_several_replicas_together_write_a_worker_once_per_interval(database: Database, own_sql: Connection) -> None:
    registry_on(database).seen("w")
    first: dict[str, tuple[str | None, str | None, str]] | None = None
    for _ in range(5):
        replica = registry_on(database)
        replica.seen("w")
        await replica.flush()
        first = first or await rows(own_sql)
        assert await rows(own_sql) == first


async def test_a_worker_is_written_anew_when_the_interval_is_over(database: Database, own_sql: Connection) -> None:
    registry = registry_on(database, interval=0.05)
    registry.seen("w")
    await registry.flush()
    first = await rows(own_sql)
    async with asyncio.timeout(60):
        while await rows(own_sql) == first:
            registry.seen("w")
            await registry.flush()
            await asyncio.sleep(0.01)


async def test_what_a_worker_newly_says_of_itself_is_written_at_once_and_what_it_leaves_out_is_kept(
    database: Database, own_sql: Connection
) -> None:
    registry = registry_on(database)
    for sign, expected in (
        ((None, None), (None, None)),
        (("node-1", None), ("node-1", None)),
        ((None, "1.0"), ("node-1", "1.0")),
        (("node-2", "1.0"), ("node-2", "1.0")),
        ((None, None), ("node-2", "1.0")),
    ):
        registry.seen("w", *sign)
        await registry.flush()
        assert (await rows(own_sql))["w"][:2] == expected


async def test_signs_that_wait_together_are_written_as_one(database: Database, own_sql: Connection) -> None:
    registry = registry_on(database)
    registry.seen("w", host="node-1")
    registry.seen("w")
    registry.seen("w", version="1.0")
    await registry.flush()
    assert (await rows(own_sql))["w"][:2] == ("node-1", "1.0")


async def test_a_replica_that_remembers_an_old_host_does_not_bring_it_back(database: Database, own_sql: Connection) -> None:
    old, new = registry_on(database, interval=0), registry_on(database, interval=0)
    for registry, host in ((old, "node-1"), (new, "node-2"), (old, None)):
        registry.seen("w", host)
        await registry.flush()
    assert (await rows(own_sql))["w"][0] == "node-2"


async def test_signs_lost_to_an_outage_are_noted_at_the_next_one(database: Database, own_sql: Connection) -> None:
    registry = registry_on(database)
    await own_sql.execute("alter table worker rename to worker_away")
    registry.seen("w", host="node-1")
    with pytest.raises(UnavailableError):
        await registry.flush()
    await own_sql.execute("alter table worker_away rename to worker")
    registry.seen("w", host="node-1")
    await registry.flush()
    assert (await rows(own_sql))["w"][0] == "node-1"


@pytest.mark.rule(10)
async def test_a_worker_that_postgres_refuses_keeps_nobody_else_out(database: Database, own_sql: Connection) -> None:
    await own_sql.execute("alter table worker add constraint no_nobody check (worker_id <> 'w-77')")
    registry = registry_on(database)
    names = [f"w-{n}" for n in range(200)]
    for name in names:
        registry.seen(name)
    await registry.flush()
    assert sorted(await rows(own_sql)) == sorted(set(names) - {"w-77"})


async def test_a_flood_of_made_up_names_leaves_memory_bounded_and_the_registry_at_work(database: Database, own_sql: Connection) -> None:
    registry = registry_on(database)

    def flood(number: int) -> int:
        """Show this many new workers, and return how many bytes are in use."""
        for _ in range(number):
            registry.seen(f"made-up-{uuid.uuid4().hex}")
        return tracemalloc.get_traced_memory()[0]

    await registry.flush()
    tracemalloc.start()
    try:
        first = flood(20_000)
        assert flood(60_000) < 1.2 * first
        await registry.flush()
        assert len(await rows(own_sql)) == MOST
        second = flood(20_000)
        for _ in range(3):
            await registry.flush()
            assert flood(20_000) < 1.2 * second
    finally:
        tracemalloc.stop()
    await registry.flush()
    registry.seen("w", "node-1")
    await registry.flush()
    assert (await rows(own_sql))["w"][0] == "node-1"


@pytest.mark.rule(12)
async def test_replicas_that_note_the_same_workers_in_other_orders_never_deadlock(database: Database, own_sql: Connection) -> None:
    names = [f"w-{n}" for n in range(1000)]

    async def note(order: list[str]) -> None:
        for _ in range(10):
            await workers.note(database.work, 0, [workers.Sign(name) for name in order])

    await asyncio.gather(*(note(order) for order in (names, names[::-1], names[500:] + names[:500])))
    assert len(await rows(own_sql)) == 1000


async def test_workers_silent_for_a_day_are_forgotten_unless_they_hold_a_lease_or_are_draining(
    start_server: Callable[..., Server], database: Database, own_sql: Connection
) -> None:
    api = start_server().api
    api.send("default", "work")
    for name in ("holding", "draining", "silent", "quiet"):
        api.call("POST", "/queues/default/leases", {"worker_id": name})
    until(lambda: len(api.call("GET", "/workers")["items"]) == 4)
    api.call("POST", "/workers/draining/drain", {"draining": True})
    await own_sql.execute("update worker set last_seen_at = now() - interval '25 hours' where worker_id <> 'quiet'")
    await own_sql.execute("update worker set last_seen_at = now() - interval '23 hours' where worker_id = 'quiet'")
    assert await workers.forget_silent(database.work) is False
    assert sorted(await rows(own_sql)) == ["draining", "holding", "quiet"]


async def test_silent_workers_are_forgotten_batch_by_batch(database: Database, own_sql: Connection) -> None:
    await own_sql.execute(
        "insert into worker (worker_id, last_seen_at) select 'w-' || n, now() - interval '2 days' from generate_series(1, 250) n"
    )
    assert [await workers.forget_silent(database.work) for _ in range(3)] == [True, True, False]
    assert await rows(own_sql) == {}


@pytest.mark.parametrize("statement", ["HOLDINGS", "COUNT_HELD"])
async def test_a_workers_leases_are_found_by_its_name_and_no_other_lease_is_read(
    database: Database, own_sql: Connection, statement: str
) -> None:
    """Also with a plan that was made while the table was empty."""
    sql, arguments = {"HOLDINGS": (workers.HOLDINGS, ("w-7", 0, None, 1000)), "COUNT_HELD": (workers.COUNT_HELD, ("w-7",))}[statement]
    async with database.work.acquire() as connection:
        await connection.execute("set plan_cache_mode = force_generic_plan")
        prepared = await connection.prepare(sql)
        await prepared.fetch(*arguments)
        await own_sql.execute("update queue set shard = 0 where name = 'default'")
        await own_sql.execute(
            "insert into lease (shard, message_id, queue_id, generation, granted_at, expires_at, check_at, deadline, worker_id) "
            "select 0, n, queue.id, 1, now(), now() + interval '1 h', now() + interval '1 h', now() + interval '12 h', 'w-' || n % 500 "
            "from generate_series(1, 10000) n, queue"
        )
        (plan,) = await prepared.explain(*arguments, analyze=True)
        found = await prepared.fetch(*arguments)
    assert len(found) == 20 if statement == "HOLDINGS" else found[0]["held"] == 20
    (scan,) = [node for node in flatten(plan["Plan"]) if node.get("Relation Name") == "lease"]
    assert (scan["Index Name"], scan["Actual Rows"]) == ("lease_of_worker", 20)
    assert scan.get("Rows Removed by Filter", 0) == 0


def flatten(node: dict[str, object]) -> list[dict[str, object]]:
    inner = node.get("Plans", [])
    assert isinstance(inner, list)
    return [node, *(each for child in inner for each in flatten(child))]

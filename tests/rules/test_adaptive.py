"""An adaptive queue derives its lease duration from how long its messages have taken."""

import statistics
import time
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import TypeAlias

import asyncpg
import pytest
from harness.api import Api
from harness.server import Server

from app.store.database import HOT_SESSION
from app.store.derive import DERIVE

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"
Derived = tuple[float | None, int | None]

DERIVED = "select derived_lease, derived_samples from queue where name = $1"
FINISHED = """
insert into message (shard, queue_id, body, priority, fairness_key, status, started_at, finished_at)
select 0, queue.id, '1', 0, '', $2, moment.finished_at - make_interval(secs => $4), moment.finished_at
from queue, generate_series(1, $5), lateral (select now() - interval '1 hour' + make_interval(secs => $3) as finished_at) as moment
where name = $1
"""


@pytest.fixture
async def own_sql(database_url: str) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(database_url, server_settings=HOT_SESSION)
    yield connection
    await connection.close()


async def derived(sql: Connection, queue: str) -> Derived:
    row = await sql.fetchrow(DERIVED, queue)
    assert row is not None
    return row["derived_lease"], row["derived_samples"]


async def derive(sql: Connection) -> None:
    await sql.fetch(DERIVE, 0, 0)


async def adaptive(sql: Connection, least: float, most: float) -> None:
    """Make the default queue adaptive, with these bounds."""
    await sql.execute("update queue set adaptive = true, adaptive_min = $1, adaptive_max = $2", least, most)


async def finished(sql: Connection, count: int, *, took: float, status: str = "completed", at: float = 0) -> None:
    """Add messages to the default queue that took this long; the higher `at`, the later they were finished."""
    await sql.execute(FINISHED, "default", status, at, took, count)


def work(api: Api, queue: str, count: int, longest: float) -> list[str]:
    """Lease and ack messages, which take evenly spread times up to `longest`."""
    ids = api.send(queue, *range(count))
    receipts = [lease["receipt"] for lease in api.claim(queue, max_messages=count)]
    for receipt in receipts:
        time.sleep(longest / count)
        api.ack(receipt)
    return ids


def took(api: Api, message_id: str) -> float:
    message = api.message(message_id)
    return (datetime.fromisoformat(message["finished_at"]) - datetime.fromisoformat(message["started_at"])).total_seconds()


async def test_it_is_derived_from_real_work_within_its_bounds_and_given_up_when_turned_off(
    start_server: Callable[..., Server], own_sql: Connection
) -> None:
    api = start_server().api
    bounds = {"free": (0.01, 3600), "raised": (50, 60), "lowered": (0.01, 0.02), "few": (0.01, 3600)}
    for name, (least, most) in bounds.items():
        api.put_queue(name, adaptive=True, adaptive_bounds={"min": least, "max": most})
    api.put_queue("fixed")
    ids = {name: work(api, name, 9 if name == "few" else 12, 0.6) for name in (*bounds, "fixed")}
    expected = 2 * statistics.quantiles([took(api, each) for each in ids["free"]], n=20, method="inclusive")[-1]
    found: dict[str, Derived] = {}
    for name, samples in {"free": 12, "raised": 12, "lowered": 12}.items():
        while (await derived(own_sql, name))[1] != samples:
            await own_sql.execute("select pg_sleep(0.1)")
        found[name] = await derived(own_sql, name)
    assert found["free"][0] == pytest.approx(expected, rel=1e-3)
    assert found["raised"] == (50, 12)
    assert found["lowered"] == (0.02, 12)
    for name in ("few", "fixed"):
        assert await derived(own_sql, name) == (None, None)
    for name in bounds:
        api.put_queue(name)
    left = "select count(*) from queue where derived_lease is not null or derived_samples is not null"
    while await own_sql.fetchval(left):
        await own_sql.execute("select pg_sleep(0.1)")


async def test_the_newest_thousand_completed_count_and_no_others(own_sql: Connection) -> None:
    await adaptive(own_sql, 0.01, 43200)
    await finished(own_sql, 500, took=100, at=1)
    await finished(own_sql, 1000, took=3, at=2)
    await finished(own_sql, 300, took=1000, status="failed", at=3)
    await finished(own_sql, 300, took=1000, status="cancelled", at=3)
    await derive(own_sql)
    assert await derived(own_sql, "default") == (6, 1000)
    await finished(own_sql, 51, took=40, at=4)
    await derive(own_sql)
    assert await derived(own_sql, "default") == (80, 1000)


async def test_ten_are_enough_and_nine_are_not(own_sql: Connection) -> None:
    await adaptive(own_sql, 0.01, 43200)
    await finished(own_sql, 9, took=3)
    await derive(own_sql)
    assert await derived(own_sql, "default") == (None, None)
    await finished(own_sql, 1, took=3)
    await derive(own_sql)
    assert await derived(own_sql, "default") == (6, 10)


async def test_a_queue_whose_times_stay_is_not_written(own_sql: Connection) -> None:
    await adaptive(own_sql, 0.01, 43200)
    await finished(own_sql, 10, took=3)
    await derive(own_sql)
    version = "select xmin::text, updated_at from queue"
    before = await own_sql.fetchrow(version)
    await derive(own_sql)
    assert await own_sql.fetchrow(version) == before
    await finished(own_sql, 1, took=3)
    await derive(own_sql)
    after = await own_sql.fetchrow(version)
    assert before is not None
    assert after is not None
    assert after["xmin"] != before["xmin"]
    assert after["updated_at"] == before["updated_at"]  # that is when its configuration changed

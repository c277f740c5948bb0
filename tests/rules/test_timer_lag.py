"""How late the timer is: what tells that it stands still, not that it has much to do."""

import time
from collections.abc import Callable

import asyncpg
import pytest
from harness.api import Api
from harness.plans import fill
from harness.server import Server
from harness.wait import until

BATCH = 1000


def timer_lag(api: Api) -> float:
    return float(api.client.get("/readyz").json()["timer_lag"])


@pytest.mark.scar(27)
@pytest.mark.rule(8)
async def test_a_timer_counts_as_late_from_the_last_batch_that_ended(start_server: Callable[..., Server], database_url: str) -> None:
    """A backlog of two batches, of which the first is let through: the one sweep goes on, and has got on."""
    api = start_server().api
    sql = await asyncpg.connect(database_url)
    await sql.execute(
        "create function hold_back() returns trigger as 'begin perform pg_advisory_xact_lock(1); return old; end' language plpgsql"
    )
    await sql.execute("create trigger hold_back before delete on lease for each row execute function hold_back()")
    await sql.execute("select pg_advisory_lock(1)")
    await fill(sql, ready=0, leased=2 * BATCH)
    await sql.execute("update lease set expires_at = now(), check_at = now()")
    until(lambda: timer_lag(api) > 2)
    let_through = time.monotonic()
    await sql.execute("select pg_advisory_unlock(1)")
    await sql.execute("select pg_advisory_lock(1)")  # which is had behind the batch that waits for it, before the next one
    until(lambda: timer_lag(api) <= time.monotonic() - let_through)
    assert await sql.fetchval("select count(*) from lease") == BATCH
    await sql.close()

"""A transaction that the test holds open, and that statements of the service wait for."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeAlias

import asyncpg

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

_WAITING = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"


@asynccontextmanager
async def holding(database_url: str, statement: str, *arguments: object) -> AsyncIterator[Connection]:
    """Run the statement, and keep its locks until the block ends or the test commits by itself."""
    connection = await asyncpg.connect(database_url)
    try:
        await connection.execute("begin")
        await connection.execute(statement, *arguments)
        yield connection
        await connection.execute("commit")
    finally:
        await connection.close()


async def until_somebody_waits(connection: Connection, sessions: int = 1) -> None:
    """Return once this many sessions of the database wait for a lock."""
    async with asyncio.timeout(60):
        while await connection.fetchval(_WAITING) < sessions:
            await asyncio.sleep(0.01)
            await connection.execute("select pg_stat_clear_snapshot()")


async def other_falls_to_a_deadlock(connection: Connection, statement: str, *arguments: object) -> bool:
    """Run a statement that waits for a session that waits for this one, which Postgres is to end.

    Returns False if it has ended this transaction instead: that session looks for a deadlock once, a second after it began to wait, and
    the machine stood still for as long.
    """
    await connection.execute("set local deadlock_timeout = '3s'")
    try:
        await connection.execute(statement, *arguments)
    except asyncpg.DeadlockDetectedError:
        return False
    return True


async def waiting_for_a_lock(connection: Connection, words: str) -> None:
    """Return once a statement with these words among its first 1000 bytes waits for a lock."""
    query = (
        "select count(*) > 0 from pg_stat_clear_snapshot(), pg_stat_activity "
        "where datname = current_database() and wait_event_type = 'Lock' and query ilike '%' || $1 || '%'"
    )
    async with asyncio.timeout(60):
        while not await connection.fetchval(query, words):  # noqa: ASYNC110 - nothing tells when it does
            await asyncio.sleep(0.005)

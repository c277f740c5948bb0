"""Statements of the service that wait because a test holds a lock."""

import anyio
import asyncpg


async def waiting_for_a_lock(connection: "asyncpg.Connection[asyncpg.Record]", words: str) -> None:
    """Wait until a statement with these words among its first 1000 bytes waits for a lock."""
    query = (
        "select count(*) > 0 from pg_stat_clear_snapshot(), pg_stat_activity "
        "where datname = current_database() and wait_event_type = 'Lock' and query ilike '%' || $1 || '%'"
    )
    with anyio.fail_after(20):
        while not await connection.fetchval(query, words):  # noqa: ASYNC110
            await anyio.sleep(0.005)

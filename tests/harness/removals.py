"""Statements that remove messages: what goes on while one of them stands still, and how many each takes at once."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from harness.holding import Connection, holding

LARGEST = "select max(messages) from removal"
"""How many messages the largest statement has removed."""

_WATCH = """
create table removal (messages bigint);
create function hold_back() returns trigger language plpgsql as $$ begin perform pg_advisory_xact_lock(1); return old; end $$;
create function note() returns trigger language plpgsql as $$ begin insert into removal select count(*) from gone; return null; end $$;
create trigger hold_back before delete on message for each row execute function hold_back();
create trigger note after delete on message referencing old table as gone for each statement execute function note();
"""


@asynccontextmanager
async def removals_held(database_url: str) -> AsyncIterator[Connection]:
    """Let no statement remove messages until the block ends, and yield a connection to see by that one waits. Each is noted."""
    connection = await asyncpg.connect(database_url)
    await connection.execute(_WATCH)
    await connection.close()
    async with holding(database_url, "select pg_advisory_xact_lock(1)") as sql:
        yield sql

"""One Postgres for the whole run, and a fresh migrated database for whoever asks."""

import asyncio
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncpg

from app import embedded
from app.store.migrations import migrate

MIGRATIONS = Path(__file__).parents[2] / "alembic"

# Safe to lose: no test of this Postgres pulls its plug. Those that do start one of their own with these left out.
FAST = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", "max_connections=300")

RunOut = Callable[[str], None]
"""Makes the lease of a message run out."""


def execute(url: str, statement: str, *arguments: object) -> None:
    """Run one statement on a connection of its own."""

    async def run() -> None:
        connection = await asyncpg.connect(url)
        try:
            await connection.execute(statement, *arguments)
        finally:
            await connection.close()

    asyncio.run(run())


def number(url: str, query: str) -> int:
    """Return the one number that a query finds."""

    async def run() -> int:
        connection = await asyncpg.connect(url)
        try:
            return int(await connection.fetchval(query))
        finally:
            await connection.close()

    return asyncio.run(run())


async def transactions_a_second(connection: "asyncpg.Connection[asyncpg.Record]") -> float:
    """Return how many transactions end in this database, over two seconds or as many as the machine makes of them."""
    query = "select clock_timestamp() as at, xact_commit + xact_rollback as count from pg_stat_database where datname = current_database()"
    await connection.execute("select pg_stat_clear_snapshot()")
    began = await connection.fetchrow(query)
    await connection.execute("select pg_sleep(2), pg_stat_clear_snapshot()")
    ended = await connection.fetchrow(query)
    assert began is not None
    assert ended is not None
    return float((ended["count"] - began["count"]) / (ended["at"] - began["at"]).total_seconds())


def refuse(database_url: str, table: str, condition: str, event: str, *, after: str = "") -> None:
    """Make Postgres refuse some rows of a table from now on, or in the moment `after` some statements."""
    name = f"refuse_{table}_{event}"
    function = f"create function {name}() returns trigger language plpgsql as $$ begin raise exception 'refused'; end $$"
    trigger = f"create trigger {name} before {event} on {table} for each row when ({condition}) execute function {name}()"
    execute(database_url, f"{after}; {function}; {trigger}")


def programs() -> Path | None:
    """The folder of the Postgres programs to test on, if TEST_POSTGRES_BIN names one."""
    named = os.environ.get("TEST_POSTGRES_BIN")
    return Path(named) if named else None


class Databases:
    """Makes databases on one Postgres, as a rule copies of a migrated template: to migrate each takes several times as long."""

    def __init__(self, postgres: embedded.EmbeddedPostgres) -> None:
        self.postgres = postgres
        execute(postgres.url, "create database migrated")
        migrate(postgres.url_of("migrated"), MIGRATIONS)

    def create(self) -> str:
        """Make a database with the service's tables and return its URL."""
        return self._create("template migrated strategy file_copy")

    def create_empty(self) -> str:
        """Make a database without any table and return its URL."""
        return self._create()

    def drop(self, url: str) -> None:
        execute(self.postgres.url, f"drop database {url.rpartition('/')[2]} with (force)")

    def _create(self, options: str = "") -> str:
        name = f"test_{uuid.uuid4().hex}"
        execute(self.postgres.url, f"create database {name} {options}")
        return self.postgres.url_of(name)


@contextmanager
def databases(folder: Path) -> Iterator[Databases]:
    with embedded.running(folder, programs(), FAST) as postgres:
        yield Databases(postgres)

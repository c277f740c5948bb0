"""Bring the database's schema to this version's, and tell whether it is there."""

import asyncio
from functools import cache
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from app.store.database import Pool, fetch, open_engine

_ADVISORY_LOCK = 0x1EA5EBEA7
_TAKE_TURN = text("select pg_try_advisory_xact_lock(:key)")
_RETRY_S = 0.1

_IS_MIGRATED = "select to_regclass('alembic_version') as there"
_REVISION = "select version_num from alembic_version"


def configuration(folder: Path) -> Config:
    config = Config()
    config.set_main_option("script_location", str(folder))
    config.set_main_option("path_separator", "os")
    return config


@cache
def _older_revisions(folder: Path) -> frozenset[str | None]:
    script = ScriptDirectory.from_config(configuration(folder))
    return frozenset({None, *(each.revision for each in script.walk_revisions())} - {script.get_current_head()})


def is_behind(revision: str | None, folder: Path) -> bool:
    """Tell whether a database at this revision lacks a migration of this version.

    A revision that this version does not know is a later one's: while an upgrade rolls out, or after it was rolled back, the old
    version serves on the new schema, which every migration allows for.
    """
    return revision in _older_revisions(folder)


async def revision_of(pool: Pool) -> str | None:
    """Return the revision that the database is at, or None if it was never migrated.

    Raises:
        UnavailableError: Postgres did not answer.

    """
    if (await fetch(pool, _IS_MIGRATED))[0]["there"] is None:
        return None
    rows = await fetch(pool, _REVISION)
    return rows[0]["version_num"] if rows else None


def migrate(database_url: str, folder: Path) -> None:
    """Run every migration that has not run yet. Safe to call from several processes at once."""

    def upgrade(connection: Connection) -> None:
        config = configuration(folder)
        config.attributes["connection"] = connection
        command.upgrade(config, "head")

    async def run() -> None:
        engine = open_engine(database_url, statement_timeout=None)
        try:
            async with engine.connect() as turn, engine.connect() as connection:
                # Held beside the migrations' own transactions, and waited for by tries that each end their transaction: making an index
                # concurrently waits for every transaction that has a snapshot, or has had one since, and a try that waits has.
                while not await turn.scalar(_TAKE_TURN, {"key": _ADVISORY_LOCK}):
                    await turn.rollback()
                    await asyncio.sleep(_RETRY_S)
                # The holder's own snapshot is let go by its next statement.
                await turn.exec_driver_sql("set local application_name = 'leasebeat migrating'")
                await connection.run_sync(upgrade)
        finally:
            await engine.dispose()

    asyncio.run(run())

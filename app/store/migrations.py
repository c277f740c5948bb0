"""Bring the database's schema to this version's."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, text

from app.store.database import open_engine
from app.store.faults import answering

_ADVISORY_LOCK = 0x1EA5EBEA7
_TAKE_TURN = text("select pg_try_advisory_xact_lock(:key)")
_RETRY_S = 0.1


def configuration(folder: Path) -> Config:
    config = Config()
    config.set_main_option("script_location", str(folder))
    config.set_main_option("path_separator", "os")
    return config


def migrate(database_url: str, folder: Path) -> None:
    """Run every migration that has not run yet. Safe to call from several processes at once.

    Raises:
        UnavailableError: the database does not answer.

    """

    def upgrade(connection: Connection) -> None:
        config = configuration(folder)
        config.attributes["connection"] = connection
        command.upgrade(config, "head")

    async def run() -> None:
        engine = open_engine(database_url, statement_timeout=None)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(engine.dispose)
            with answering():
                turn = await stack.enter_async_context(engine.connect())
            connection = await stack.enter_async_context(engine.connect())
            # Held beside the migrations' own transactions, and waited for by tries that each end their transaction: making an index
            # concurrently waits for every transaction that has a snapshot, or has had one since, and a try that waits has.
            while not await turn.scalar(_TAKE_TURN, {"key": _ADVISORY_LOCK}):
                await turn.rollback()
                await asyncio.sleep(_RETRY_S)
            # The holder's own snapshot is let go by its next statement.
            await turn.exec_driver_sql("set local application_name = 'leasebeat migrating'")
            await connection.run_sync(upgrade)

    asyncio.run(run())

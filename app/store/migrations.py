"""Bring the database's schema to this version's, and tell whether it is there."""

import asyncio
from functools import cache
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from app.store.database import open_engine


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


def current_revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def migrate(database_url: str, folder: Path) -> None:
    """Run every migration that has not run yet. Safe to call from several processes at once."""

    def upgrade(connection: Connection) -> None:
        config = configuration(folder)
        config.attributes["connection"] = connection
        command.upgrade(config, "head")

    async def run() -> None:
        engine = open_engine(database_url)
        try:
            async with engine.begin() as connection:
                await connection.run_sync(upgrade)
        finally:
            await engine.dispose()

    asyncio.run(run())

"""Run the migrations on the connection that `app.store.migrations` hands over.

Two runs at once take turns by an advisory lock, and a statement that cannot get its lock soon gives up rather than queue in front of
traffic.
"""

from alembic import context
from sqlalchemy import Connection, text
from sqlmodel import SQLModel

import app.store.models  # noqa: F401 - fills the metadata

_ADVISORY_LOCK = 0x1EA5EBEA7


def run(connection: Connection) -> None:
    context.configure(
        connection=connection, target_metadata=SQLModel.metadata, transaction_per_migration=False, compare_server_default=True
    )
    with context.begin_transaction():
        connection.execute(text("select pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
        connection.execute(text("set local lock_timeout = '5s'"))
        context.run_migrations()


run(context.config.attributes["connection"])

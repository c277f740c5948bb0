"""Run the migrations on the connection that `app.store.migrations` hands over.

Each migration has a transaction of its own, which it may leave (`autocommit_block`) for what cannot run in one, such as making an
index concurrently. A statement that cannot get its lock soon gives up rather than queue in front of traffic.
"""

from alembic import context
from sqlalchemy import Connection, event
from sqlmodel import SQLModel

import app.store.models  # noqa: F401 - fills the metadata


def run(connection: Connection) -> None:
    context.configure(connection=connection, target_metadata=SQLModel.metadata, transaction_per_migration=True, compare_server_default=True)
    event.listen(connection, "begin", _limit_waiting)
    with context.begin_transaction():
        context.run_migrations()


def _limit_waiting(connection: Connection) -> None:
    connection.exec_driver_sql("set local lock_timeout = '5s'")


run(context.config.attributes["connection"])

"""Indexes as migrations make them: beside running services, and whole also after a try that did not come to its end."""

from collections.abc import Mapping

from alembic import op
from sqlalchemy import text

_HALF_MADE = text("select count(*) from pg_index where indexrelid = to_regclass(:name) and not indisvalid")


def exchange(new: Mapping[str, str], old: Mapping[str, str]) -> None:
    """Create the indexes `new`, then drop the `old` ones. Each is given by its name and its definition, `{}` in place of the name."""
    with op.get_context().autocommit_block():
        for name, definition in new.items():
            create(name, definition)
        for name in old:
            op.execute(f"drop index concurrently if exists {name}")


def create(name: str, definition: str) -> None:
    """Create one, in an autocommit block."""
    if not op.get_context().as_sql and op.get_bind().scalar(_HALF_MADE, {"name": name}):
        op.execute(f"drop index concurrently {name}")
    op.execute("create " + definition.format(f"concurrently if not exists {name}"))

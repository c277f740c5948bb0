"""Keep the index of histories from statements that look checkpoints up by their message, and have in it what histories are ordered by."""

from collections.abc import Mapping

from alembic import op
from sqlalchemy import text

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_CREATED = {
    "checkpoint_of_history": "index {} on checkpoint (shard, history, created_at, generation, message_id) where history is not null",
}
_REPLACED = {"checkpoint_history": "index {} on checkpoint (shard, history, created_at)"}


def upgrade() -> None:
    _exchange(_CREATED, _REPLACED)


def downgrade() -> None:
    _exchange(_REPLACED, _CREATED)


def _exchange(new: Mapping[str, str], old: Mapping[str, str]) -> None:
    half_made = text("select count(*) from pg_index where indexrelid = to_regclass(:name) and not indisvalid")
    with op.get_context().autocommit_block():
        for name, definition in new.items():
            if not op.get_context().as_sql and op.get_bind().scalar(half_made, {"name": name}):
                op.execute(f"drop index concurrently {name}")  # an earlier try did not come to its end
            op.execute("create " + definition.format(f"concurrently if not exists {name}"))
        for name in old:
            op.execute(f"drop index concurrently if exists {name}")

"""Keep the index of histories from statements that look checkpoints up by their message, and have in it what histories are ordered by."""

from app.store.indexes import exchange

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_CREATED = {
    "checkpoint_of_history": "index {} on checkpoint (shard, history, created_at, generation, message_id) where history is not null",
}
_REPLACED = {"checkpoint_history": "index {} on checkpoint (shard, history, created_at)"}


def upgrade() -> None:
    exchange(_CREATED, _REPLACED)


def downgrade() -> None:
    exchange(_REPLACED, _CREATED)
